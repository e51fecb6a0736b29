//! Every backward function of the reference kernels, compared with finite differences of its
//! forward function in f64. Values that no difference can check are computed by hand.

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{AdamW, Device, Sgd, Updated, WithMomentum};
use chimera_engine::layers::{
    Activation, Attend, Attention, Dropout, Embed, Layout, Linear, LlamaLayers, Loss, Mask, Norm,
    Pointwise, Rotary,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

/// Largest error of a gradient relative to the largest gradient, compared with its finite
/// difference.
const TOLERANCE: f64 = 1e-10;

#[test]
fn embedding() {
    let mut draw = Draw::begin();
    let (ids, context) = ([2, 0, 2, 1, 2, 2], 3);
    let [tokens, positions] = [draw.normal(&[4, 5]), draw.normal(&[4, 5])];
    let dy = draw.normal(&[6, 5]);
    let loss = |tokens: &Tensor, positions: &Tensor| {
        dot(&dy, &Reference.embedding(&ids, context, tokens, positions).unwrap())
    };
    let [start_tokens, start_positions] = [draw.normal(&[4, 5]), draw.normal(&[4, 5])];
    let (mut d_tokens, mut d_positions) = (start_tokens.clone(), start_positions.clone());
    Reference.embedding_dw(&ids, context, &dy, &mut d_tokens, &mut d_positions).unwrap();
    assert_gradient(&d_tokens, &start_tokens, &tokens, |tokens| loss(tokens, &positions));
    assert_gradient(&d_positions, &start_positions, &positions, |p| loss(&tokens, p));
}

#[test]
fn linear() {
    let mut draw = Draw::begin();
    for (layout, shape) in [(Layout::InOut, [4, 3]), (Layout::OutIn, [3, 4])] {
        let [x, w, bias] = [draw.normal(&[5, 4]), draw.normal(&shape), draw.normal(&[3])];
        let [residual, dy] = [draw.normal(&[5, 3]), draw.normal(&[5, 3])];
        let loss = |x: &Tensor, w: &Tensor, bias: &Tensor, residual: &Tensor| {
            dot(&dy, &Reference.linear(x, w, layout, Some(bias), Some(residual)).unwrap())
        };
        let dx = Reference.linear_dx(&dy, &w, layout).unwrap();
        assert_gradient(&dx, &zeros(&x), &x, |x| loss(x, &w, &bias, &residual));
        assert_gradient(&dy, &zeros(&dy), &residual, |residual| loss(&x, &w, &bias, residual));

        let [start_w, start_bias] = [draw.normal(&shape), draw.normal(&[3])];
        let (mut dw, mut d_bias) = (start_w.clone(), start_bias.clone());
        Reference.linear_dw(&x, &dy, layout, &mut dw, Some(&mut d_bias)).unwrap();
        assert_gradient(&dw, &start_w, &w, |w| loss(&x, w, &bias, &residual));
        assert_gradient(&d_bias, &start_bias, &bias, |bias| loss(&x, &w, bias, &residual));
    }
}

#[test]
fn layer_norm() {
    let mut draw = Draw::begin();
    let [gain, bias] = [draw.normal(&[7]), draw.normal(&[7])];
    let [x, dy, residual] = [(); 3].map(|()| draw.normal(&[4, 7]));
    let loss = |x: &Tensor, gain: &Tensor, bias: &Tensor| {
        dot(&dy, &Reference.layer_norm(x, gain, bias, 1e-5).unwrap().0)
    };
    let (_, stats) = Reference.layer_norm(&x, &gain, &bias, 1e-5).unwrap();
    let dx = Reference.layer_norm_dx(&dy, &x, &stats, &gain, None).unwrap();
    assert_gradient(&dx, &zeros(&x), &x, |x| loss(x, &gain, &bias));
    let dx = Reference.layer_norm_dx(&dy, &x, &stats, &gain, Some(&residual)).unwrap();
    assert_gradient(&dx, &residual, &x, |x| loss(x, &gain, &bias));

    let [start_gain, start_bias] = [draw.normal(&[7]), draw.normal(&[7])];
    let (mut d_gain, mut d_bias) = (start_gain.clone(), start_bias.clone());
    Reference.layer_norm_dw(&dy, &x, &stats, &mut d_gain, &mut d_bias).unwrap();
    assert_gradient(&d_gain, &start_gain, &gain, |gain| loss(&x, gain, &bias));
    assert_gradient(&d_bias, &start_bias, &bias, |bias| loss(&x, &gain, bias));
}

#[test]
fn activation() {
    let mut draw = Draw::begin();
    for f in [Activation::GeluTanh, Activation::Gelu, Activation::Tanh, Activation::Silu] {
        let [x, dy] = [draw.normal(&[9, 5]), draw.normal(&[9, 5])];
        let (dx, y) = Reference.activation_dx(&dy, &x, f).unwrap();
        assert_eq!(y, Reference.activation(&x, f).unwrap());
        let loss = |x: &Tensor| dot(&dy, &Reference.activation(x, f).unwrap());
        assert_gradient(&dx, &zeros(&x), &x, loss);
    }
}

#[test]
fn dropout() {
    let mut draw = Draw::begin();
    let by = Dropout::new(0.4, 1, 2, 3, 4);
    let [x, residual, dy] = [(); 3].map(|()| draw.normal(&[6, 5]));
    let loss = |x: &Tensor, residual: &Tensor| {
        dot(&dy, &Reference.dropout(x, &by, Some(residual)).unwrap())
    };
    let dx = Reference.dropout(&dy, &by, None).unwrap();
    assert_gradient(&dx, &zeros(&x), &x, |x| loss(x, &residual));
    assert_gradient(&dy, &zeros(&dy), &residual, |residual| loss(&x, residual));
}

#[test]
fn dropout_of_rows_is_rows_of_the_dropout() {
    let x = Draw::begin().normal(&[6, 5]);
    let by = Dropout::new(0.5, 1, 2, 3, 4);
    let whole = Reference.dropout(&x, &by, None).unwrap();
    for start in 0..6 {
        let rows = Reference.rows(&x, start, 1).unwrap();
        let by = Dropout { first: by.first + 5 * start as u64, ..by };
        let rows = Reference.dropout(&rows, &by, None).unwrap();
        assert_eq!(rows.data, whole.row(start));
    }
    let kept = |(y, x): (&f64, &f64)| *y == 2.0 * x || *y == 0.0;
    assert!(whole.data.iter().zip(&x.data).all(kept));
    assert!(whole.data.contains(&0.0) && whole.data != zeros(&x).data);
}

#[test]
fn attention() {
    let mut draw = Draw::begin();
    for (samples, context, heads, features) in [(1, 1, 1, 1), (2, 5, 3, 2), (1, 4, 6, 1)] {
        for mask in [Mask::Causal, Mask::Lengths(&[context as u32, 2][..samples])] {
            let hidden = heads * features;
            for dropout in [None, Some(Dropout::new(0.4, 1, 2, 3, 4))] {
                let by = Attention { mask, dropout, ..Attention::causal(heads, context) };
                let qkv = draw.normal(&[samples * context, 3 * hidden]);
                let dy = draw.normal(&[samples * context, hidden]);
                let attend = |qkv: &Tensor| Reference.attention(qkv, &by).unwrap();
                let (out, log_sum) = attend(&qkv);
                let d_qkv = Reference.attention_dx(&dy, &qkv, &out, &log_sum, &by);
                assert_gradient(&d_qkv.unwrap(), &zeros(&qkv), &qkv, |qkv| {
                    dot(&dy, &attend(qkv).0)
                });
            }
        }
    }
}

#[test]
fn grouped_attention() {
    let mut draw = Draw::begin();
    for (samples, context, heads, kv_heads, features) in [(2, 5, 4, 2, 2), (1, 4, 3, 1, 3)] {
        for mask in [Mask::Causal, Mask::Window(2)] {
            let by = Attention { kv_heads, mask, ..Attention::causal(heads, context) };
            let qkv = draw.normal(&[samples * context, (heads + 2 * kv_heads) * features]);
            let dy = draw.normal(&[samples * context, heads * features]);
            let attend = |qkv: &Tensor| Reference.attention(qkv, &by).unwrap();
            let (out, log_sum) = attend(&qkv);
            let d_qkv = Reference.attention_dx(&dy, &qkv, &out, &log_sum, &by).unwrap();
            assert_gradient(&d_qkv, &zeros(&qkv), &qkv, |qkv| dot(&dy, &attend(qkv).0));
        }
    }
}

/// Repeated key and value heads give the same result as grouped ones.
#[test]
fn query_heads_of_a_group_share_keys_and_values() {
    let mut draw = Draw::begin();
    let (context, features) = (5, 3);
    let [q, k, v] = [4, 2, 2].map(|heads: usize| draw.normal(&[context, heads * features]));
    let beside = |parts: &[&[f64]]| parts.concat();
    let repeated = |x: &[f64]| beside(&[&x[..3], &x[..3], &x[3..], &x[3..]]);
    let rows = 0..context;
    let grouped = rows.clone().flat_map(|r| beside(&[q.row(r), k.row(r), v.row(r)])).collect();
    let whole = rows.flat_map(|r| beside(&[q.row(r), &repeated(k.row(r)), &repeated(v.row(r))]));
    let (grouped, whole) =
        (Tensor::new(&[context, 24], grouped), Tensor::new(&[context, 36], whole.collect()));
    let by = Attention::causal(4, context);
    let grouped = Reference.attention(&grouped, &Attention { kv_heads: 2, ..by }).unwrap();
    assert_eq!(grouped, Reference.attention(&whole, &by).unwrap());
}

#[test]
fn a_window_hides_what_is_far_back() {
    let mut draw = Draw::begin();
    let by = Attention { mask: Mask::Window(2), ..Attention::causal(2, 5) };
    let qkv = draw.normal(&[5, 3 * 6]);
    let mut other = qkv.clone();
    other.row_mut(1).copy_from_slice(&draw.normal(&[18]).data);
    let (out, _) = Reference.attention(&qkv, &by).unwrap();
    let (other_out, _) = Reference.attention(&other, &by).unwrap();
    for r in 0..5 {
        assert_eq!(out.row(r) != other_out.row(r), [1, 2].contains(&r), "row {r}");
    }
}

#[test]
fn rms_norm() {
    let mut draw = Draw::begin();
    let gain = draw.normal(&[7]);
    let [x, dy, residual] = [(); 3].map(|()| draw.normal(&[4, 7]));
    let loss = |x: &Tensor, gain: &Tensor| dot(&dy, &Reference.rms_norm(x, gain, 1e-5).unwrap().0);
    let (_, stats) = Reference.rms_norm(&x, &gain, 1e-5).unwrap();
    let dx = Reference.rms_norm_dx(&dy, &x, &stats, &gain, None).unwrap();
    assert_gradient(&dx, &zeros(&x), &x, |x| loss(x, &gain));
    let dx = Reference.rms_norm_dx(&dy, &x, &stats, &gain, Some(&residual)).unwrap();
    assert_gradient(&dx, &residual, &x, |x| loss(x, &gain));
    let start = draw.normal(&[7]);
    let mut d_gain = start.clone();
    Reference.rms_norm_dw(&dy, &x, &stats, &mut d_gain).unwrap();
    assert_gradient(&d_gain, &start, &gain, |gain| loss(&x, gain));
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let [x, gain] = [Tensor::new(&[1, 2], vec![1.0, 7.0]), Tensor::new(&[2], vec![1.0, 2.0])];
    let (y, stats) = Reference.rms_norm(&x, &gain, 0.0).unwrap();
    assert_close(&y, &Tensor::new(&[1, 2], vec![0.2, 2.8]), 1e-15);
    assert_close(&stats, &Tensor::new(&[1, 1], vec![0.2]), 1e-15);
}

#[test]
fn gated() {
    let mut draw = Draw::begin();
    for f in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
        let [x, dy] = [draw.normal(&[5, 8]), draw.normal(&[5, 4])];
        let (dx, y) = Reference.gated_dx(&dy, &x, f).unwrap();
        assert_eq!(y, Reference.gated(&x, f).unwrap());
        assert_gradient(&dx, &zeros(&x), &x, |x| dot(&dy, &Reference.gated(x, f).unwrap()));
    }
    // silu(2) 3, with silu(2) = 2 / (1 + exp(-2))
    let y = Reference.gated(&Tensor::new(&[1, 2], vec![2.0, 3.0]), Activation::Silu).unwrap();
    assert_close(&y, &Tensor::new(&[1, 1], vec![5.284782467867294]), 1e-15);
}

#[test]
fn rotary() {
    let mut draw = Draw::begin();
    let [x, dy] = [(); 2].map(|()| draw.normal(&[6, 12]));
    let table = draw.normal(&[3, 4]);
    let turned =
        |x: &Tensor, backward| Reference.rotary(x, &table, Rotary { heads: 2, backward }).unwrap();
    assert_gradient(&turned(&dy, true), &zeros(&x), &x, |x| dot(&dy, &turned(x, false)));
    for r in 0..6 {
        assert_eq!(turned(&x, false).row(r)[8..], x.row(r)[8..], "values stay");
    }
    let turns = Reference.rotary_table(&[1.0, 0.01], 2.0, 3).unwrap();
    let last = [2f64.cos(), 0.02f64.cos(), 2f64.sin(), 0.02f64.sin()].map(|x| 2.0 * x);
    assert_close(
        &Tensor::new(&[1, 4], turns.row(2).to_vec()),
        &Tensor::new(&[1, 4], last.into()),
        1e-7,
    );
    // One right angle and one zero angle: features 0 and 2 of a head are a pair.
    let table = Tensor::new(&[1, 4], vec![0.0, 1.0, 1.0, 0.0]);
    let x = Tensor::new(&[1, 4], vec![1.0, 2.0, 3.0, 4.0]);
    let y = Reference.rotary(&x, &table, Rotary { heads: 1, backward: false }).unwrap();
    assert_eq!(y.data, [-3.0, 2.0, 1.0, 4.0]);
}

#[test]
fn cross_entropy() {
    let mut draw = Draw::begin();
    let (logits, targets, scale) = (draw.normal(&[4, 7]), [3, 0, 6, 3], 0.25);
    let (_, gradient) = Reference.cross_entropy(logits.clone(), &targets, scale).unwrap();
    assert_gradient(&gradient, &zeros(&logits), &logits, |logits| {
        Reference.cross_entropy(logits.clone(), &targets, scale).unwrap().0.data[0]
    });
    for r in 0..4 {
        assert!(gradient.row(r).iter().sum::<f64>().abs() < 1e-15, "a row's gradient sums to 0");
    }
}

#[test]
fn cross_entropy_of_equal_logits_is_the_log_of_the_classes() {
    for logit in [-1e4, 0.0, 1e4] {
        let logits = Tensor::new(&[2, 4], vec![logit; 8]);
        let (loss, gradient) = Reference.cross_entropy(logits, &[1, 3], 0.5).unwrap();
        assert_close(&loss, &Tensor::new(&[1], vec![4f64.ln()]), 1e-11);
        let [yes, no] = [0.5 * (0.25 - 1.0), 0.5 * 0.25];
        let expected = Tensor::new(&[2, 4], vec![no, yes, no, no, no, no, no, yes]);
        assert_close(&gradient, &expected, 1e-11);
    }
}

#[test]
fn attention_sees_its_own_sample_up_to_itself() {
    let mut draw = Draw::begin();
    let (by, changed) = (Attention::causal(2, 4), 6);
    let qkv = draw.normal(&[12, 3 * 6]);
    let mut other = qkv.clone();
    other.row_mut(changed).copy_from_slice(&draw.normal(&[18]).data);
    let (out, _) = Reference.attention(&qkv, &by).unwrap();
    let (other_out, _) = Reference.attention(&other, &by).unwrap();
    for r in 0..12 {
        // Row 6 is the third of the second sample: the fourth sees it too.
        assert_eq!(out.row(r) != other_out.row(r), [6, 7].contains(&r), "row {r}");
    }
}

#[test]
fn attention_sees_no_padding() {
    let mut draw = Draw::begin();
    let (context, lengths) = (4, [4, 2, 1]);
    let by = Attention { mask: Mask::Lengths(&lengths), ..Attention::causal(2, context) };
    let qkv = draw.normal(&[12, 3 * 6]);
    for changed in 0..12 {
        let mut other = qkv.clone();
        // Only keys and values change: only the row itself reads its query.
        other.row_mut(changed)[6..].copy_from_slice(&draw.normal(&[12]).data);
        let attend = |qkv| Reference.attention(qkv, &by).unwrap().0;
        let [out, other] = [attend(&qkv), attend(&other)];
        let is_padding = changed % context >= lengths[changed / context] as usize;
        for r in 0..12 {
            let sees = r / context == changed / context && !is_padding;
            assert_eq!(out.row(r) != other.row(r), sees, "row {r} sees {changed}");
        }
    }
}

#[test]
fn attention_of_equal_keys_is_the_mean_of_the_values() {
    // One head of one feature; keys are 0, so all scores are 0.
    let rows = [[5.0, 0.0, 1.0], [-2.0, 0.0, 3.0], [7.0, 0.0, 8.0]];
    let qkv = Tensor::new(&[3, 3], rows.concat());
    let (out, log_sum) = Reference.attention(&qkv, &Attention::causal(1, 3)).unwrap();
    assert_close(&out, &Tensor::new(&[3, 1], vec![1.0, 2.0, 4.0]), 1e-15);
    let logs = vec![0.0, 2f64.ln(), 3f64.ln()];
    assert_close(&log_sum, &Tensor::new(&[3, 1], logs), 1e-15);
}

#[test]
fn attention_divides_scores_by_the_root_of_features_per_head() {
    // The first row's only score is its log-sum: (1 2 3 4)·(1 1 1 1)/√4.
    let qkv = [[1.0, 2.0, 3.0, 4.0], [1.0; 4], [0.0; 4]].concat();
    let qkv = Tensor::new(&[1, 12], qkv);
    let (_, log_sum) = Reference.attention(&qkv, &Attention::causal(1, 1)).unwrap();
    assert_eq!(log_sum.data, [5.0]);
    let (_, log_sum) = Reference.attention(&qkv, &Attention::causal(4, 1)).unwrap();
    assert_eq!(log_sum.data, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn layer_norm_adds_epsilon_to_the_biased_variance() {
    // Mean 2e-3, variance 1e-6: without the epsilon the result would be ∓1.
    let x = Tensor::new(&[1, 2], vec![1e-3, 3e-3]);
    let [gain, bias] = [Tensor::new(&[2], vec![1.0, 2.0]), Tensor::new(&[2], vec![0.5, 0.0])];
    let (y, stats) = Reference.layer_norm(&x, &gain, &bias, 1e-5).unwrap();
    let scale = 1.0 / 1.1e-5f64.sqrt();
    assert_close(&stats, &Tensor::new(&[1, 2], vec![2e-3, scale]), 1e-14);
    let expected = vec![0.5 - 1e-3 * scale, 2.0 * 1e-3 * scale];
    assert_close(&y, &Tensor::new(&[1, 2], expected), 1e-14);
}

#[test]
fn gelu_has_a_tanh_form_and_an_exact_one() {
    // x / (1 + exp(-2u)) is the same function; the exact GELU of 2 is 1.9544997361.
    let x = Tensor::new(&[4], vec![-1.0, 0.0, 1.0, 2.0]);
    let y = vec![-0.1588080094, 0.0, 0.8411919906, 1.9545976941];
    let gelu = Reference.activation(&x, Activation::GeluTanh).unwrap();
    assert_close(&gelu, &Tensor::new(&[4], y), 1e-10);
    let y = vec![-0.1586552539, 0.0, 0.8413447461, 1.9544997361];
    let gelu = Reference.activation(&x, Activation::Gelu).unwrap();
    assert_close(&gelu, &Tensor::new(&[4], y), 1e-10);
}

#[test]
fn adamw() {
    let scalar = |x| Tensor::new(&[1], vec![x]);
    let (mut w, mut m, mut v) = (scalar(2.0), scalar(0.0), scalar(0.0));
    let mut by = AdamW {
        lr: 0.1,
        beta1: 0.5,
        beta2: 0.75,
        eps: 0.5,
        weight_decay: 0.25,
        update: 1,
        grad_scale: 0.5,
    };
    // g = 2: m = 1, v = 1; unbiased 2 and 4; w = 2 - 0.1·0.25·2 - 0.1·2/(2 + 0.5).
    let one = Updated { w: &mut w, g: &scalar(4.0), m: &mut m, v: &mut v };
    Reference.adamw(&mut [one], &by).unwrap();
    assert_eq!([m.data[0], v.data[0]], [1.0, 1.0]);
    assert_close(&w, &scalar(1.87), 1e-15);
    // g = 1: m = 1, v = 1; unbiased by 3/4 and 7/16.
    by.update = 2;
    let one = Updated { w: &mut w, g: &scalar(2.0), m: &mut m, v: &mut v };
    Reference.adamw(&mut [one], &by).unwrap();
    assert_eq!([m.data[0], v.data[0]], [1.0, 1.0]);
    let step = 0.1 * (4.0 / 3.0) / ((16f64 / 7.0).sqrt() + 0.5);
    assert_close(&w, &scalar(1.87 * 0.975 - step), 1e-15);
}

#[test]
fn lamb() {
    let pair = |x, y| Tensor::new(&[2], vec![x, y]);
    let (mut w, mut m, mut v) = (pair(3.0, 4.0), pair(0.0, 0.0), pair(0.0, 0.0));
    let mut by = AdamW {
        lr: 0.1,
        beta1: 0.5,
        beta2: 0.75,
        eps: 0.0,
        weight_decay: 0.5,
        update: 1,
        grad_scale: 0.5,
    };
    // g = (1, -1), so u = (1, -1) and d = (2.5, 1); the step is 0.1 |w| = 0.5 long.
    let one = Updated { w: &mut w, g: &pair(2.0, -2.0), m: &mut m, v: &mut v };
    Reference.lamb(&mut [one], &by).unwrap();
    assert_close(&m, &pair(0.5, -0.5), 1e-15);
    let length = 7.25f64.sqrt();
    assert_close(&w, &pair(3.0 - 1.25 / length, 4.0 - 0.5 / length), 1e-15);
    // Weights of norm 0 take AdamW's step.
    by.weight_decay = 0.0;
    let (mut w, mut m, mut v) = (pair(0.0, 0.0), pair(0.0, 0.0), pair(0.0, 0.0));
    let one = Updated { w: &mut w, g: &pair(2.0, -6.0), m: &mut m, v: &mut v };
    Reference.lamb(&mut [one], &by).unwrap();
    assert_close(&w, &pair(-0.1, 0.1), 1e-15);
}

#[test]
fn sgd() {
    let scalar = |x| Tensor::new(&[1], vec![x]);
    let (mut w, mut m) = (scalar(2.0), scalar(0.0));
    let by = Sgd { lr: 0.1, momentum: 0.5, weight_decay: 0.25, grad_scale: 0.5 };
    // g = 2: m = 2; w = 2 - 0.1·0.25·2 - 0.1·2. Then g = 1: m = 2.
    let one = WithMomentum { w: &mut w, g: &scalar(4.0), m: &mut m };
    Reference.sgd(&mut [one], &by).unwrap();
    assert_close(&w, &scalar(1.75), 1e-15);
    let one = WithMomentum { w: &mut w, g: &scalar(2.0), m: &mut m };
    Reference.sgd(&mut [one], &by).unwrap();
    assert_close(&w, &scalar(1.75 * 0.975 - 0.2), 1e-15);
}

/// Checks that `gradient - start` is the slope of `f` at `at`, where the gradient was added to
/// `start`.
fn assert_gradient(gradient: &Tensor, start: &Tensor, at: &Tensor, f: impl Fn(&Tensor) -> f64) {
    // Five points balance the truncation error, about h⁴, and the rounding error, about 1e-16/h.
    const H: f64 = 1e-3;
    let mut expected = start.clone();
    for i in 0..at.data.len() {
        let f = |steps: f64| {
            let mut moved = at.clone();
            moved.data[i] += steps * H;
            f(&moved)
        };
        expected.data[i] += (8.0 * (f(1.0) - f(-1.0)) - (f(2.0) - f(-2.0))) / (12.0 * H);
    }
    assert_close(gradient, &expected, TOLERANCE);
}

#[track_caller]
fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(got.shape, expected.shape);
    let largest = expected.data.iter().fold(0.0, |largest, x| x.abs().max(largest));
    for (i, (got, expected)) in got.data.iter().zip(&expected.data).enumerate() {
        let error = (got - expected).abs() / largest;
        assert!(error <= tolerance, "element {i}: {got} instead of {expected}, off by {error:e}");
    }
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape, b.shape);
    a.data.iter().zip(&b.data).map(|(a, b)| a * b).sum()
}

fn zeros(like: &Tensor) -> Tensor {
    Tensor::zeros(&like.shape)
}

struct Draw(ChaCha8Rng);

impl Draw {
    fn begin() -> Self {
        Draw(ChaCha8Rng::seed_from_u64(1))
    }

    fn normal(&mut self, shape: &[usize]) -> Tensor {
        let n = shape.iter().product();
        Tensor::new(shape, (0..n).map(|_| self.0.sample(StandardNormal)).collect())
    }
}

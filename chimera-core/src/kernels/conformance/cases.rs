//! What is tried of each function. Shapes are one of everything, odd numbers, and more than any
//! device's tile; values go to where careless formulas overflow or cancel.

use rand::Rng;

use super::{Case, Failure, Trials, bits, f32s, trial};
use crate::kernels::reference::{Reference, Tensor};
use crate::kernels::{AdamW, Kernels, Layout};

type Outcome = Result<(), Failure>;

/// One case per function of [`Kernels`], in its order.
pub fn cases<K: Kernels>() -> Vec<Case<K>> {
    let table: [(&'static str, fn(&mut Trials<'_, K>) -> Outcome); 19] = [
        ("upload", upload),
        ("zeros", zeros),
        ("rows", rows),
        ("accumulate", accumulate),
        ("squared_norm", squared_norm),
        ("embedding", embedding),
        ("embedding_dw", embedding_dw),
        ("linear", linear),
        ("linear_dx", linear_dx),
        ("linear_dw", linear_dw),
        ("layer_norm", layer_norm),
        ("layer_norm_dx", layer_norm_dx),
        ("layer_norm_dw", layer_norm_dw),
        ("gelu", gelu),
        ("gelu_dx", gelu_dx),
        ("attention", attention),
        ("attention_dx", attention_dx),
        ("cross_entropy", cross_entropy),
        ("adamw", adamw),
    ];
    table
        .into_iter()
        .map(|(name, trials)| Case { name, trials })
        .collect()
}

const SHAPES: [&[usize]; 6] = [&[1], &[7], &[1, 1], &[1, 130], &[5, 3], &[130, 257]];
const MATRICES: [[usize; 2]; 6] = [[1, 1], [1, 130], [3, 2], [17, 1], [5, 33], [130, 257]];

fn upload<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    let k = trials.kernels;
    let mut data = f32s(&trials.normal(&[2, 3, 5]));
    data[..6].copy_from_slice(&[
        -0.0,
        1e-40,
        f32::MAX,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::EPSILON,
    ]);
    for shape in [&[30][..], &[1, 30], &[15, 2], &[2, 3, 5]] {
        let at = format!("{shape:?}");
        let tensor = k.upload(shape, &data)?;
        trials.require(k.shape(&tensor) == shape, &at, "another shape")?;
        let same = bits(&k.download(&tensor)?) == bits(&data);
        trials.require(same, &at, "download gives other bits than upload was given")?;
    }
    Ok(())
}

fn zeros<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        let x = trials.normal(shape);
        // Two at once: each must have memory of its own.
        trial!(trials, "two", [x], [], |k| {
            let (mut written, untouched) = (k.zeros(shape)?, k.zeros(shape)?);
            k.accumulate(&mut written, x)?;
            [written, untouched]
        });
    }
    Ok(())
}

fn rows<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in [&[11][..], &[11, 1], &[11, 7], &[11, 3, 5]] {
        let x = trials.normal(shape);
        for (start, len) in [(0, 11), (0, 1), (3, 4), (10, 1)] {
            trial!(trials, format!("{start}, {len}"), [x], [], |k| [
                k.rows(x, start, len)?
            ]);
        }
        trial!(trials, "rows of rows", [x], [], |k| [k.rows(
            &k.rows(x, 3, 6)?,
            2,
            3
        )?]);
    }
    Ok(())
}

fn accumulate<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        let [x, into] = [trials.normal(shape), trials.normal(shape)];
        trial!(trials, "", [x], [into], |k| {
            k.accumulate(into, x)?;
            []
        });
    }
    Ok(())
}

fn squared_norm<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    // The last one is large enough for a sum in one f32 to lose digits.
    for shape in [&SHAPES[..], &[&[1001, 1031]]].concat() {
        let x = trials.normal(shape);
        trial!(trials, "", [x], [], |k| [k.squared_norm(x)?]);
    }
    let k = trials.kernels;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 1000, 33_409] {
            let mut data = vec![1.0; 33_410];
            data[place] = bad;
            let norm = k.download(&k.squared_norm(&k.upload(&[130, 257], &data)?)?)?;
            let at = format!("{bad} at element {place} of [130, 257]");
            let what = format!("gives {norm:?}");
            trials.require(norm.iter().all(|x| !x.is_finite()), &at, &what)?;
        }
    }
    Ok(())
}

/// `[samples, context, vocab, hidden]`
const EMBEDDINGS: [[usize; 4]; 4] = [[1, 1, 1, 1], [3, 5, 7, 9], [4, 1, 3, 130], [2, 65, 257, 33]];

fn embedding<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for [samples, context, vocab, hidden] in EMBEDDINGS {
        let ids = trials.classes(samples * context, vocab as u32);
        let tokens = trials.normal(&[vocab, hidden]);
        let positions = trials.normal(&[context + 2, hidden]);
        trial!(
            trials,
            format!("{samples} x {context}"),
            [tokens, positions],
            [],
            |k| { [k.embedding(&ids, context, tokens, positions)?] }
        );
    }
    Ok(())
}

fn embedding_dw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for [samples, context, vocab, hidden] in EMBEDDINGS {
        let ids = trials.classes(samples * context, vocab as u32);
        let dy = trials.normal(&[samples * context, hidden]);
        let d_tokens = trials.normal(&[vocab, hidden]);
        let d_positions = trials.normal(&[context + 2, hidden]);
        trial!(
            trials,
            format!("{samples} x {context}"),
            [dy],
            [d_tokens, d_positions],
            |k| {
                k.embedding_dw(&ids, context, dy, d_tokens, d_positions)?;
                []
            }
        );
    }
    Ok(())
}

/// `[rows, inputs, outputs]`
const LINEARS: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 7, 5],
    [9, 1, 4],
    [6, 13, 1],
    [16, 16, 16],
    [3, 64, 130],
    [130, 257, 33],
    [65, 48, 257],
    [1030, 3, 5],
];

fn matrix<K: Kernels>(trials: &mut Trials<'_, K>, layout: Layout, io: [usize; 2]) -> Tensor {
    let [inputs, outputs] = io;
    trials.normal(&match layout {
        Layout::InOut => [inputs, outputs],
        Layout::OutIn => [outputs, inputs],
    })
}

fn linear<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let x = trials.normal(&[rows, inputs]);
            let w = matrix(trials, layout, [inputs, outputs]);
            let bias = trials.normal(&[outputs]);
            let residual = trials.normal(&[rows, outputs]);
            let label = |extras| format!("{layout:?}{extras}");
            trial!(trials, label(""), [x, w], [], |k| [
                k.linear(x, w, layout, None, None)?
            ]);
            trial!(trials, label(" with bias"), [x, w, bias], [], |k| {
                [k.linear(x, w, layout, Some(bias), None)?]
            });
            trial!(trials, label(" with residual"), [x, w, residual], [], |k| {
                [k.linear(x, w, layout, None, Some(residual))?]
            });
            trial!(
                trials,
                label(" with both"),
                [x, w, bias, residual],
                [],
                |k| { [k.linear(x, w, layout, Some(bias), Some(residual))?] }
            );
        }
    }
    Ok(())
}

fn linear_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let dy = trials.normal(&[rows, outputs]);
            let w = matrix(trials, layout, [inputs, outputs]);
            trial!(trials, format!("{layout:?}"), [dy, w], [], |k| [
                k.linear_dx(dy, w, layout)?
            ]);
        }
    }
    Ok(())
}

fn linear_dw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let x = trials.normal(&[rows, inputs]);
            let dy = trials.normal(&[rows, outputs]);
            let dw = matrix(trials, layout, [inputs, outputs]);
            let d_bias = trials.normal(&[outputs]);
            trial!(trials, format!("{layout:?}"), [x, dy], [dw], |k| {
                k.linear_dw(x, dy, layout, dw, None)?;
                []
            });
            trial!(
                trials,
                format!("{layout:?} with bias"),
                [x, dy],
                [dw, d_bias],
                |k| {
                    k.linear_dw(x, dy, layout, dw, Some(d_bias))?;
                    []
                }
            );
        }
    }
    Ok(())
}

/// Rows to normalise: ordinary; of less variance than epsilon; of none; and far from zero, where
/// `mean(x²) - mean(x)²` cancels.
fn to_normalise<K: Kernels>(trials: &mut Trials<'_, K>, shape: [usize; 2]) -> [Tensor; 4] {
    [(1.0, 0.0), (1e-3, 0.0), (0.0, 2.0), (1.0, 30.0)].map(|(deviation, mean)| {
        trials.draw(&shape, |rng| {
            mean + deviation * rng.random_range(-2.0..2.0f32)
        })
    })
}

fn layer_norm<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in MATRICES {
        let [gain, bias] = [(); 2].map(|()| trials.normal(&shape[1..]));
        for x in to_normalise(trials, shape) {
            trial!(trials, "", [x, gain, bias], [], |k| {
                let (y, stats) = k.layer_norm(x, gain, bias)?;
                [y, stats]
            });
        }
    }
    Ok(())
}

fn layer_norm_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in MATRICES {
        let gain = trials.normal(&shape[1..]);
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.layer_norm(&x, &gain, &gain)?.1);
            let [dy, residual] = [(); 2].map(|()| trials.normal(&shape));
            trial!(
                trials,
                "with residual",
                [dy, x, stats, gain, residual],
                [],
                |k| { [k.layer_norm_dx(dy, x, stats, gain, Some(residual))?] }
            );
            // One or two features leave nothing but rounding to compare.
            if shape[1] > 2 {
                trial!(trials, "", [dy, x, stats, gain], [], |k| {
                    [k.layer_norm_dx(dy, x, stats, gain, None)?]
                });
            }
        }
    }
    Ok(())
}

fn layer_norm_dw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in MATRICES {
        let [d_gain, d_bias] = [(); 2].map(|()| trials.normal(&shape[1..]));
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.layer_norm(&x, &d_gain, &d_bias)?.1);
            let dy = trials.normal(&shape);
            trial!(trials, "", [dy, x, stats], [d_gain, d_bias], |k| {
                k.layer_norm_dw(dy, x, stats, d_gain, d_bias)?;
                []
            });
        }
    }
    Ok(())
}

/// The last one reaches where an exponential overflows or a square leaves f32.
fn to_activate<K: Kernels>(trials: &mut Trials<'_, K>) -> Vec<Tensor> {
    let near = |shape| trials.draw(shape, |rng| rng.random_range(-5.0..5.0));
    let mut all: Vec<Tensor> = SHAPES.into_iter().map(near).collect();
    let far = [
        -1e6, -1e3, -100.0, -20.0, -0.0, 1e-30, 20.0, 100.0, 1e3, 1e6,
    ];
    all.push(rounded(Tensor::new(&[2, 5], far.to_vec())));
    all
}

fn gelu<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for x in to_activate(trials) {
        trial!(trials, "", [x], [], |k| [k.gelu(x)?]);
    }
    Ok(())
}

fn gelu_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for x in to_activate(trials) {
        let dy = trials.normal(&x.shape);
        trial!(trials, "", [dy, x], [], |k| {
            let (dx, y) = k.gelu_dx(dy, x)?;
            [dx, y]
        });
    }
    Ok(())
}

/// `[samples, context, heads, features per head]`
const ATTENTIONS: [[usize; 4]; 8] = [
    [1, 1, 1, 1],
    [3, 1, 2, 5],
    [2, 7, 3, 4],
    [2, 5, 6, 1],
    [1, 33, 1, 17],
    [2, 64, 4, 8],
    [3, 16, 2, 16],
    [1, 130, 2, 20],
];

/// Queries, keys and values: ordinary, and with scores so large that their exponentials overflow. The
/// large ones are small multiples of 3, so that f32 has the scores exactly.
fn to_attend<K: Kernels>(trials: &mut Trials<'_, K>, [s, c, h, d]: [usize; 4]) -> Vec<Tensor> {
    let shape = [s * c, 3 * h * d];
    let mut all = vec![trials.normal(&shape)];
    if d == 16 {
        all.push(trials.draw(&shape, |rng| 3.0 * rng.random_range(-3..=3) as f32));
    }
    all
}

fn attention<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for extents @ [_, context, heads, _] in ATTENTIONS {
        for qkv in to_attend(trials, extents) {
            trial!(
                trials,
                format!("{heads} heads, context {context}"),
                [qkv],
                [],
                |k| {
                    let (out, log_sum) = k.attention(qkv, heads, context)?;
                    [out, log_sum]
                }
            );
        }
    }
    Ok(())
}

fn attention_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for extents @ [_, context, heads, _] in ATTENTIONS {
        for qkv in to_attend(trials, extents) {
            let (out, log_sum) = Reference.attention(&qkv, heads, context)?;
            let [out, log_sum] = [rounded(out), rounded(log_sum)];
            let dy = trials.normal(&out.shape);
            let label = format!("{heads} heads, context {context}");
            trial!(trials, label, [dy, qkv, out, log_sum], [], |k| {
                [k.attention_dx(dy, qkv, out, log_sum, heads, context)?]
            });
        }
    }
    Ok(())
}

fn cross_entropy<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape @ [rows, vocab] in [[1, 2], [5, 7], [17, 33], [130, 257], [3, 1031]] {
        for largest in [3.0, 1e4] {
            let x = trials.draw(&shape, |rng| rng.random_range(-largest..largest));
            let targets = trials.classes(rows, vocab as u32);
            trial!(trials, format!("logits up to {largest}"), [x], [], |k| {
                // The call may take the memory of its logits.
                let mut logits = k.zeros(&shape)?;
                k.accumulate(&mut logits, x)?;
                let (loss, gradient) = k.cross_entropy(logits, &targets, 0.7)?;
                [loss, gradient]
            });
        }
    }
    Ok(())
}

fn adamw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for eps in [1e-8, 1e-2] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
            trial!(
                trials,
                format!("five updates, eps {eps}"),
                [odd, even],
                [w, m, v],
                |k| {
                    for update in 1..=5 {
                        let by = AdamW {
                            lr: 0.1 / update as f64,
                            beta1: 0.9,
                            beta2: 0.999,
                            eps,
                            weight_decay: 0.1,
                            update,
                            grad_scale: 0.2 + 0.1 * update as f64,
                        };
                        let g = if update % 2 == 1 { odd } else { even };
                        k.adamw(w, g, m, v, &by)?;
                    }
                    []
                }
            );
        }
    }
    Ok(())
}

/// The nearest values that f32 has.
fn rounded(mut tensor: Tensor) -> Tensor {
    tensor
        .data
        .iter_mut()
        .for_each(|x| *x = f64::from(*x as f32));
    tensor
}

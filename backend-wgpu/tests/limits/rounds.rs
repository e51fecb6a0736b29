//! Loops of many rounds: llvmpipe ends those of an invocation after 65,535 in total.

use chimera_core::device::Device;
use chimera_core::layers::{Attend, Attention, Embed, LlamaLayers, Loss, Mask, Norm};

use super::open;

#[test]
fn a_vocabulary_of_more_tokens_than_loops_have_rounds_has_gradients() {
    const VOCAB: usize = 2 * 65_534;
    let k = open();
    let logits = k.upload(&[1, VOCAB], &vec![0.0; VOCAB]).unwrap();
    let (_, d_logits) = k.cross_entropy(logits, &[VOCAB as u32 - 1], 1.0).unwrap();
    let d_logits = k.download(&d_logits).unwrap();
    let (target, others) = d_logits.split_last().unwrap();
    assert!((*target + 1.0).abs() < 1e-5, "{target}");
    assert!(others.iter().all(|d| (d * VOCAB as f32 - 1.0).abs() < 1e-4));
}

/// One invocation sums a feature over all rows of an id, and one over all rows of a position.
#[test]
fn more_rows_of_one_id_than_loops_have_rounds_have_gradients() {
    const ROWS: usize = 2 * 65_535 + 7;
    let k = open();
    let (ids, dy) = (vec![0; ROWS], k.upload(&[ROWS, 1], &vec![1.0; ROWS]).unwrap());
    let [mut d_tokens, mut d_positions] = [(); 2].map(|()| k.zeros(&[1, 1]).unwrap());
    k.embedding_dw(&ids, 1, &dy, &mut d_tokens, &mut d_positions).unwrap();
    let sums = [d_tokens, d_positions].map(|sum| k.download(&sum).unwrap());
    assert_eq!(sums, [[ROWS as f32], [ROWS as f32]]);
}

/// Each row takes as many rounds as its window needs, whatever the context.
#[test]
fn windows_attend_in_contexts_of_more_rows_than_loops_have_rounds_for() {
    let [context, window, dim] = [8192, 16, 64];
    let k = open();
    // Queries and keys of zeros give all rows of their window the same weight.
    let value = |row: usize| (row % 5) as f32;
    let row = |row: usize| [[0.0; 64], [0.0; 64], [value(row); 64]].concat();
    let qkv: Vec<f32> = (0..context).flat_map(row).collect();
    let qkv = k.upload(&[context, 3 * dim], &qkv).unwrap();
    let by = Attention { mask: Mask::Window(window), ..Attention::causal(1, context) };
    let (out, log_sum) = k.attention(&qkv, &by).unwrap();
    let dy = k.upload(&[context, dim], &vec![1.0; context * dim]).unwrap();
    let dx = k.attention_dx(&dy, &qkv, &out, &log_sum, &by).unwrap();
    let [out, dx] = [out, dx].map(|x| k.download(&x).unwrap());
    for row in window..context {
        let mean = (row + 1 - window..=row).map(value).sum::<f32>() / window as f32;
        assert!((out[row * dim] - mean).abs() < 1e-5, "row {row}");
        let seen = window.min(context - row) as f32 / window as f32; // by later rows
        assert!((dx[3 * row * dim + 2 * dim] - seen).abs() < 1e-5, "value {row}");
    }
}

/// In the forward pass, each query head has invocations of its own. In the backward pass, one goes
/// through all heads that share a key.
#[test]
fn heads_that_share_keys_count_in_the_backward_pass_alone() {
    let [context, heads, dim] = [4096, 4, 64];
    let k = open();
    let value = |row: usize| (row % 5) as f32;
    let row = |row: usize| [vec![0.0; (heads + 1) * dim], vec![value(row); dim]].concat();
    let rows: Vec<f32> = (0..context).flat_map(row).collect();
    let width = (heads + 2) * dim;
    let mut cache = k.upload(&[context, width], &rows).unwrap();
    let last = k.upload(&[1, width], &row(context - 1)).unwrap();
    let by = Attention { kv_heads: 1, ..Attention::causal(heads, context) };
    let (out, _) = k.attention_after(&last, &mut cache, context - 1, &by).unwrap();
    let mean = (0..context).map(value).sum::<f32>() / context as f32;
    let out = k.download(&out).unwrap();
    assert!(out.iter().all(|x| (x - mean).abs() < 1e-4), "{} instead of {mean}", out[0]);
    if k.name().contains("llvmpipe") {
        let dy = k.zeros(&[context, heads * dim]).unwrap();
        let log_sum = k.zeros(&[context, heads]).unwrap();
        let refusal = k.attention_dx(&dy, &cache, &dy, &log_sum, &by).unwrap_err().to_string();
        assert!(refusal.contains("after 65535"), "{refusal}");
    }
}

#[test]
fn loops_of_more_rounds_than_llvmpipe_makes_are_refused() {
    let k = open();
    if !k.name().contains("llvmpipe") {
        return;
    }
    let qkv = k.zeros(&[65_536, 3 * 16]).unwrap();
    let too_long = k.attention(&qkv, &Attention::causal(1, 65_536)).unwrap_err().to_string();
    assert!(
        too_long.contains("attention failed") && too_long.contains("after 65535"),
        "{too_long}"
    );
    k.attention(&qkv, &Attention::causal(1, 16_384)).map(drop).expect("few enough");
    let logits = k.zeros(&[1, 2 * 65_534 + 1]).unwrap();
    let too_large = k.cross_entropy(logits, &[0], 1.0).unwrap_err().to_string();
    assert!(too_large.contains("after 65535"), "{too_large}");
    let wide = k.zeros(&[1, 1 << 15]).unwrap();
    let too_wide = k.layer_norm(&wide, &wide, &wide, 1e-5).unwrap_err().to_string();
    assert!(too_wide.contains("after 65535"), "{too_wide}");
    let too_wide = k.rms_norm(&wide, &wide, 1e-5).unwrap_err().to_string();
    assert!(too_wide.contains("after 65535"), "{too_wide}");
    let half = k.zeros(&[1, 1 << 14]).unwrap();
    k.rms_norm(&half, &half, 1e-5).map(drop).expect("few enough");
}

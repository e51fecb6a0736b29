//! Attention, with few and many heads, short and long contexts.

use rand::Rng;

use super::Outcome;
use super::trials::{Trials, rounded, trial};
use crate::kernels::reference::{Reference, Tensor};
use crate::kernels::{Kernels, Mask};

/// `[samples, context, heads, features per head]`
const ATTENTIONS: [[usize; 4]; 11] = [
    [1, 1, 1, 1],
    [3, 1, 2, 5],
    [2, 7, 3, 4],
    [2, 5, 6, 1],
    [1, 33, 1, 17],
    [2, 64, 4, 8],
    [3, 16, 2, 16],
    [1, 130, 2, 20],
    [1, 67, 1, 64],
    [1, 35, 1, 70],
    [5, 130, 2, 3],
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

/// Lengths of samples: all, one, and something between, in turn.
fn lengths([samples, context, ..]: [usize; 4]) -> Vec<u32> {
    let of = |s: usize| [context, 1, context.div_ceil(2), context - context / 3][s % 4] as u32;
    (0..samples).map(|s| of(s + context)).collect()
}

fn masks(lengths: &[u32]) -> [(&'static str, Mask<'_>); 2] {
    [("causal", Mask::Causal), ("padded", Mask::Lengths(lengths))]
}

pub(super) fn attention<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for extents @ [_, context, heads, _] in ATTENTIONS {
        let lengths = lengths(extents);
        for qkv in to_attend(trials, extents) {
            for (name, mask) in masks(&lengths) {
                trial!(
                    trials,
                    format!("{heads} heads, {name} context {context}"),
                    [qkv],
                    [],
                    |k| {
                        let (out, log_sum) = k.attention(qkv, heads, context, mask)?;
                        [out, log_sum]
                    }
                );
            }
        }
    }
    Ok(())
}

pub(super) fn attention_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for extents @ [_, context, heads, _] in ATTENTIONS {
        let lengths = lengths(extents);
        for qkv in to_attend(trials, extents) {
            for (name, mask) in masks(&lengths) {
                let (out, log_sum) = Reference.attention(&qkv, heads, context, mask)?;
                let [out, log_sum] = [rounded(out), rounded(log_sum)];
                let dy = trials.normal(&out.shape);
                let label = format!("{heads} heads, {name} context {context}");
                trial!(trials, label, [dy, qkv, out, log_sum], [], |k| {
                    [k.attention_dx(dy, qkv, out, log_sum, heads, context, mask)?]
                });
            }
        }
    }
    Ok(())
}

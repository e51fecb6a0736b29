//! Attention, with few and many heads, short and long contexts.

use rand::Rng;

use super::Outcome;
use super::trials::{Trials, rounded, trial};
use crate::kernels::Kernels;
use crate::kernels::reference::{Reference, Tensor};

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

pub(super) fn attention<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for extents @ [_, context, heads, _] in ATTENTIONS {
        for qkv in to_attend(trials, extents) {
            trial!(trials, format!("{heads} heads, context {context}"), [qkv], [], |k| {
                let (out, log_sum) = k.attention(qkv, heads, context)?;
                [out, log_sum]
            });
        }
    }
    Ok(())
}

pub(super) fn attention_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
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

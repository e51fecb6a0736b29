//! Attention, with few and many heads, and short and long contexts.

use std::cmp::Ordering;

use rand::Rng;

use crate::device::Device;
use crate::device::conformance::Outcome;
use crate::device::conformance::trials::{Trials, rounded, trial};
use crate::device::reference::{Reference, Tensor};
use crate::layers::{Attend, Attention, Dropout, Layers, Mask, Rotary, llama_layers};

/// `[samples, context, heads, features per head]`
const ATTENTIONS: [[usize; 4]; 12] = [
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
    [2, 40, 1, 128],
    [5, 130, 2, 3],
];

/// Queries, keys and values: ordinary ones, and ones with scores so large that their exponentials
/// overflow. The large ones are small multiples of 3, so that f32 represents the scores exactly.
fn to_attend<D: Layers>(trials: &mut Trials<'_, D>, [s, c, h, d]: [usize; 4]) -> Vec<Tensor> {
    let shape = [s * c, 3 * h * d];
    let mut all = vec![trials.normal(&shape)];
    if d == 16 {
        all.push(trials.draw(&shape, |rng| 3.0 * rng.random_range(-3..=3) as f32));
    }
    all
}

/// Lengths of samples: the full context, one, and something in between, in turn.
fn lengths([samples, context, ..]: [usize; 4]) -> Vec<u32> {
    let of = |s: usize| [context, 1, context.div_ceil(2), context - context / 3][s % 4] as u32;
    (0..samples).map(|s| of(s + context)).collect()
}

/// The first row of each row's document within its sample: one long document, then two documents of
/// one row, then documents of different lengths. The boundaries differ between samples.
fn documents([samples, context, ..]: [usize; 4]) -> Vec<u32> {
    let begins = |row: usize, nth: usize| match (row * 3).cmp(&(context * 2)) {
        Ordering::Less => row == nth,
        Ordering::Equal => true,
        Ordering::Greater => row % 17 < 2 || row + nth + 1 == context,
    };
    let of_sample = |sample: usize| {
        (0..context).scan(0, move |first, row| {
            *first = if begins(row, sample) { row as u32 } else { *first };
            Some(*first)
        })
    };
    (0..samples).flat_map(of_sample).collect()
}

/// Combinations of masks and dropout. The dropped weights, except in the longest contexts, have
/// numbers that begin below 2^32 and end above it.
fn cases<'m>(
    [_, context, heads, _]: [usize; 4],
    lengths: &'m [u32],
    documents: &'m [u32],
) -> impl Iterator<Item = (String, Attention<'m>)> {
    let drop = Some(Dropout::new(0.3, 1, 2, 3, u64::from(u32::MAX) - 20));
    let padded = Mask::Lengths(lengths);
    let all = [
        ("causal", Mask::Causal, None),
        ("padded", padded, None),
        ("packed", Mask::Documents(documents), None),
        ("causal and dropped", Mask::Causal, drop),
        ("padded and dropped", padded, drop),
        ("packed and dropped", Mask::Documents(documents), drop),
    ];
    let short = all.into_iter().filter(move |(.., drop)| drop.is_none() || context < 100);
    short.map(move |(name, mask, dropout)| {
        let label = format!("{heads} heads, {name} context {context}");
        (label, Attention { mask, dropout, ..Attention::causal(heads, context) })
    })
}

/// `[samples, context, query heads, key heads, features per head, sliding window]`. No window is
/// longer than its context, and some begin within a block of every backend.
const GROUPED: [[usize; 6]; 9] = [
    [1, 1, 2, 1, 2, 1],
    [2, 7, 4, 2, 3, 7],
    [2, 9, 3, 1, 5, 2],
    [3, 16, 2, 2, 16, 5],
    [1, 130, 2, 1, 20, 130],
    [1, 131, 4, 2, 8, 70],
    [1, 150, 2, 1, 17, 3],
    [1, 67, 4, 2, 64, 64],
    [1, 20, 2, 1, 96, 7],
];

/// Grouped heads: with and without a window, with dropout in short contexts, and packed.
fn grouped(
    [_, context, heads, kv_heads, _, window]: [usize; 6],
    documents: &[u32],
) -> impl Iterator<Item = (String, Attention<'_>)> {
    let packed = Mask::Documents(documents);
    let drop = Some(Dropout::new(0.3, 1, 2, 3, u64::from(u32::MAX) - 20));
    let all = [
        ("causal", Mask::Causal, None),
        ("window", Mask::Window(window), None),
        ("window and dropped", Mask::Window(window), drop),
        ("packed", packed, None),
    ];
    let short = all.into_iter().filter(move |(.., drop)| drop.is_none() || context < 100);
    short.map(move |(name, mask, dropout)| {
        let label =
            format!("{heads} heads, {kv_heads} of keys, {name} {window}, context {context}");
        (label, Attention { kv_heads, mask, dropout, ..Attention::causal(heads, context) })
    })
}

pub(super) fn grouped_attention<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents @ [s, c, h, kv, d, _] in GROUPED {
        let qkv = trials.normal(&[s * c, (h + 2 * kv) * d]);
        let documents = documents([s, c, h, d]);
        for (label, by) in grouped(extents, &documents) {
            trial!(trials, label, [qkv], [], |device| {
                let (out, log_sum) = device.attention(qkv, &by)?;
                [out, log_sum]
            });
        }
    }
    Ok(())
}

pub(super) fn grouped_attention_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents @ [s, c, h, kv, d, _] in GROUPED {
        let qkv = trials.normal(&[s * c, (h + 2 * kv) * d]);
        let documents = documents([s, c, h, d]);
        for (label, by) in grouped(extents, &documents) {
            let (out, log_sum) = Reference.attention(&qkv, &by)?;
            let [out, log_sum] = [rounded(out), rounded(log_sum)];
            let dy = trials.normal(&out.shape);
            trial!(trials, label, [dy, qkv, out, log_sum], [], |device| {
                [device.attention_dx(dy, qkv, out, log_sum, &by)?]
            });
        }
    }
    Ok(())
}

/// A text in three steps: its first rows, a single row, and some more.
pub(super) fn attention_after<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [first, last, heads, kv_heads, d, window] in
        [[1, 1, 1, 1, 2, 3], [5, 3, 4, 2, 3, 100], [70, 2, 2, 1, 20, 67], [33, 1, 3, 3, 64, 100]]
    {
        let n = first + 1 + last;
        let width = (heads + 2 * kv_heads) * d;
        let qkv = trials.normal(&[n, width]);
        let mask = if window < n { Mask::Window(window) } else { Mask::Causal };
        let by = Attention { kv_heads, mask, ..Attention::causal(heads, n + 1) };
        trial!(trials, format!("{by:?}"), [qkv], [], |device| {
            let mut cache = device.zeros(&[n + 1, width])?;
            let mut step = |past, n| {
                device.attention_after(&device.rows(qkv, past, n)?, &mut cache, past, &by)
            };
            let (start, one, rest) = (step(0, first)?, step(first, 1)?, step(first + 1, last)?);
            [start.0, start.1, one.0, one.1, rest.0, rest.1]
        });
    }
    Ok(())
}

/// `[samples, context, first row, heads, features per head]`
const SLICES: [[usize; 5]; 7] = [
    [1, 1, 0, 1, 1],
    [2, 7, 3, 3, 4],
    [3, 16, 15, 2, 16],
    [1, 130, 64, 2, 20],
    [2, 131, 100, 2, 3],
    [1, 67, 1, 1, 64],
    [2, 150, 0, 2, 17],
];

/// The last rows of each sample, which see all rows before them, or those of their document.
fn slices<'m>(
    [_, context, first, heads, _]: [usize; 5],
    documents: &'m [u32],
) -> impl Iterator<Item = (String, Attention<'m>)> {
    let all = [("causal", Mask::Causal), ("packed", Mask::Documents(documents))];
    all.into_iter().map(move |(name, mask)| {
        let label = format!("{heads} heads, {name} context {context} from {first} on");
        (label, Attention { mask, ..Attention::causal(heads, context) })
    })
}

pub(super) fn attention_slice<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents @ [s, c, first, h, d] in SLICES {
        let qkv = trials.normal(&[s * c, 3 * h * d]);
        let documents = documents([s, c, h, d]);
        for (label, by) in slices(extents, &documents) {
            trial!(trials, label, [qkv], [], |device| {
                let (out, log_sum) = device.attention_slice(qkv, first, &by)?;
                [out, log_sum]
            });
        }
    }
    Ok(())
}

pub(super) fn attention_slice_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents @ [s, c, first, h, d] in SLICES {
        let qkv = trials.normal(&[s * c, 3 * h * d]);
        let documents = documents([s, c, h, d]);
        for (label, by) in slices(extents, &documents) {
            let (out, log_sum) = Reference.attention_slice(&qkv, first, &by)?;
            let [out, log_sum] = [rounded(out), rounded(log_sum)];
            let dy = trials.normal(&out.shape);
            trial!(trials, label, [dy, qkv, out, log_sum], [], |device| {
                [device.attention_slice_dx(dy, qkv, (out, log_sum), first, &by)?]
            });
        }
    }
    Ok(())
}

/// Rotated heads in front of others, odd numbers of pairs, more rows than positions.
pub(super) fn rotary<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [rows, context, heads, behind, d] in
        [[1, 1, 1, 0, 2], [6, 3, 2, 1, 4], [10, 5, 3, 2, 6], [130, 65, 2, 1, 64], [7, 7, 1, 1, 34]]
    {
        let x = trials.normal(&[rows, (heads + behind) * d]);
        let table = trials.draw(&[context, d], |rng| rng.random_range(-1.0..1.0));
        for backward in [false, true] {
            let label = format!("{heads} of {} heads, backward {backward}", heads + behind);
            trial!(trials, label, [x, table], [], |device| {
                [llama_layers(device)?.rotary(x, table, Rotary { heads, backward })?]
            });
        }
    }
    Ok(())
}

pub(super) fn attention<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents in ATTENTIONS {
        let (lengths, documents) = (lengths(extents), documents(extents));
        for qkv in to_attend(trials, extents) {
            for (label, by) in cases(extents, &lengths, &documents) {
                trial!(trials, label, [qkv], [], |device| {
                    let (out, log_sum) = device.attention(qkv, &by)?;
                    [out, log_sum]
                });
            }
        }
    }
    Ok(())
}

pub(super) fn attention_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for extents in ATTENTIONS {
        let (lengths, documents) = (lengths(extents), documents(extents));
        for qkv in to_attend(trials, extents) {
            for (label, by) in cases(extents, &lengths, &documents) {
                let (out, log_sum) = Reference.attention(&qkv, &by)?;
                let [out, log_sum] = [rounded(out), rounded(log_sum)];
                let dy = trials.normal(&out.shape);
                trial!(trials, label, [dy, qkv, out, log_sum], [], |device| {
                    [device.attention_dx(dy, qkv, out, log_sum, &by)?]
                });
            }
        }
    }
    Ok(())
}

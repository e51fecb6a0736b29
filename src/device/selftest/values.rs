//! Tests values at the sizes of real models: some mistakes only appear with many blocks or long
//! rows.

use chimera_core::device::Result;
use chimera_core::layers::{Attention, Layers};

use super::size::Size;
use super::suite::Suite;
use crate::device::{Compute, Devices, Precision};

/// Largest error of a row of a head, relative to its length.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 2e-5,
        Precision::Tf32 => 4e-3,
        Precision::Bf16 => 2e-2,
    }
}

/// Compares attention for heads of GPT-2 and of Llama on tensor cores with the generic kernels in
/// f32. Both run on the device, since a processor would take minutes.
pub(super) fn attention(suite: &mut Suite, generic: &Devices, tiled: &Devices) {
    for dim in [64, 128] {
        compare(suite, Heads::of(suite.size, dim), generic, tiled);
    }
}

fn compare(suite: &mut Suite, at: Heads, generic: &Devices, tiled: &Devices) {
    let Heads { n_samples, context, heads, dim } = at;
    let what = format!("attention of {n_samples} x {context} x {heads} heads of {dim}");
    let tolerance = tolerance(suite.precision);
    let all = generic.run(at).and_then(|generic| Ok((generic?, tiled.run(at)?, tiled.run(at)?)));
    let (generic, tiled, again) = match all {
        Ok((generic, Ok(tiled), Ok(again))) => (generic, tiled, again),
        Ok((_, Err(e), _) | (_, _, Err(e))) => return suite.fail(&what, &e),
        Err(e) => return suite.fail(&what, &e),
    };
    if tiled == generic {
        suite.note(&format!("{what}: this chip takes the generic kernels for both"));
    }
    let parts = ["results", "gradients"];
    for (i, part) in parts.into_iter().enumerate() {
        let (error, row) = worst_row(&tiled[i], &generic[i], dim);
        suite.check(format!("{part} of {what}"), error, tolerance, format!("row {row} of a head"));
    }
    let pairs = tiled.iter().flatten().zip(again.iter().flatten());
    let n_differ = pairs.filter(|(a, b)| a.to_bits() != b.to_bits());
    suite.check(format!("bits of {what}, twice"), n_differ.count() as f64, 0.0, String::new());
}

/// Attention and its gradient for one random input: results, and gradients of queries, keys and
/// values.
#[derive(Clone, Copy)]
struct Heads {
    n_samples: usize,
    context: usize,
    heads: usize,
    dim: usize,
}

impl Heads {
    fn of(size: Size, dim: usize) -> Self {
        let (n_samples, context, width) = match size {
            Size::Small => (1, 200, 128),
            Size::Full => (8, 1024, 768),
        };
        Self { n_samples, context, heads: width / dim, dim }
    }
}

impl Compute for Heads {
    type Output = Result<[Vec<f32>; 2]>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        let k = &by_rank[0];
        let (rows, width) = (self.n_samples * self.context, self.heads * self.dim);
        let draw = |n_columns: usize, seed: u32| {
            let values = (0..(rows * n_columns) as u32).map(|i| drawn(i ^ seed));
            k.upload(&[rows, n_columns], &values.collect::<Vec<_>>())
        };
        let (qkv, dy) = (draw(3 * width, 0)?, draw(width, 0x5bd1_e995)?);
        let causal = Attention::causal(self.heads, self.context);
        let (out, log_sum) = k.attention(&qkv, &causal)?;
        let d_qkv = k.attention_dx(&dy, &qkv, &out, &log_sum, &causal)?;
        Ok([k.download(&out)?, k.download(&d_qkv)?])
    }
}

/// Returns a number that depends on its position, between -1 and 1, the same in f32 and in bf16.
fn drawn(i: u32) -> f32 {
    let mixed = (i.wrapping_mul(0x9e37_79b9) ^ (i >> 13)).wrapping_mul(0x85eb_ca6b);
    (mixed >> 26) as f32 / 32.0 - 1.0
}

/// Returns the largest error of a row of a head, relative to the length of that row or of a usual
/// one, and the row's number. All gradients of queries are 0 in the first row of a causal head.
fn worst_row(got: &[f32], expected: &[f32], dim: usize) -> (f64, usize) {
    let length = |row: &mut dyn Iterator<Item = f64>| row.map(|x| x * x).sum::<f64>().sqrt();
    let of = |row: &[f32]| length(&mut row.iter().map(|x| f64::from(*x)));
    let usual = of(expected) / ((expected.len() / dim).max(1) as f64).sqrt();
    let pairs = got.chunks(dim).zip(expected.chunks(dim));
    let error = |(got, expected): (&[f32], &[f32])| {
        let apart = got.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b));
        length(&mut { apart }) / of(expected).max(usual)
    };
    let worst = pairs.map(error).enumerate().fold((0.0, 0), |worst: (f64, usize), (row, error)| {
        // NaN counts as the worst error.
        if error > worst.0 || error.is_nan() { (error, row) } else { worst }
    });
    if worst.0.is_nan() || got.len() != expected.len() { (f64::INFINITY, worst.1) } else { worst }
}

/// Loss of an untrained model with a head of its own, in nats: its logits are those of a normalized
/// row by weights of deviation 0.02.
pub(super) fn first_loss(hidden: usize, vocab: usize) -> f64 {
    (vocab as f64).ln() + 0.5 * hidden as f64 * 0.02f64.powi(2)
}

/// Number of values in which two runs differ in any bit.
pub(super) fn n_differing(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_row_is_found() {
        let dim = 64;
        let right: Vec<f32> = (0..4 * dim).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut wrong = right.clone();
        assert_eq!(worst_row(&wrong, &right, dim), (0.0, 0));
        wrong[2 * dim] += 3.0;
        let (error, row) = worst_row(&wrong, &right, dim);
        assert!(error > tolerance(Precision::Bf16) && row == 2, "{error} in row {row}");
        wrong[3 * dim] = f32::NAN;
        assert_eq!(worst_row(&wrong, &right, dim).0, f64::INFINITY);
        assert_eq!(worst_row(&right[1..], &right, dim).0, f64::INFINITY);
    }
}

//! Attention of rows after others whose keys and values are cached.
//!
//! A cache holds the keys of all heads, then the values of all heads. Keys lie in transposed blocks
//! of tokens, with a row per feature, so that a query's scores are products of whole vectors.
//! Values lie token by token. Both are read once, from end to end.

use candle_core::{Result, Tensor};
use chimera_core::layers::Attention;

use super::super::math::{LANES, ln};
use super::super::memory::{Output, Place, update, values};
use super::super::{Piece, run_all};
use super::head::Head;
use super::softmax::softmax;
use super::{SCRATCH, forward, scratch};
use crate::kernels::products::matrix::Matrix;
use crate::kernels::products::unpacked::multiply;

/// Computes attention of rows that follow the first `past` of `cache`, and adds them to it.
pub(crate) fn after(
    qkv: &Tensor,
    cache: &Tensor,
    past: usize,
    by: &Attention<'_>,
) -> Result<(Tensor, Tensor)> {
    let (rows, width) = qkv.dims2()?;
    let (capacity, hidden) = (cache.dims()[0], by.hidden(width));
    let group = by.heads / by.kv_heads;
    let first_of = |shared| Head::new(shared * group, width, 0, by);
    let new = values(qkv)?;
    update(cache, |cache| {
        for head in (0..by.kv_heads).map(first_of) {
            for row in 0..rows {
                let [key, value] = [1, 2].map(|part| &new[head.qkv(part, row)..][..head.dim]);
                head.keep(past + row, key, value, cache, capacity);
            }
        }
        Ok(())
    })?;
    if past == 0 {
        return forward(qkv, &Attention { context: rows, ..*by });
    }
    let cache = values(cache)?;
    let mut out = Output::new(rows * hidden);
    let mut log_sum = Output::new(rows * by.heads);
    let places = (out.place(), log_sum.place());
    run_all((0..rows * by.kv_heads).map(|part| After {
        first: first_of(part % by.kv_heads),
        group,
        row: part / by.kv_heads,
        past,
        new: &new,
        cache: &cache,
        capacity,
        out: places.0,
        log_sum: places.1,
    }));
    // SAFETY: the groups of heads of all rows wrote all elements of both.
    unsafe { Ok((out.written((rows, hidden))?, log_sum.written((rows, by.heads))?)) }
}

/// Tokens of a block of keys.
const TOKENS: usize = 4 * LANES;

impl Head<'_> {
    /// Returns the start of this head's keys and values in a cache of `capacity` tokens.
    fn kept(self, capacity: usize) -> [usize; 2] {
        [self.shared, self.by.kv_heads + self.shared].map(|nth| nth * self.dim * capacity)
    }

    /// Writes the key and value of token `token` into a cache of `capacity` tokens.
    fn keep(self, token: usize, key: &[f32], value: &[f32], cache: &mut [f32], capacity: usize) {
        let [keys, values] = self.kept(capacity);
        let (start, in_block) = (token / TOKENS * TOKENS, token % TOKENS);
        let block = &mut cache[keys + start * self.dim..];
        let column = block[in_block..].iter_mut().step_by(TOKENS.min(capacity - start));
        column.zip(key).for_each(|(kept, k)| *kept = *k);
        cache[values + token * self.dim..][..self.dim].copy_from_slice(value);
    }
}

/// The heads of one row that share keys and values.
struct After<'a> {
    first: Head<'a>,
    group: usize,
    /// Row within `new`.
    row: usize,
    /// Number of tokens before those of `new`.
    past: usize,
    new: &'a [f32],
    cache: &'a [f32],
    capacity: usize,
    out: Place,
    log_sum: Place,
}

impl Piece for After<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { first, group, row, capacity, .. } = self;
        let Head { dim, by, .. } = first;
        let seen = first.keys(self.past + row);
        let start = seen.start / TOKENS * TOKENS;
        let [keys, values] = first.kept(capacity).map(|at| &self.cache[at..][..dim * capacity]);
        let queries = Matrix::new(&self.new[first.qkv(0, row)..], group, dim, dim);
        let width = (seen.end - start).next_multiple_of(TOKENS);
        let mut scratch = scratch(group * width);
        let scores = &mut scratch[..group * width];
        for token in (start..seen.end).step_by(TOKENS) {
            let n = TOKENS.min(capacity - token);
            let keys = Matrix::new(&keys[token * dim..], dim, n, n);
            let into = scores[token - start..].as_mut_ptr();
            // SAFETY: `n` columns of all rows of scores.
            unsafe { multiply(into, width, false, first.scale(), queries, keys) };
        }
        for (nth, weights) in scores.chunks_exact_mut(width).enumerate() {
            let live = seen.start - start..seen.end - start;
            let (total, highest) = softmax(weights, live.clone(), 1.0);
            weights[live].iter_mut().for_each(|weight| *weight /= total);
            // SAFETY: within the result, and nobody else writes this head's element of the row.
            unsafe {
                self.log_sum.at(row * by.heads + first.head + nth).write(highest + ln(total))
            };
        }
        let weights = Matrix::new(&scores[seen.start - start..], group, seen.len(), width);
        let values = Matrix::new(&values[seen.start * dim..], seen.len(), dim, dim);
        let out = self.out.at(row * first.hidden + first.head * dim);
        // SAFETY: the heads of this group lie side by side in the result's row, and nobody else writes them.
        unsafe { multiply(out, dim, false, 1.0, weights, values) };
        SCRATCH.set(scratch);
    }
}

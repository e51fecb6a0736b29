//! Self-attention by blocks of queries: the scores of one block and head are all that ever
//! exists at once, and the backward pass makes them again from the log-sum-exp (Dao et al., 2022,
//! FlashAttention; blocks of keys are not needed, since a row of scores fits the cache).

use std::cell::Cell;
use std::slice;

use candle_core::{Result, Tensor};
use chimera_core::layers::{Attention, Dropout};

use super::math::{LANES, exp, exp_sum, max, sum};
use super::matmul::{Matrix, Parallelism, matmul};
use super::memory::{Output, Place, values};
use super::{Piece, run_all};

/// Queries of one block. Fewer skip more of the scores that a causal mask hides, more make better
/// matrix products; 64 is fastest at contexts of 128 to 1024.
const BLOCK: usize = 64;

thread_local! {
    /// Memory for one head, kept from call to call.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn forward(qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
    let (rows, width) = qkv.dims2()?;
    let hidden = width / 3;
    let qkv = values(qkv)?;
    let mut out = Output::new(rows * hidden);
    let mut log_sum = Output::new(rows * by.heads);
    let places = (out.place(), log_sum.place());
    run_all((0..rows / by.context * by.heads).map(|part| Forward {
        head: Head::new(part, hidden, by),
        qkv: &qkv,
        out: places.0,
        log_sum: places.1,
    }));
    // SAFETY: the heads of all samples wrote all elements of both.
    unsafe { Ok((out.written((rows, hidden))?, log_sum.written((rows, by.heads))?)) }
}

pub(crate) fn backward(
    dy: &Tensor,
    qkv: &Tensor,
    out: &Tensor,
    log_sum: &Tensor,
    by: &Attention<'_>,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let (dy, qkv, out, log_sum) = (values(dy)?, values(qkv)?, values(out)?, values(log_sum)?);
    let mut d_qkv = Output::new(rows * width);
    let place = d_qkv.place();
    run_all((0..rows / by.context * by.heads).map(|part| Backward {
        head: Head::new(part, width / 3, by),
        dy: &dy,
        qkv: &qkv,
        out: &out,
        log_sum: &log_sum,
        d_qkv: place,
    }));
    // SAFETY: the heads of all samples wrote all elements.
    unsafe { d_qkv.written((rows, width)) }
}

/// One head of one sample: where its elements lie.
#[derive(Clone, Copy)]
struct Head<'a> {
    by: &'a Attention<'a>,
    /// The first row of the sample.
    row: usize,
    head: usize,
    hidden: usize,
    /// Features of a head.
    dim: usize,
}

impl<'a> Head<'a> {
    fn new(part: usize, hidden: usize, by: &'a Attention<'a>) -> Self {
        let (row, head) = (part / by.heads * by.context, part % by.heads);
        Self { by, row, head, hidden, dim: hidden / by.heads }
    }

    /// How many keys row `row` of the sample sees.
    #[inline(always)]
    fn n_keys(self, row: usize) -> usize {
        self.by.mask.n_keys(self.row / self.by.context, row)
    }

    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Where the queries (`part` 0), keys (1) or values (2) of row `row` begin in `qkv`.
    fn qkv(self, part: usize, row: usize) -> usize {
        ((self.row + row) * 3 + part) * self.hidden + self.head * self.dim
    }

    /// Where row `row` begins in a matrix of `hidden` columns.
    fn mixed(self, row: usize) -> usize {
        (self.row + row) * self.hidden + self.head * self.dim
    }

    /// Where the log-sum-exp of row `row` lies.
    fn log_sum(self, row: usize) -> usize {
        (self.row + row) * self.by.heads + self.head
    }

    /// The dropout of the weights of row `row`, from its first on.
    #[inline(always)]
    fn dropout(self, row: usize) -> Option<Dropout> {
        let first = self.by.weight(self.row + row, self.head);
        self.by.dropout.map(|drop| Dropout { first: drop.first.wrapping_add(first), ..drop })
    }

    /// How many elements of `qkv` each of its three parts has here.
    fn size(self) -> usize {
        self.by.context * self.dim
    }

    /// Copies a part of `qkv` to consecutive rows: rows of a power-of-two width would fall on the
    /// same few lines of the cache, and products read them many times.
    #[inline(always)]
    fn gather(self, into: &mut [f32], qkv: &[f32], part: usize) {
        for (row, into) in into.chunks_exact_mut(self.dim).enumerate() {
            let from = &qkv[self.qkv(part, row)..][..self.dim];
            into.iter_mut().zip(from).for_each(|(into, x)| *into = *x);
        }
    }
}

struct Forward<'a> {
    head: Head<'a>,
    qkv: &'a [f32],
    out: Place,
    log_sum: Place,
}

impl Piece for Forward<'_> {
    #[inline(always)]
    fn run(self) {
        let head = self.head;
        let (context, dim) = (head.by.context, head.dim);
        let mut scratch = scratch(3 * head.size() + BLOCK * context);
        let (q, rest) = scratch.split_at_mut(head.size());
        let (k, rest) = rest.split_at_mut(head.size());
        let (v, scores) = rest.split_at_mut(head.size());
        head.gather(q, self.qkv, 0);
        head.gather(k, self.qkv, 1);
        head.gather(v, self.qkv, 2);
        for start in (0..context).step_by(BLOCK) {
            let n = BLOCK.min(context - start);
            let end = head.n_keys(start + n - 1);
            let scores = &mut scores[..n * end];
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let (keys, values) = (Matrix::new(k, end, dim, dim), Matrix::new(v, end, dim, dim));
            // SAFETY: `scores` is as large as the product.
            unsafe { product(scores.as_mut_ptr(), end, false, 1.0, queries, keys.t()) };
            let mut sums = [0.0; BLOCK];
            for (i, row) in scores.chunks_exact_mut(end).enumerate() {
                let live = head.n_keys(start + i);
                let (sum, log_sum) = softmax(row, live, head.scale());
                sums[i] = sum;
                if let Some(by) = head.dropout(start + i) {
                    drop_weights(&mut row[..live], &by);
                }
                let at = self.log_sum.at(head.log_sum(start + i));
                // SAFETY: inside of the result, and nobody else writes this head's elements.
                unsafe { at.write(log_sum) };
            }
            let weights = Matrix::new(scores, n, end, end);
            let out = self.out.at(head.mixed(start));
            // SAFETY: these rows and columns of the result are this head's.
            unsafe { product(out, head.hidden, false, 1.0, weights, values) };
            for (i, sum) in sums[..n].iter().enumerate() {
                // SAFETY: the product has just written these.
                let row = unsafe { slice::from_raw_parts_mut(out.add(i * head.hidden), dim) };
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        SCRATCH.set(scratch);
    }
}

/// With `p` the softmax, `f` the factors of the dropout, `dp = f dy vᵀ` and `ds = p (dp - Σ dy out)`:
/// `dv = (f p)ᵀ dy`, `dq = ds k` and `dk = dsᵀ q`, the last two times the scale.
struct Backward<'a> {
    head: Head<'a>,
    dy: &'a [f32],
    qkv: &'a [f32],
    out: &'a [f32],
    log_sum: &'a [f32],
    d_qkv: Place,
}

impl Piece for Backward<'_> {
    #[inline(always)]
    fn run(self) {
        let head = self.head;
        let (context, dim) = (head.by.context, head.dim);
        let mut scratch = scratch(3 * head.size() + 2 * BLOCK * context);
        let (q, rest) = scratch.split_at_mut(head.size());
        let (k, rest) = rest.split_at_mut(head.size());
        let (v, rest) = rest.split_at_mut(head.size());
        let (p, ds) = rest.split_at_mut(BLOCK * context);
        head.gather(q, self.qkv, 0);
        head.gather(k, self.qkv, 1);
        head.gather(v, self.qkv, 2);
        // From the last block on: it reaches all keys that any does, so it writes what the others add to.
        for start in (0..context).step_by(BLOCK).rev() {
            let n = BLOCK.min(context - start);
            let end = head.n_keys(start + n - 1);
            let (p, ds) = (&mut p[..n * end], &mut ds[..n * end]);
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let (keys, values) = (Matrix::new(k, end, dim, dim), Matrix::new(v, end, dim, dim));
            let dy = Matrix::new(&self.dy[head.mixed(start)..], n, dim, head.hidden);
            // SAFETY: `p` and `ds` are as large as the products.
            unsafe {
                product(p.as_mut_ptr(), end, false, 1.0, queries, keys.t());
                product(ds.as_mut_ptr(), end, false, 1.0, dy, values.t());
            }
            for (i, (p, ds)) in p.chunks_exact_mut(end).zip(ds.chunks_exact_mut(end)).enumerate() {
                self.softmax_dx(p, ds, start + i);
            }
            let (p, ds) = (Matrix::new(p, n, end, end), Matrix::new(ds, n, end, end));
            let step = 3 * head.hidden;
            let [dq, dk, dv] =
                [(0, start), (1, 0), (2, 0)].map(|(part, row)| self.d_qkv.at(head.qkv(part, row)));
            let add = start + n < context;
            // SAFETY: these rows and columns of the result are this head's; the last block wrote
            // what is added to.
            unsafe {
                product(dq, step, false, head.scale(), ds, keys);
                product(dk, step, add, head.scale(), ds.t(), queries);
                product(dv, step, add, 1.0, p.t(), dy);
            }
        }
        for row in head.n_keys(context - 1)..context {
            for part in [1, 2] {
                let unseen = self.d_qkv.at(head.qkv(part, row));
                // SAFETY: inside of the result, and this head's; no product has written here.
                unsafe { unseen.write_bytes(0, dim) };
            }
        }
        SCRATCH.set(scratch);
    }
}

impl Backward<'_> {
    /// From a row of scores and of `dp` to a row of `p` and of `ds`.
    #[inline(always)]
    fn softmax_dx(&self, p: &mut [f32], ds: &mut [f32], row: usize) {
        let head = self.head;
        let at = head.mixed(row);
        let (dy, out) = (&self.dy[at..][..head.dim], &self.out[at..][..head.dim]);
        let mean = sum([dy, out], |[dy, out]| dy * out);
        let log_sum = self.log_sum[head.log_sum(row)];
        let scale = head.scale();
        let live = head.n_keys(row);
        let vectors = live.next_multiple_of(LANES).min(p.len());
        let each = p[..vectors].iter_mut().zip(&mut ds[..vectors]);
        match head.dropout(row) {
            None => {
                for (p, ds) in each {
                    *p = exp(p.mul_add(scale, -log_sum));
                    *ds = *p * (*ds - mean);
                }
            }
            Some(by) => {
                let kept = by.scale() as f32;
                for (key, (p, ds)) in each.enumerate() {
                    let factor = if by.keeps(key as u64) { kept } else { 0.0 };
                    *p = exp(p.mul_add(scale, -log_sum));
                    *ds = *p * (factor * *ds - mean);
                    *p *= factor;
                }
            }
        }
        p[live..].fill(0.0);
        ds[live..].fill(0.0);
    }
}

/// Multiplies each weight by its factor.
#[inline(always)]
fn drop_weights(row: &mut [f32], by: &Dropout) {
    let scale = by.scale() as f32;
    for (key, weight) in row.iter_mut().enumerate() {
        *weight *= if by.keeps(key as u64) { scale } else { 0.0 };
    }
}

/// Turns the first `live` scores into weights that are yet to be divided by their sum, and the
/// others, which the mask hides, into 0. Returns the sum and the log-sum-exp.
#[inline(always)]
fn softmax(row: &mut [f32], live: usize, scale: f32) -> (f32, f32) {
    // Whole vectors: what is hidden among them counts nothing.
    let vectors = live.next_multiple_of(LANES).min(row.len());
    row[live..vectors].fill(f32::NEG_INFINITY);
    let highest = scale * max(&row[..vectors]);
    let sum = exp_sum(&mut row[..vectors], scale, highest);
    row[live..].fill(0.0);
    (sum, highest + sum.ln())
}

/// A product on this thread alone: the heads share the threads among them.
///
/// # Safety
///
/// As for [`matmul`].
unsafe fn product(into: *mut f32, row_step: usize, add: bool, scale: f32, a: Matrix, b: Matrix) {
    // SAFETY: the caller's promise.
    unsafe { matmul(into, row_step, add, scale, a, b, Parallelism::None) };
}

/// The scratch memory of this thread, at least `len` long.
fn scratch(len: usize) -> Vec<f32> {
    let mut scratch = SCRATCH.take();
    scratch.resize(len.max(scratch.len()), 0.0);
    scratch
}

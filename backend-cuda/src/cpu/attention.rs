//! Self-attention by blocks of queries: the scores of one block and head are all that ever
//! exists at once, and the backward pass makes them again from the log-sum-exp (Dao et al., 2022,
//! FlashAttention; blocks of keys are not needed, since a row of scores fits the cache).

use std::cell::Cell;
use std::ops::Range;
use std::slice;

use candle_core::{Result, Tensor};
use chimera_core::layers::{Attention, Dropout, Mask};

use super::dropout::{AT_ONCE, factors_of};
use super::math::{LANES, exp, exp_sum, max, sum};
use super::matmul::{Operands, Parallelism, matmul};
use super::matrix::Matrix;
use super::memory::{Output, Place, update, values};
use super::{Piece, run_all};

/// Queries of one block. Fewer skip more of the scores that a causal mask hides, more make better
/// matrix products; 64 is fastest at contexts of 128 to 1024.
const BLOCK: usize = 64;

thread_local! {
    /// Memory for one head, kept from call to call.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn forward(
    operands: Operands,
    qkv: &Tensor,
    by: &Attention<'_>,
) -> Result<(Tensor, Tensor)> {
    forward_from(operands, qkv, 0, by)
}

/// Of the rows of each sample from `first` on.
pub(crate) fn forward_from(
    operands: Operands,
    qkv: &Tensor,
    first: usize,
    by: &Attention<'_>,
) -> Result<(Tensor, Tensor)> {
    let (all_rows, width) = qkv.dims2()?;
    let rows = all_rows / by.context * (by.context - first);
    let hidden = by.hidden(width);
    let qkv = values(qkv)?;
    let mut out = Output::new(rows * hidden);
    let mut log_sum = Output::new(rows * by.heads);
    let places = (out.place(), log_sum.place());
    run_all((0..all_rows / by.context * by.heads).map(|part| Forward {
        operands,
        head: Head::new(part, width, first, by),
        qkv: &qkv,
        out: places.0,
        log_sum: places.1,
    }));
    // SAFETY: the heads of all samples wrote all elements of both.
    unsafe { Ok((out.written((rows, hidden))?, log_sum.written((rows, by.heads))?)) }
}

pub(crate) fn backward(
    operands: Operands,
    dy: &Tensor,
    qkv: &Tensor,
    out: &Tensor,
    log_sum: &Tensor,
    by: &Attention<'_>,
) -> Result<Tensor> {
    backward_from(operands, dy, qkv, (out, log_sum), 0, by)
}

/// Through the rows of each sample from `first` on.
pub(crate) fn backward_from(
    operands: Operands,
    dy: &Tensor,
    qkv: &Tensor,
    (out, log_sum): (&Tensor, &Tensor),
    first: usize,
    by: &Attention<'_>,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let (dy, qkv, out, log_sum) = (values(dy)?, values(qkv)?, values(out)?, values(log_sum)?);
    let mut d_qkv = Output::new(rows * width);
    let place = d_qkv.place();
    let group = by.heads / by.kv_heads;
    run_all((0..rows / by.context * by.kv_heads).map(|part| Backward {
        operands,
        first: Head::new(part * group, width, first, by),
        group,
        dy: &dy,
        qkv: &qkv,
        out: &out,
        log_sum: &log_sum,
        d_qkv: place,
    }));
    // SAFETY: the groups of heads of all samples wrote all elements.
    unsafe { d_qkv.written((rows, width)) }
}

/// Rows that follow the first `past` of `cache`, which gets them too.
pub(crate) fn after(
    operands: Operands,
    qkv: &Tensor,
    cache: &Tensor,
    past: usize,
    by: &Attention<'_>,
) -> Result<(Tensor, Tensor)> {
    let (rows, width) = qkv.dims2()?;
    let new = values(qkv)?;
    update(cache, |cache| {
        cache[past * width..][..rows * width].copy_from_slice(&new);
        Ok(())
    })?;
    if past == 0 {
        return forward(operands, qkv, &Attention { context: rows, ..*by });
    }
    let hidden = by.hidden(width);
    let all = values(cache)?;
    let mut out = Output::new(rows * hidden);
    let mut log_sum = Output::new(rows * by.heads);
    let places = (out.place(), log_sum.place());
    run_all((0..rows * by.heads).map(|part| After {
        head: Head::new(part % by.heads, width, 0, by),
        row: part / by.heads,
        past,
        all: &all,
        out: places.0,
        log_sum: places.1,
    }));
    // SAFETY: the heads of all rows wrote all elements of both.
    unsafe { Ok((out.written((rows, hidden))?, log_sum.written((rows, by.heads))?)) }
}

/// One head of one row behind others: products of a row with a matrix, which is read once and so is not gathered.
struct After<'a> {
    head: Head<'a>,
    row: usize,
    past: usize,
    all: &'a [f32],
    out: Place,
    log_sum: Place,
}

impl Piece for After<'_> {
    #[inline(always)]
    fn run(self) {
        let Head { dim, by, .. } = self.head;
        let at = self.past + self.row;
        let keys = self.head.keys(at);
        let part = |part, row| &self.all[self.head.qkv(part, row)..][..dim];
        let query = part(0, at);
        let mut scratch = scratch(keys.len() + dim);
        let (weights, out) = scratch[..keys.len() + dim].split_at_mut(keys.len());
        for (weight, key) in weights.iter_mut().zip(keys.clone()) {
            *weight = sum([query, part(1, key)], |[q, k]| q * k);
        }
        let (total, log_sum) = softmax(weights, 0..keys.len(), self.head.scale());
        out.fill(0.0);
        for (weight, key) in weights.iter().zip(keys) {
            let weight = weight / total;
            out.iter_mut().zip(part(2, key)).for_each(|(out, v)| *out = v.mul_add(weight, *out));
        }
        let [mixed, log] = [
            self.out.at(self.row * self.head.hidden + self.head.head * dim),
            self.log_sum.at(self.row * by.heads + self.head.head),
        ];
        // SAFETY: inside of the results, and nobody else writes this head's elements of the row.
        unsafe {
            mixed.copy_from_nonoverlapping(out.as_ptr(), dim);
            log.write(log_sum);
        }
        SCRATCH.set(scratch);
    }
}

/// One head of one sample: where its elements lie.
#[derive(Clone, Copy)]
struct Head<'a> {
    by: &'a Attention<'a>,
    /// The first row of the sample.
    row: usize,
    /// The first row that queries, counted within the sample, and where the sample's results begin.
    first: usize,
    result: usize,
    head: usize,
    /// The head of keys and values that it reads.
    shared: usize,
    /// Elements of a row of queries, keys and values, and of the result.
    width: usize,
    hidden: usize,
    /// Features of a head.
    dim: usize,
}

impl<'a> Head<'a> {
    fn new(part: usize, width: usize, first: usize, by: &'a Attention<'a>) -> Self {
        let (sample, head) = (part / by.heads, part % by.heads);
        Self {
            by,
            row: sample * by.context,
            first,
            result: sample * (by.context - first),
            head,
            shared: head / (by.heads / by.kv_heads),
            width,
            hidden: by.hidden(width),
            dim: by.head_dim(width),
        }
    }

    /// Which keys row `row` of the sample sees.
    #[inline(always)]
    fn keys(self, row: usize) -> Range<usize> {
        self.by.keys(self.row / self.by.context, row)
    }

    /// Which keys any of `n` rows from `start` on sees.
    fn keys_of_block(self, start: usize, n: usize) -> Range<usize> {
        self.keys(start).start..self.keys(start + n - 1).end
    }

    /// `keys` of row `row`, counted from the first key of its block.
    #[inline(always)]
    fn live(self, row: usize, block: &Range<usize>) -> Range<usize> {
        let keys = self.keys(row);
        keys.start - block.start..keys.end - block.start
    }

    fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Where the queries (`part` 0), keys (1) or values (2) of row `row` begin in `qkv`.
    fn qkv(self, part: usize, row: usize) -> usize {
        let Attention { heads, kv_heads, .. } = *self.by;
        let head = [self.head, heads + self.shared, heads + kv_heads + self.shared][part];
        (self.row + row) * self.width + head * self.dim
    }

    /// Where row `row`, which queries, begins in a matrix of `hidden` columns.
    fn mixed(self, row: usize) -> usize {
        (self.result + row - self.first) * self.hidden + self.head * self.dim
    }

    /// Where the log-sum-exp of row `row` lies.
    fn log_sum(self, row: usize) -> usize {
        (self.result + row - self.first) * self.by.heads + self.head
    }

    /// The dropout of the weights of row `row`, from those of key `key` on.
    #[inline(always)]
    fn dropout(self, row: usize, key: usize) -> Option<Dropout> {
        let first = self.by.weight(self.row + row, self.head) + key as u64;
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
    operands: Operands,
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
        for start in (head.first..context).step_by(BLOCK) {
            let n = BLOCK.min(context - start);
            let block = head.keys_of_block(start, n);
            let scores = &mut scores[..n * block.len()];
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let [keys, values] =
                [&*k, &*v].map(|x| Matrix::new(&x[block.start * dim..], block.len(), dim, dim));
            // SAFETY: `scores` is as large as the product.
            unsafe {
                product(
                    self.operands,
                    scores.as_mut_ptr(),
                    block.len(),
                    false,
                    1.0,
                    queries,
                    keys.t(),
                )
            };
            let mut sums = [0.0; BLOCK];
            for (i, row) in scores.chunks_exact_mut(block.len()).enumerate() {
                let live = head.live(start + i, &block);
                let (sum, log_sum) = softmax(row, live.clone(), head.scale());
                sums[i] = sum;
                if let Some(by) = head.dropout(start + i, block.start + live.start) {
                    drop_weights(&mut row[live], &by);
                }
                let at = self.log_sum.at(head.log_sum(start + i));
                // SAFETY: inside of the result, and nobody else writes this head's elements.
                unsafe { at.write(log_sum) };
            }
            let weights = Matrix::new(scores, n, block.len(), block.len());
            let out = self.out.at(head.mixed(start));
            // SAFETY: these rows and columns of the result are this head's.
            unsafe { product(self.operands, out, head.hidden, false, 1.0, weights, values) };
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
/// `dv = (f p)ᵀ dy`, `dq = ds k` and `dk = dsᵀ q`, the last two times the scale; `dv` and `dk` summed over the heads of
/// queries that share them.
struct Backward<'a> {
    operands: Operands,
    /// The first head of the group.
    first: Head<'a>,
    group: usize,
    dy: &'a [f32],
    qkv: &'a [f32],
    out: &'a [f32],
    log_sum: &'a [f32],
    d_qkv: Place,
}

impl Piece for Backward<'_> {
    #[inline(always)]
    fn run(self) {
        let head = self.first;
        let (context, dim) = (head.by.context, head.dim);
        let mut scratch = scratch(3 * head.size() + 2 * BLOCK * context);
        let (q, rest) = scratch.split_at_mut(head.size());
        let (k, rest) = rest.split_at_mut(head.size());
        let (v, rest) = rest.split_at_mut(head.size());
        let (p, ds) = rest.split_at_mut(BLOCK * context);
        head.gather(k, self.qkv, 1);
        head.gather(v, self.qkv, 2);
        // Where the last block does not reach back to the first key, all add to zeros.
        let is_windowed = matches!(head.by.mask, Mask::Window(_) | Mask::Documents(_));
        let unwritten = if is_windowed { 0 } else { head.keys(context - 1).end };
        for row in unwritten..context {
            for part in [1, 2] {
                let at = self.d_qkv.at(head.qkv(part, row));
                // SAFETY: inside of the result, and this group's; no product has written here.
                unsafe { at.write_bytes(0, dim) };
            }
        }
        for nth in 0..self.group {
            let head = Head { head: head.head + nth, ..head };
            for row in 0..head.first {
                // SAFETY: inside of the result, and this head's; rows that do not query have no gradient of a query.
                unsafe { self.d_qkv.at(head.qkv(0, row)).write_bytes(0, dim) };
            }
            head.gather(q, self.qkv, 0);
            self.one(head, is_windowed || nth > 0, [q, k, v], [p, ds]);
        }
        SCRATCH.set(scratch);
    }
}

impl Backward<'_> {
    /// The gradients through one head of queries. Those of keys and values are added to what is there if `adds` is set,
    /// or else written by the block that reaches all keys, and added to by the others.
    #[inline(always)]
    fn one(&self, head: Head<'_>, adds: bool, [q, k, v]: [&[f32]; 3], [p, ds]: [&mut [f32]; 2]) {
        let (context, dim) = (head.by.context, head.dim);
        // From the last block on: without a window it reaches all keys that any does.
        for start in (head.first..context).step_by(BLOCK).rev() {
            let n = BLOCK.min(context - start);
            let block = head.keys_of_block(start, n);
            let width = block.len();
            let (p, ds) = (&mut p[..n * width], &mut ds[..n * width]);
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let [keys, values] =
                [k, v].map(|x| Matrix::new(&x[block.start * dim..], width, dim, dim));
            let dy = Matrix::new(&self.dy[head.mixed(start)..], n, dim, head.hidden);
            // SAFETY: `p` and `ds` are as large as the products.
            unsafe {
                product(self.operands, p.as_mut_ptr(), width, false, 1.0, queries, keys.t());
                product(self.operands, ds.as_mut_ptr(), width, false, 1.0, dy, values.t());
            }
            let rows = p.chunks_exact_mut(width).zip(ds.chunks_exact_mut(width));
            for (i, (p, ds)) in rows.enumerate() {
                self.softmax_dx(head, p, ds, start + i, &block);
            }
            let (p, ds) = (Matrix::new(p, n, width, width), Matrix::new(ds, n, width, width));
            let [dq, dk, dv] = [(0, start), (1, block.start), (2, block.start)]
                .map(|(part, row)| self.d_qkv.at(head.qkv(part, row)));
            let add = adds || start + n < context;
            // SAFETY: these rows and columns of the result are this group's; what is added to was zeroed, or written by
            // the last block.
            unsafe {
                product(self.operands, dq, head.width, false, head.scale(), ds, keys);
                product(self.operands, dk, head.width, add, head.scale(), ds.t(), queries);
                product(self.operands, dv, head.width, add, 1.0, p.t(), dy);
            }
        }
    }

    /// From a row of scores and of `dp` to a row of `p` and of `ds`.
    #[inline(always)]
    fn softmax_dx(
        &self,
        head: Head<'_>,
        p: &mut [f32],
        ds: &mut [f32],
        row: usize,
        block: &Range<usize>,
    ) {
        let at = head.mixed(row);
        let (dy, out) = (&self.dy[at..][..head.dim], &self.out[at..][..head.dim]);
        let mean = sum([dy, out], |[dy, out]| dy * out);
        let log_sum = self.log_sum[head.log_sum(row)];
        let scale = head.scale();
        let live = head.live(row, block);
        let vectors = live.start..(live.start + live.len().next_multiple_of(LANES)).min(p.len());
        let (live_p, live_ds) = (&mut p[vectors.clone()], &mut ds[vectors]);
        match head.dropout(row, block.start + live.start) {
            None => {
                for (p, ds) in live_p.iter_mut().zip(live_ds) {
                    *p = exp(p.mul_add(scale, -log_sum));
                    *ds = *p * (*ds - mean);
                }
            }
            Some(by) => {
                let mut factors = [0.0; AT_ONCE];
                let parts = live_p.chunks_mut(AT_ONCE).zip(live_ds.chunks_mut(AT_ONCE));
                for (nth, (p, ds)) in parts.enumerate() {
                    let factors = factors_of(&by, nth * AT_ONCE, &mut factors[..p.len()]);
                    for ((p, ds), factor) in p.iter_mut().zip(ds).zip(factors) {
                        *p = exp(p.mul_add(scale, -log_sum));
                        *ds = *p * (factor * *ds - mean);
                        *p *= factor;
                    }
                }
            }
        }
        for hidden in [0..live.start, live.end..p.len()] {
            p[hidden.clone()].fill(0.0);
            ds[hidden].fill(0.0);
        }
    }
}

/// Multiplies each weight by its factor.
#[inline(always)]
fn drop_weights(row: &mut [f32], by: &Dropout) {
    let mut factors = [0.0; AT_ONCE];
    for (nth, row) in row.chunks_mut(AT_ONCE).enumerate() {
        let factors = factors_of(by, nth * AT_ONCE, &mut factors[..row.len()]);
        for (weight, factor) in row.iter_mut().zip(factors) {
            *weight *= factor;
        }
    }
}

/// Turns the `live` scores into weights that are yet to be divided by their sum, and the others, which the mask hides,
/// into 0. Returns the sum and the log-sum-exp.
#[inline(always)]
fn softmax(row: &mut [f32], live: Range<usize>, scale: f32) -> (f32, f32) {
    let (before, row) = row.split_at_mut(live.start);
    before.fill(0.0);
    // Whole vectors: what is hidden among them counts nothing.
    let live = live.len();
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
unsafe fn product(
    operands: Operands,
    into: *mut f32,
    row_step: usize,
    add: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    // SAFETY: the caller's promise.
    unsafe { matmul(operands, into, row_step, add, scale, a, b, Parallelism::None) };
}

/// The scratch memory of this thread, at least `len` long.
fn scratch(len: usize) -> Vec<f32> {
    let mut scratch = SCRATCH.take();
    scratch.resize(len.max(scratch.len()), 0.0);
    scratch
}

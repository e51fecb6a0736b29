//! The backward pass of the heads of one sample that share keys and values.

use std::ops::Range;

use chimera_core::layers::Mask;

use super::super::Piece;
use super::super::dropout::{AT_ONCE, factors_of};
use super::super::math::{LANES, exp, sum};
use super::super::memory::Place;
use super::head::Head;
use super::{BLOCK, SCRATCH, scratch};
use crate::kernels::products::matrix::Matrix;
use crate::kernels::products::unpacked::multiply;

/// With `p` the softmax, `f` the dropout factors, `dp = f dy vᵀ` and `ds = p (dp - Σ dy out)`:
/// `dv = (f p)ᵀ dy`, `dq = ds k` and `dk = dsᵀ q`, the last two times the scale. `dv` and `dk` are
/// summed over the heads of queries that share them.
pub(super) struct HeadBackward<'a> {
    /// The first head of the group.
    pub(super) first: Head<'a>,
    pub(super) group: usize,
    pub(super) dy: &'a [f32],
    pub(super) qkv: &'a [f32],
    pub(super) out: &'a [f32],
    pub(super) log_sum: &'a [f32],
    pub(super) d_qkv: Place,
}

impl Piece for HeadBackward<'_> {
    #[inline(always)]
    fn run(self) {
        let head = self.first;
        let (context, dim) = (head.by.context, head.dim);
        let rows = BLOCK * head.turned_step();
        let mut scratch = scratch(2 * (head.size() + head.turned_size() + rows));
        let (q, rest) = scratch.split_at_mut(head.size());
        let (k, rest) = rest.split_at_mut(head.size());
        let (k_turned, rest) = rest.split_at_mut(head.turned_size());
        let (v_turned, rest) = rest.split_at_mut(head.turned_size());
        let (p, ds) = rest.split_at_mut(rows);
        head.gather(k, self.qkv, 1);
        head.gather_turned(k_turned, self.qkv, 1);
        head.gather_turned(v_turned, self.qkv, 2);
        // If the last block does not reach back to the first key, all blocks add to zeros.
        let is_windowed = matches!(head.by.mask, Mask::Window(_) | Mask::Documents(_));
        let unwritten = if is_windowed { 0 } else { head.keys(context - 1).end };
        for row in unwritten..context {
            for part in [1, 2] {
                let at = self.d_qkv.at(head.qkv(part, row));
                // SAFETY: within the result, and this group's; no product has written here.
                unsafe { at.write_bytes(0, dim) };
            }
        }
        for nth in 0..self.group {
            let head = Head { head: head.head + nth, ..head };
            for row in 0..head.first {
                // SAFETY: within the result, and this head's; these rows have no query.
                unsafe { self.d_qkv.at(head.qkv(0, row)).write_bytes(0, dim) };
            }
            head.gather(q, self.qkv, 0);
            self.one(head, is_windowed || nth > 0, [q, k], [k_turned, v_turned], [p, ds]);
        }
        SCRATCH.set(scratch);
    }
}

impl HeadBackward<'_> {
    /// Computes the gradients through one head of queries. With `adds`, those of keys and values
    /// are added to what is there. Otherwise the block that reaches all keys writes them, and the
    /// others add.
    #[inline(always)]
    fn one(
        &self,
        head: Head<'_>,
        adds: bool,
        [q, k]: [&[f32]; 2],
        turned: [&[f32]; 2],
        [p, ds]: [&mut [f32]; 2],
    ) {
        let (context, dim, step) = (head.by.context, head.dim, head.turned_step());
        // From the last block on: without a window it reaches every key that any block reaches.
        for start in (head.first..context).step_by(BLOCK).rev() {
            let n = BLOCK.min(context - start);
            let block = head.keys_of_block(start, n);
            let width = block.len().next_multiple_of(LANES);
            let (p, ds) = (&mut p[..n * width], &mut ds[..n * width]);
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let keys = Matrix::new(&k[block.start * dim..], block.len(), dim, dim);
            let [keys_turned, values_turned] =
                turned.map(|x| Matrix::new(&x[block.start..], dim, width, step));
            let dy = Matrix::new(&self.dy[head.mixed(start)..], n, dim, head.hidden);
            // SAFETY: `p` and `ds` are as large as the products.
            unsafe {
                multiply(p.as_mut_ptr(), width, false, 1.0, queries, keys_turned);
                multiply(ds.as_mut_ptr(), width, false, 1.0, dy, values_turned);
            }
            let rows = p.chunks_exact_mut(width).zip(ds.chunks_exact_mut(width));
            for (i, (p, ds)) in rows.enumerate() {
                self.softmax_dx(head, p, ds, start + i, &block);
            }
            let [p, ds] = [&*p, &*ds].map(|x| Matrix::new(x, n, block.len(), width));
            let [dq, dk, dv] = [(0, start), (1, block.start), (2, block.start)]
                .map(|(part, row)| self.d_qkv.at(head.qkv(part, row)));
            let add = adds || start + n < context;
            // SAFETY: these rows and columns of the result are this group's. Elements that are
            // added to were zeroed, or written by the last block.
            unsafe {
                multiply(dq, head.width, false, head.scale(), ds, keys);
                multiply(dk, head.width, add, head.scale(), ds.t(), queries);
                multiply(dv, head.width, add, 1.0, p.t(), dy);
            }
        }
    }

    /// Converts a row of scores and of `dp` to a row of `p` and of `ds`.
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

//! The forward pass of one head of one sample.

use std::slice;

use super::super::Piece;
use super::super::math::{LANES, ln};
use super::super::memory::Place;
use super::head::Head;
use super::softmax::{drop_weights, softmax};
use super::{BLOCK, SCRATCH, scratch};
use crate::kernels::products::matrix::Matrix;
use crate::kernels::products::unpacked::multiply;

/// Computes the weights of one block of queries at a time, and mixes values by them.
pub(super) struct HeadForward<'a> {
    pub(super) head: Head<'a>,
    pub(super) qkv: &'a [f32],
    pub(super) out: Place,
    pub(super) log_sum: Place,
}

impl Piece for HeadForward<'_> {
    #[inline(always)]
    fn run(self) {
        let head = self.head;
        let (context, dim) = (head.by.context, head.dim);
        let step = head.turned_step();
        let mut scratch = scratch(2 * head.size() + head.turned_size() + BLOCK * step);
        let (q, rest) = scratch.split_at_mut(head.size());
        let (v, rest) = rest.split_at_mut(head.size());
        let (k, scores) = rest.split_at_mut(head.turned_size());
        head.gather(q, self.qkv, 0);
        head.gather_turned(k, self.qkv, 1);
        head.gather(v, self.qkv, 2);
        for start in (head.first..context).step_by(BLOCK) {
            let n = BLOCK.min(context - start);
            let block = head.keys_of_block(start, n);
            let width = block.len().next_multiple_of(LANES);
            let scores = &mut scores[..n * width];
            let queries = Matrix::new(&q[start * dim..], n, dim, dim);
            let keys = Matrix::new(&k[block.start..], dim, width, step);
            let values = Matrix::new(&v[block.start * dim..], block.len(), dim, dim);
            // SAFETY: `scores` is as large as the product.
            unsafe { multiply(scores.as_mut_ptr(), width, false, 1.0, queries, keys) };
            let (mut sums, mut log_sums) = ([1.0; BLOCK], [0.0; BLOCK]);
            for (i, row) in scores.chunks_exact_mut(width).enumerate() {
                let live = head.live(start + i, &block);
                (sums[i], log_sums[i]) = softmax(row, live.clone(), head.scale());
                if let Some(by) = head.dropout(start + i, block.start + live.start) {
                    drop_weights(&mut row[live], &by);
                }
            }
            for (log_sum, sum) in log_sums.iter_mut().zip(sums) {
                *log_sum += ln(sum);
            }
            for (i, log_sum) in log_sums[..n].iter().enumerate() {
                let at = self.log_sum.at(head.log_sum(start + i));
                // SAFETY: within the result, and nobody else writes this head's elements.
                unsafe { at.write(*log_sum) };
            }
            let weights = Matrix::new(scores, n, block.len(), width);
            let out = self.out.at(head.mixed(start));
            // SAFETY: these rows and columns of the result are this head's.
            unsafe { multiply(out, head.hidden, false, 1.0, weights, values) };
            for (i, sum) in sums[..n].iter().enumerate() {
                // SAFETY: the product has just written these.
                let row = unsafe { slice::from_raw_parts_mut(out.add(i * head.hidden), dim) };
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        SCRATCH.set(scratch);
    }
}

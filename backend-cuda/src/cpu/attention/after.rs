//! A head of a row that follows rows whose keys and values are kept.

use super::super::Piece;
use super::super::math::{ln, sum};
use super::super::memory::Place;
use super::head::Head;
use super::softmax::softmax;
use super::{SCRATCH, scratch};

/// One head of one row behind others: products of a row with a matrix, which is read once and so is not gathered.
pub(super) struct After<'a> {
    pub(super) head: Head<'a>,
    pub(super) row: usize,
    pub(super) past: usize,
    pub(super) all: &'a [f32],
    pub(super) out: Place,
    pub(super) log_sum: Place,
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
        let (total, highest) = softmax(weights, 0..keys.len(), self.head.scale());
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
            log.write(highest + ln(total));
        }
        SCRATCH.set(scratch);
    }
}

//! The memory layout of a head.

use std::ops::Range;

use chimera_core::layers::{Attention, Dropout};

use super::super::math::LANES;

/// One head of one sample, and the positions of its elements.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) by: &'a Attention<'a>,
    /// The first row of the sample.
    pub(super) row: usize,
    /// The first row that queries, within the sample.
    pub(super) first: usize,
    /// The first row of the sample's results.
    pub(super) result: usize,
    pub(super) head: usize,
    /// The head of keys and values that it reads.
    pub(super) shared: usize,
    /// Elements of a row of queries, keys and values, and of the result.
    pub(super) width: usize,
    pub(super) hidden: usize,
    /// Features of a head.
    pub(super) dim: usize,
}

impl<'a> Head<'a> {
    pub(super) fn new(part: usize, width: usize, first: usize, by: &'a Attention<'a>) -> Self {
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

    /// Returns the keys that row `row` of the sample sees.
    #[inline(always)]
    pub(super) fn keys(self, row: usize) -> Range<usize> {
        self.by.keys(self.row / self.by.context, row)
    }

    /// Returns the keys that any of `n` rows from `start` on sees.
    pub(super) fn keys_of_block(self, start: usize, n: usize) -> Range<usize> {
        self.keys(start).start..self.keys(start + n - 1).end
    }

    /// Returns the keys of row `row`, relative to the first key of its block.
    #[inline(always)]
    pub(super) fn live(self, row: usize, block: &Range<usize>) -> Range<usize> {
        let keys = self.keys(row);
        keys.start - block.start..keys.end - block.start
    }

    pub(super) fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Returns the start of the queries (`part` 0), keys (1) or values (2) of row `row` in `qkv`.
    pub(super) fn qkv(self, part: usize, row: usize) -> usize {
        let Attention { heads, kv_heads, .. } = *self.by;
        let head = [self.head, heads + self.shared, heads + kv_heads + self.shared][part];
        (self.row + row) * self.width + head * self.dim
    }

    /// Returns the start of row `row`, which queries, in a matrix of `hidden` columns.
    pub(super) fn mixed(self, row: usize) -> usize {
        (self.result + row - self.first) * self.hidden + self.head * self.dim
    }

    /// Returns the position of the log-sum-exp of row `row`.
    pub(super) fn log_sum(self, row: usize) -> usize {
        (self.result + row - self.first) * self.by.heads + self.head
    }

    /// Returns the dropout of the weights of row `row`, from key `key` on.
    #[inline(always)]
    pub(super) fn dropout(self, row: usize, key: usize) -> Option<Dropout> {
        let first = self.by.weight(self.row + row, self.head) + key as u64;
        self.by.dropout.map(|drop| Dropout { first: drop.first.wrapping_add(first), ..drop })
    }

    /// Returns the number of elements of each of the three parts of `qkv`.
    pub(super) fn size(self) -> usize {
        self.by.context * self.dim
    }

    /// Copies a part of `qkv` to consecutive rows. In `qkv`, rows of a power-of-two width would
    /// fall on the same few cache lines, and products read them many times.
    #[inline(always)]
    pub(super) fn gather(self, into: &mut [f32], qkv: &[f32], part: usize) {
        for (row, into) in into.chunks_exact_mut(self.dim).enumerate() {
            let from = &qkv[self.qkv(part, row)..][..self.dim];
            into.iter_mut().zip(from).for_each(|(into, x)| *into = *x);
        }
    }

    /// Returns the distance between rows of a transposed part: whole vectors, plus one, so that
    /// rows of a power-of-two length do not fall on the same few cache lines.
    pub(super) fn turned_step(self) -> usize {
        self.by.context.next_multiple_of(LANES) + LANES
    }

    /// Returns the number of elements of a transposed part.
    pub(super) fn turned_size(self) -> usize {
        self.dim * self.turned_step()
    }

    /// Copies a part of `qkv` transposed: a row per feature, with zeros after the last token.
    #[inline(always)]
    pub(super) fn gather_turned(self, into: &mut [f32], qkv: &[f32], part: usize) {
        let (step, context) = (self.turned_step(), self.by.context);
        for first in (0..context).step_by(LANES) {
            let n = LANES.min(context - first);
            let rows = self.qkv(part, first);
            for (feature, into) in into.chunks_exact_mut(step).enumerate() {
                for (row, into) in into[first..first + n].iter_mut().enumerate() {
                    *into = qkv[rows + row * self.width + feature];
                }
            }
        }
        into.chunks_exact_mut(step).for_each(|row| row[context..].fill(0.0));
    }
}

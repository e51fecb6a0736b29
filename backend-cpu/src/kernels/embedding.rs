//! Token and position tables.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};

use super::memory::{Output, update, values};
use super::sums::add;
use super::{Piece, rows_per_piece, run_all};

pub(crate) fn forward(
    ids: &[u32],
    context: usize,
    tokens: &Tensor,
    positions: &Tensor,
) -> Result<Tensor> {
    let width = tokens.dims2()?.1;
    let (tokens, positions) = (values(tokens)?, values(positions)?);
    let mut y = Output::new(ids.len() * width);
    let n = rows_per_piece(width);
    let pieces = y.slots().chunks_mut(n * width).zip(ids.chunks(n)).enumerate();
    run_all(pieces.map(|(piece, (y, ids))| Forward {
        y,
        ids,
        start: piece * n,
        tokens: &tokens,
        positions: &positions,
        width,
        context,
    }));
    // SAFETY: each row was written.
    unsafe { y.written((ids.len(), width)) }
}

/// Adds in row order on one thread: rows of one token conflict, and it is little work.
pub(crate) fn backward(
    ids: &[u32],
    context: usize,
    dy: &Tensor,
    d_tokens: &Tensor,
    d_positions: &Tensor,
) -> Result<()> {
    let width = dy.dims2()?.1;
    let dy = values(dy)?;
    update(d_tokens, |d_tokens| {
        update(d_positions, |d_positions| {
            for (row, (&id, dy)) in ids.iter().zip(dy.chunks_exact(width)).enumerate() {
                add(&mut d_tokens[id as usize * width..][..width], dy);
                add(&mut d_positions[row % context * width..][..width], dy);
            }
            Ok(())
        })
    })
}

/// Some rows, from row `start` on.
struct Forward<'a> {
    y: &'a mut [MaybeUninit<f32>],
    ids: &'a [u32],
    start: usize,
    tokens: &'a [f32],
    positions: &'a [f32],
    width: usize,
    context: usize,
}

impl Piece for Forward<'_> {
    #[inline(always)]
    fn run(self) {
        let width = self.width;
        for (row, (y, &id)) in self.y.chunks_exact_mut(width).zip(self.ids).enumerate() {
            let position = (self.start + row) % self.context;
            let token = &self.tokens[id as usize * width..][..width];
            let position = &self.positions[position * width..][..width];
            for ((y, token), position) in y.iter_mut().zip(token).zip(position) {
                y.write(token + position);
            }
        }
    }
}

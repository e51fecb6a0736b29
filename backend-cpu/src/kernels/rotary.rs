//! Rotary positions, row by row.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};
use chimera_core::layers::Rotary;

use super::memory::{Output, values};
use super::{Piece, rows_per_piece, run_all};

pub(crate) fn turn(x: &Tensor, table: &Tensor, by: Rotary) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (context, dim) = table.dims2()?;
    assert!(by.heads * dim <= width);
    let (x, table) = (values(x)?, values(table)?);
    let mut y = Output::new(x.len());
    let n = rows_per_piece(width);
    let pieces = y.slots().chunks_mut(n * width).zip(x.chunks(n * width)).enumerate();
    run_all(pieces.map(|(piece, (y, x))| Turn {
        y,
        x,
        width,
        start: piece * n,
        table: &table,
        context,
        dim,
        by,
    }));
    // SAFETY: each row was written.
    unsafe { y.written((rows, width)) }
}

/// Some rows, from row `start` on.
struct Turn<'a> {
    y: &'a mut [MaybeUninit<f32>],
    x: &'a [f32],
    width: usize,
    start: usize,
    table: &'a [f32],
    context: usize,
    dim: usize,
    by: Rotary,
}

impl Piece for Turn<'_> {
    #[inline(always)]
    fn run(self) {
        let (dim, turned) = (self.dim, self.by.heads * self.dim);
        let sign = if self.by.backward { -1.0 } else { 1.0 };
        let rows = self.y.chunks_exact_mut(self.width).zip(self.x.chunks_exact(self.width));
        for (row, (y, x)) in rows.enumerate() {
            let position = (self.start + row) % self.context;
            let (cos, sin) = self.table[position * dim..][..dim].split_at(dim / 2);
            let (y, y_behind) = y.split_at_mut(turned);
            let (x, x_behind) = x.split_at(turned);
            for (y, x) in y.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
                let ((y_a, y_b), (a, b)) = (y.split_at_mut(dim / 2), x.split_at(dim / 2));
                let outputs = y_a.iter_mut().zip(y_b);
                for (((y_a, y_b), (a, b)), (cos, sin)) in
                    outputs.zip(a.iter().zip(b)).zip(cos.iter().zip(sin))
                {
                    let sin = sign * sin;
                    y_a.write(cos * a - sin * b);
                    y_b.write(cos * b + sin * a);
                }
            }
            y_behind.write_copy_of_slice(x_behind);
        }
    }
}

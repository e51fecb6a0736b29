//! RMS normalisation, row by row.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};

use super::math::sum;
use super::memory::{Output, update, values};
use super::sums::{COLUMNS, ROWS, add};
use super::{Piece, rows_per_piece, run_all};

pub(crate) fn forward(x: &Tensor, gain: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
    let (rows, width) = x.dims2()?;
    let (x, gain) = (values(x)?, values(gain)?);
    let (mut y, mut stats) = (Output::new(x.len()), Output::new(rows));
    let n = rows_per_piece(width);
    let outputs = y.slots().chunks_mut(n * width).zip(stats.slots().chunks_mut(n));
    run_all(outputs.zip(x.chunks(n * width)).map(|((y, stats), x)| Forward {
        y,
        stats,
        x,
        gain: &gain[..width],
        epsilon: epsilon as f32,
    }));
    // SAFETY: each row of both was written.
    unsafe { Ok((y.written((rows, width))?, stats.written((rows, 1))?)) }
}

pub(crate) fn backward_input(
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    gain: &Tensor,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (dy, x, stats, gain) = (values(dy)?, values(x)?, values(stats)?, values(gain)?);
    let residual = residual.map(values).transpose()?;
    let mut dx = Output::new(x.len());
    let n = rows_per_piece(width);
    run_all(dx.slots().chunks_mut(n * width).enumerate().map(|(piece, dx)| BackwardInput {
        dx,
        dy: &dy[piece * n * width..],
        x: &x[piece * n * width..],
        stats: &stats[piece * n..],
        gain: &gain[..width],
        residual: residual.as_ref().map(|residual| &residual[piece * n * width..]),
    }));
    // SAFETY: each row was written.
    unsafe { dx.written((rows, width)) }
}

pub(crate) fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    d_gain: &Tensor,
) -> Result<()> {
    let width = x.dims2()?.1;
    let (dy, x, stats) = (values(dy)?, values(x)?, values(stats)?);
    update(d_gain, |d_gain| {
        let columns = d_gain.chunks_mut(COLUMNS).enumerate();
        run_all(columns.map(|(c, d_gain)| BackwardWeight {
            d_gain,
            dy: &dy,
            x: &x,
            stats: &stats,
            width,
            start: c * COLUMNS,
        }));
        Ok(())
    })
}

type Slots<'a> = &'a mut [MaybeUninit<f32>];

/// Some rows.
struct Forward<'a> {
    y: Slots<'a>,
    stats: Slots<'a>,
    x: &'a [f32],
    gain: &'a [f32],
    epsilon: f32,
}

impl Piece for Forward<'_> {
    #[inline(always)]
    fn run(self) {
        let width = self.gain.len();
        let outputs = self.y.chunks_exact_mut(width).zip(self.stats);
        for ((y, stats), x) in outputs.zip(self.x.chunks_exact(width)) {
            let mean = sum([x], |[x]| x * x) / width as f32;
            let scale = 1.0 / (mean + self.epsilon).sqrt();
            for ((y, x), gain) in y.iter_mut().zip(x).zip(self.gain) {
                y.write(x * scale * gain);
            }
            stats.write(scale);
        }
    }
}

/// As many rows as `dx` has: `scale (g - n mean(g n)) + residual`, with `g = dy gain` and `n` the normalised `x`.
struct BackwardInput<'a> {
    dx: Slots<'a>,
    dy: &'a [f32],
    x: &'a [f32],
    stats: &'a [f32],
    gain: &'a [f32],
    residual: Option<&'a [f32]>,
}

impl Piece for BackwardInput<'_> {
    #[inline(always)]
    fn run(self) {
        let (gain, width) = (self.gain, self.gain.len());
        for (row, dx) in self.dx.chunks_exact_mut(width).enumerate() {
            let (dy, x) = (&self.dy[row * width..][..width], &self.x[row * width..][..width]);
            let scale = self.stats[row];
            let gx = sum([dy, gain, x], |[dy, gain, x]| dy * gain * x);
            let slope = gx * scale * scale / width as f32;
            let d = dy.iter().zip(x).zip(gain);
            let d = d.map(|((dy, x), gain)| scale * (dy * gain - x * slope));
            match self.residual {
                None => dx.iter_mut().zip(d).for_each(|(dx, d)| _ = dx.write(d)),
                Some(residual) => {
                    let residual = &residual[row * width..][..width];
                    for ((dx, d), residual) in dx.iter_mut().zip(d).zip(residual) {
                        dx.write(d + residual);
                    }
                }
            }
        }
    }
}

/// All rows of the columns from `start` on, as many as `d_gain` has.
struct BackwardWeight<'a> {
    d_gain: &'a mut [f32],
    dy: &'a [f32],
    x: &'a [f32],
    stats: &'a [f32],
    width: usize,
    start: usize,
}

impl Piece for BackwardWeight<'_> {
    #[inline(always)]
    fn run(self) {
        let n = self.d_gain.len();
        let size = ROWS * self.width;
        let blocks = self.dy.chunks(size).zip(self.x.chunks(size));
        for ((dy, x), stats) in blocks.zip(self.stats.chunks(ROWS)) {
            let mut gain = [0.0; COLUMNS];
            let rows = dy.chunks_exact(self.width).zip(x.chunks_exact(self.width));
            for ((dy, x), scale) in rows.zip(stats) {
                let (dy, x) = (&dy[self.start..][..n], &x[self.start..][..n]);
                match (dy.first_chunk::<COLUMNS>(), x.first_chunk::<COLUMNS>()) {
                    (Some(dy), Some(x)) => add_row(&mut gain, dy, x, *scale),
                    _ => add_row(&mut gain, dy, x, *scale),
                }
            }
            add(self.d_gain, &gain);
        }
    }
}

#[inline(always)]
fn add_row(gain: &mut [f32], dy: &[f32], x: &[f32], scale: f32) {
    for ((gain, dy), x) in gain.iter_mut().zip(dy).zip(x) {
        *gain = (dy * x).mul_add(scale, *gain);
    }
}

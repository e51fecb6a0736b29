//! Layer norm and RMS norm, row by row. They share one loop, compiled twice: only layer norm is
//! `CENTRED`, subtracts the mean from each row and adds a bias.

use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};

use super::math::sum;
use super::memory::{Output, update, values};
use super::sums::{COLUMNS, ROWS, add};
use super::{Piece, rows_per_piece, run_all};

/// Computes layer norm if there is a bias, and otherwise RMS norm.
pub(crate) fn forward(
    x: &Tensor,
    gain: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f64,
) -> Result<(Tensor, Tensor)> {
    match bias {
        Some(bias) => normalise::<true>(x, gain, bias, epsilon),
        None => normalise::<false>(x, gain, gain, epsilon),
    }
}

pub(crate) fn backward_input(
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    gain: &Tensor,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    if is_centred(stats)? {
        normalise_dx::<true>(dy, x, stats, gain, residual)
    } else {
        normalise_dx::<false>(dy, x, stats, gain, residual)
    }
}

/// Layer norm also has the gradient of a bias.
pub(crate) fn backward_weight(
    dy: &Tensor,
    x: &Tensor,
    stats: &Tensor,
    d_gain: &Tensor,
    d_bias: Option<&Tensor>,
) -> Result<()> {
    let width = x.dims2()?.1;
    let (dy, x, stats) = (values(dy)?, values(x)?, values(stats)?);
    let rows = Rows { dy: &dy, x: &x, stats: &stats, width };
    update(d_gain, |d_gain| {
        let gains = d_gain.chunks_mut(COLUMNS).enumerate();
        let Some(d_bias) = d_bias else {
            run_all(gains.map(|(c, d_gain)| {
                let (d_bias, start) = (&mut [][..], c * COLUMNS);
                BackwardWeight::<false> { d_gain, d_bias, rows, start }
            }));
            return Ok(());
        };
        update(d_bias, |d_bias| {
            run_all(gains.zip(d_bias.chunks_mut(COLUMNS)).map(|((c, d_gain), d_bias)| {
                let start = c * COLUMNS;
                BackwardWeight::<true> { d_gain, d_bias, rows, start }
            }));
            Ok(())
        })
    })
}

/// Returns true if they are layer norm's, which also keeps the mean of each row.
fn is_centred(stats: &Tensor) -> Result<bool> {
    Ok(n_stats(true) == stats.dims2()?.1)
}

/// Numbers kept per row: its mean if it is centred, and its scale.
const fn n_stats(is_centred: bool) -> usize {
    if is_centred { 2 } else { 1 }
}

/// Without centring, `bias` is not read.
fn normalise<const CENTRED: bool>(
    x: &Tensor,
    gain: &Tensor,
    bias: &Tensor,
    epsilon: f64,
) -> Result<(Tensor, Tensor)> {
    let (rows, width) = x.dims2()?;
    let (x, gain, bias) = (values(x)?, values(gain)?, values(bias)?);
    let n_stats = n_stats(CENTRED);
    let (mut y, mut stats) = (Output::new(x.len()), Output::new(n_stats * rows));
    let n = rows_per_piece(width);
    let outputs = y.slots().chunks_mut(n * width).zip(stats.slots().chunks_mut(n * n_stats));
    run_all(outputs.zip(x.chunks(n * width)).map(|((y, stats), x)| Forward::<CENTRED> {
        y,
        stats,
        x,
        gain: &gain[..width],
        bias: &bias[..width],
        epsilon: epsilon as f32,
    }));
    // SAFETY: each row of both was written.
    unsafe { Ok((y.written((rows, width))?, stats.written((rows, n_stats))?)) }
}

fn normalise_dx<const CENTRED: bool>(
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
    let pieces = dx.slots().chunks_mut(n * width).enumerate();
    run_all(pieces.map(|(piece, dx)| BackwardInput::<CENTRED> {
        dx,
        dy: &dy[piece * n * width..],
        x: &x[piece * n * width..],
        stats: &stats[piece * n * n_stats(CENTRED)..],
        gain: &gain[..width],
        residual: residual.as_ref().map(|residual| &residual[piece * n * width..]),
    }));
    // SAFETY: each row was written.
    unsafe { dx.written((rows, width)) }
}

type Slots<'a> = &'a mut [MaybeUninit<f32>];

/// Returns the mean and scale of a row, from its kept numbers.
#[inline(always)]
fn mean_and_scale<const CENTRED: bool>(stats: &[f32]) -> (f32, f32) {
    if CENTRED { (stats[0], stats[1]) } else { (0.0, stats[0]) }
}

struct Forward<'a, const CENTRED: bool> {
    y: Slots<'a>,
    stats: Slots<'a>,
    x: &'a [f32],
    gain: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
}

impl<const CENTRED: bool> Piece for Forward<'_, CENTRED> {
    #[inline(always)]
    fn run(self) {
        let width = self.gain.len();
        let outputs =
            self.y.chunks_exact_mut(width).zip(self.stats.chunks_exact_mut(n_stats(CENTRED)));
        for ((y, stats), x) in outputs.zip(self.x.chunks_exact(width)) {
            let mean = if CENTRED { sum([x], |[x]| x) / width as f32 } else { 0.0 };
            let variance = sum([x], |[x]| (x - mean) * (x - mean)) / width as f32;
            let scale = 1.0 / (variance + self.epsilon).sqrt();
            for (((y, x), gain), bias) in y.iter_mut().zip(x).zip(self.gain).zip(self.bias) {
                let normed = (x - mean) * scale;
                y.write(if CENTRED { normed.mul_add(*gain, *bias) } else { normed * gain });
            }
            if CENTRED {
                stats[0].write(mean);
            }
            stats[n_stats(CENTRED) - 1].write(scale);
        }
    }
}

/// As many rows as `dx` has: `scale (g - mean(g) - n mean(g n)) + residual`, with `g = dy gain` and
/// `n` the normalised `x`. Without centring there is no `mean(g)`.
struct BackwardInput<'a, const CENTRED: bool> {
    dx: Slots<'a>,
    dy: &'a [f32],
    x: &'a [f32],
    stats: &'a [f32],
    gain: &'a [f32],
    residual: Option<&'a [f32]>,
}

impl<const CENTRED: bool> Piece for BackwardInput<'_, CENTRED> {
    #[inline(always)]
    fn run(self) {
        let (gain, width) = (self.gain, self.gain.len());
        for (row, dx) in self.dx.chunks_exact_mut(width).enumerate() {
            let (dy, x) = (&self.dy[row * width..][..width], &self.x[row * width..][..width]);
            let (mean, scale) = mean_and_scale::<CENTRED>(&self.stats[row * n_stats(CENTRED)..]);
            let g = || sum([dy, gain], |[dy, gain]| dy * gain) / width as f32;
            let g = if CENTRED { g() } else { 0.0 };
            let gn = sum([dy, gain, x], |[dy, gain, x]| dy * gain * (x - mean));
            let slope = gn * scale * scale / width as f32;
            let d = dy.iter().zip(x).zip(gain);
            let d = d.map(|((dy, x), gain)| scale * (dy * gain - g - (x - mean) * slope));
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

/// The rows over which gradients of weights are summed.
#[derive(Clone, Copy)]
struct Rows<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    stats: &'a [f32],
    width: usize,
}

/// All rows of `d_gain.len()` columns from `start` on. Without centring `d_bias` is empty.
struct BackwardWeight<'a, const CENTRED: bool> {
    d_gain: &'a mut [f32],
    d_bias: &'a mut [f32],
    rows: Rows<'a>,
    start: usize,
}

impl<const CENTRED: bool> Piece for BackwardWeight<'_, CENTRED> {
    #[inline(always)]
    fn run(self) {
        let Rows { dy, x, stats, width } = self.rows;
        let n = self.d_gain.len();
        let blocks = dy.chunks(ROWS * width).zip(x.chunks(ROWS * width));
        for ((dy, x), stats) in blocks.zip(stats.chunks(ROWS * n_stats(CENTRED))) {
            let (mut gain, mut bias) = ([0.0; COLUMNS], [0.0; COLUMNS]);
            let rows = dy.chunks_exact(width).zip(x.chunks_exact(width));
            for ((dy, x), stats) in rows.zip(stats.chunks_exact(n_stats(CENTRED))) {
                let (dy, x) = (&dy[self.start..][..n], &x[self.start..][..n]);
                let stats = mean_and_scale::<CENTRED>(stats);
                match (dy.first_chunk::<COLUMNS>(), x.first_chunk::<COLUMNS>()) {
                    (Some(dy), Some(x)) => add_row::<CENTRED>(&mut gain, &mut bias, dy, x, stats),
                    _ => add_row::<CENTRED>(&mut gain, &mut bias, dy, x, stats),
                }
            }
            add(self.d_gain, &gain);
            add(self.d_bias, &bias);
        }
    }
}

#[inline(always)]
fn add_row<const CENTRED: bool>(
    gain: &mut [f32],
    bias: &mut [f32],
    dy: &[f32],
    x: &[f32],
    (mean, scale): (f32, f32),
) {
    for (((gain, bias), dy), x) in gain.iter_mut().zip(bias).zip(dy).zip(x) {
        *gain = (dy * (x - mean)).mul_add(scale, *gain);
        if CENTRED {
            *bias += dy;
        }
    }
}

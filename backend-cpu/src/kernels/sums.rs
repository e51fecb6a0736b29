//! Sums: of two tensors, of columns, of squares.

use candle_core::{Device, Result, Tensor};

use super::math::LANES;
use super::memory::{update, values};
use super::{PIECE, Piece, run_all};

/// Columns that are summed side by side: four vectors of 16.
pub(super) const COLUMNS: usize = 64;

/// Rows that are summed separately before they join the total, which keeps rounding small.
pub(super) const ROWS: usize = 64;

pub(crate) fn accumulate(into: &Tensor, x: &Tensor) -> Result<()> {
    let x = values(x)?;
    update(into, |into| {
        assert_eq!(into.len(), x.len());
        let pieces = into.chunks_mut(PIECE).zip(x.chunks(PIECE));
        run_all(pieces.map(|(into, x)| Add { into, x }));
        Ok(())
    })
}

pub(crate) fn squared_norms(tensors: &[&Tensor]) -> Result<Tensor> {
    let norms = tensors.iter().map(|x| squared_norm(x)).collect::<Result<Vec<f32>>>()?;
    Tensor::from_vec(norms, tensors.len(), &Device::Cpu)
}

fn squared_norm(x: &Tensor) -> Result<f32> {
    let x = values(x)?;
    let mut sums = vec![0.0; x.len().div_ceil(PIECE)];
    let pieces = sums.iter_mut().zip(x.chunks(PIECE));
    run_all(pieces.map(|(sum, x)| Squares { sum, x }));
    Ok(sums.iter().sum::<f64>() as f32)
}

/// Adds the sum of each column of `x` to `into`.
pub(super) fn add_columns(into: &mut [f32], x: &[f32]) {
    let width = into.len();
    run_all(into.chunks_mut(COLUMNS).enumerate().map(|(c, into)| Columns {
        into,
        x,
        width,
        start: c * COLUMNS,
    }));
}

#[inline(always)]
pub(super) fn add(into: &mut [f32], x: &[f32]) {
    for (into, x) in into.iter_mut().zip(x) {
        *into += x;
    }
}

struct Add<'a> {
    into: &'a mut [f32],
    x: &'a [f32],
}

impl Piece for Add<'_> {
    #[inline(always)]
    fn run(self) {
        add(self.into, self.x);
    }
}

/// The sum of squares, in f64 so that many small ones count. (It is passed on in f32, where norms
/// above 1.8e19 overflow; those are useless anyway.)
struct Squares<'a> {
    sum: &'a mut f64,
    x: &'a [f32],
}

impl Piece for Squares<'_> {
    #[inline(always)]
    fn run(self) {
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        let mut lanes = [0.0; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                let x = f64::from(chunk[lane]);
                lanes[lane] = x.mul_add(x, lanes[lane]);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(x) * f64::from(x);
        }
        *self.sum = lanes.iter().sum();
    }
}

/// [`add_columns`] for the columns from `start` on.
struct Columns<'a> {
    into: &'a mut [f32],
    x: &'a [f32],
    width: usize,
    start: usize,
}

impl Piece for Columns<'_> {
    #[inline(always)]
    fn run(self) {
        for rows in self.x.chunks(ROWS * self.width) {
            let mut sums = [0.0; COLUMNS];
            for row in rows.chunks_exact(self.width) {
                let row = &row[self.start..][..self.into.len()];
                // The compiler knows the usual length, so sums stay in registers.
                match row.first_chunk::<COLUMNS>() {
                    Some(row) => add(&mut sums, row),
                    None => add(&mut sums, row),
                }
            }
            add(self.into, &sums);
        }
    }
}

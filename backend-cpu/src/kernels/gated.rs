//! Gated activations: a function of one half of each row, times the other half.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use candle_core::{Result, Tensor};
use chimera_core::layers::Activation;

use super::activation::{Function, with_function};
use super::math::LANES;
use super::memory::{Output, values};
use super::{Piece, rows_per_piece, run_all};

pub(crate) fn forward(x: &Tensor, f: Activation) -> Result<Tensor> {
    with_function!(f, F => each::<F>(x))
}

pub(crate) fn backward(dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
    with_function!(f, F => each_dx::<F>(dy, x))
}

fn each<F: Function>(x: &Tensor) -> Result<Tensor> {
    let (rows, width) = (x.dims2()?.0, x.dims2()?.1 / 2);
    let x = values(x)?;
    let mut y = Output::new(rows * width);
    let n = rows_per_piece(2 * width) * width;
    let pieces = y.slots().chunks_mut(n).zip(x.chunks(2 * n));
    run_all(pieces.map(|(y, x)| Forward { y, x, width, function: PhantomData::<F> }));
    // SAFETY: each row was written.
    unsafe { y.written((rows, width)) }
}

fn each_dx<F: Function>(dy: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (rows, width) = dy.dims2()?;
    let (dy, x) = (values(dy)?, values(x)?);
    assert_eq!(2 * dy.len(), x.len());
    let (mut dx, mut y) = (Output::new(x.len()), Output::new(dy.len()));
    let n = rows_per_piece(2 * width) * width;
    let outputs = dx.slots().chunks_mut(2 * n).zip(y.slots().chunks_mut(n));
    let pieces = outputs.zip(dy.chunks(n).zip(x.chunks(2 * n)));
    run_all(pieces.map(|((dx, y), (dy, x))| Backward {
        dx,
        y,
        dy,
        x,
        width,
        function: PhantomData::<F>,
    }));
    // SAFETY: each row of both was written.
    unsafe { Ok((dx.written((rows, 2 * width))?, y.written((rows, width))?)) }
}

type Slots<'a> = &'a mut [MaybeUninit<f32>];

/// Some rows, whose gate and up are `width` long each.
struct Forward<'a, F> {
    y: Slots<'a>,
    x: &'a [f32],
    width: usize,
    function: PhantomData<F>,
}

impl<F: Function> Piece for Forward<'_, F> {
    #[inline(always)]
    fn run(self) {
        let rows = self.y.chunks_exact_mut(self.width).zip(self.x.chunks_exact(2 * self.width));
        for (y, x) in rows {
            let (gate, up) = x.split_at(self.width);
            for ((y, &gate), up) in y.iter_mut().zip(gate).zip(up) {
                y.write(F::both(gate).0 * up);
            }
        }
    }
}

struct Backward<'a, F> {
    dx: Slots<'a>,
    y: Slots<'a>,
    dy: &'a [f32],
    x: &'a [f32],
    width: usize,
    function: PhantomData<F>,
}

impl<F: Function> Piece for Backward<'_, F> {
    #[inline(always)]
    fn run(self) {
        let width = self.width;
        let outputs = self.dx.chunks_exact_mut(2 * width).zip(self.y.chunks_exact_mut(width));
        let inputs = self.dy.chunks_exact(width).zip(self.x.chunks_exact(2 * width));
        for ((dx, y), (dy, x)) in outputs.zip(inputs) {
            let ((d_gate, d_up), (gate, up)) = (dx.split_at_mut(width), x.split_at(width));
            // The compiler vectorises loops over whole vectors, but not over six slices at once.
            let inputs = [dy, gate, up].map(<[f32]>::as_chunks::<LANES>);
            let outputs = [d_gate, d_up, y].map(<[MaybeUninit<f32>]>::as_chunks_mut::<LANES>);
            let [(dys, dy), (gates, gate), (ups, up)] = inputs;
            let [(d_gates, d_gate), (d_ups, d_up), (ys, y)] = outputs;
            for i in 0..dys.len() {
                let [to_gate, to_up, value] = vectors::<F>(&dys[i], &gates[i], &ups[i]);
                d_gates[i].write_copy_of_slice(&to_gate);
                d_ups[i].write_copy_of_slice(&to_up);
                ys[i].write_copy_of_slice(&value);
            }
            if !dy.is_empty() {
                let [dy, gate, up] = [dy, gate, up].map(filled);
                let all = vectors::<F>(&dy, &gate, &up);
                for (to, from) in [d_gate, d_up, y].into_iter().zip(all) {
                    to.write_copy_of_slice(&from[..to.len()]);
                }
            }
        }
    }
}

/// Returns the gradients of gates and of the values that they scale, and the products of both.
#[inline(always)]
fn vectors<F: Function>(
    dy: &[f32; LANES],
    gate: &[f32; LANES],
    up: &[f32; LANES],
) -> [[f32; LANES]; 3] {
    let mut all = [[0.0; LANES]; 3];
    for lane in 0..LANES {
        let (value, slope) = F::both(gate[lane]);
        all[0][lane] = dy[lane] * slope * up[lane];
        all[1][lane] = dy[lane] * value;
        all[2][lane] = value * up[lane];
    }
    all
}

/// Returns some elements, filled up to a vector with zeros.
#[inline(always)]
fn filled(from: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..from.len()].copy_from_slice(from);
    lanes
}

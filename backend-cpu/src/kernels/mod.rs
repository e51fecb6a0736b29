//! The layers on the processor, with one file per family.
//!
//! Work is cut into pieces by shape only, and each piece is summed in one order, so the bits of a
//! result do not depend on the assignment of pieces to threads.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod gated;
pub(crate) mod linear;
mod math;
mod memory;
pub(crate) mod newton_schulz;
pub(crate) mod norm;
mod optimizers;
pub(crate) mod packed;
pub(crate) mod pool;
mod products;
pub(crate) mod rotary;
pub(crate) mod sums;

use candle_core::{Device, Result, Tensor};
pub(crate) use optimizers::adamw;
pub(crate) use optimizers::lamb;
pub(crate) use optimizers::sgd;
pub(crate) use packed::copy_into;
use rayon::prelude::*;

pub use products::operands::Bf16Products;
pub(crate) use products::operands::Operands;
pub use products::peak::measured_peak;

/// Concatenates the rows of `tensors`.
pub(crate) fn join(tensors: &[&Tensor]) -> Result<Tensor> {
    let mut shape = tensors[0].dims().to_vec();
    shape[0] = tensors.iter().map(|x| x.dims()[0]).sum();
    let mut data = Vec::with_capacity(shape.iter().product());
    tensors.iter().try_for_each(|x| copy_into(x, &mut data))?;
    Tensor::from_vec(data, shape, &Device::Cpu)
}

/// Elements per piece of elementwise work: 64 KiB, so that a few operands fit a core's cache.
const PIECE: usize = 16 * 1024;

/// Rows per piece if rows are `width` long.
fn rows_per_piece(width: usize) -> usize {
    (PIECE / width.max(1)).max(1)
}

/// A piece of a layer's work, independent of the other pieces.
///
/// `run`, and everything it calls, must be `#[inline(always)]`: otherwise it stays compiled for the
/// oldest processor. (Closures cannot be, so a piece is a struct.)
trait Piece: Send {
    fn run(self);
}

/// Runs all pieces on all threads of the current pool.
fn run_all<P: Piece>(pieces: impl ExactSizeIterator<Item = P>) {
    if rayon::current_num_threads() == 1 || pieces.len() == 1 {
        pieces.for_each(run_vectorized);
    } else {
        let pieces: Vec<P> = pieces.collect();
        pieces.into_par_iter().for_each(run_vectorized);
    }
}

/// Runs a piece compiled for the widest vectors of this processor.
fn run_vectorized<P: Piece>(piece: P) {
    struct Run<P>(P);

    impl<P: Piece> pulp::WithSimd for Run<P> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) {
            self.0.run();
        }
    }

    pulp::Arch::new().dispatch(Run(piece));
}

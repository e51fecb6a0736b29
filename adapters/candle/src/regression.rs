//! Stages of candle's own modules, in a chain that is fitted to numbers.

use std::fmt;
use std::marker::PhantomData;

use candle_core::Tensor;
use candle_nn::{Module, VarBuilder};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::stage::Micro;

use crate::{Candle, CandleStage, Piece, Ran, stage};

/// A module as a piece of a chain. The output of the last piece is compared with the targets.
pub struct Regression<M, B> {
    candle: Candle,
    width: usize,
    build: B,
    module: PhantomData<fn() -> M>,
}

/// Makes a stage of the module that `build` builds. The first one of a chain receives samples of
/// `width` numbers. The output of the last one is compared with as many targets, by the mean
/// squared error.
///
/// # Errors
/// If the module cannot be built.
pub fn regression<M, B>(
    candle: &Candle,
    width: usize,
    build: B,
) -> Result<CandleStage<Regression<M, B>>, Fault>
where
    M: Module,
    B: Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send,
{
    let piece = Regression { candle: candle.clone(), width, build, module: PhantomData };
    stage(candle, piece).map_err(|e| Fault::new(Class::Usage, Rank(0), e.to_string()))
}

impl<M, B> Piece for Regression<M, B>
where
    M: Module,
    B: Fn(VarBuilder<'_>) -> candle_core::Result<M> + Send,
{
    type Item = f32;
    type Module = M;

    fn build(&self, vb: VarBuilder<'_>) -> candle_core::Result<M> {
        (self.build)(vb)
    }

    fn forward(
        &self,
        module: &M,
        micro: &Micro<'_, f32>,
        x: Option<&Tensor>,
    ) -> candle_core::Result<Ran> {
        let (device, dtype) = (self.candle.device(), self.candle.tensor_dtype());
        let inputs = || {
            let rows = (micro.input.len() / self.width, self.width);
            Tensor::from_slice(micro.input, rows, device)?.to_dtype(dtype)
        };
        let y = module.forward(&x.cloned().map_or_else(inputs, Ok)?)?;
        if micro.target.is_empty() {
            return Ok(Ran::Activation(y));
        }
        let targets = Tensor::from_slice(micro.target, y.shape(), device)?.to_dtype(dtype)?;
        Ok(Ran::Loss(((y - targets)?.sqr()?.sum_all()? * micro.loss_scale)?))
    }
}

impl<M, B> fmt::Debug for Regression<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regression").field("width", &self.width).finish_non_exhaustive()
    }
}

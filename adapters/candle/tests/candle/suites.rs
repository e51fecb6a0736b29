//! The conformance suites of the engine.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use chimera_candle::{Candle, Piece, Ran, stage};
use chimera_core::stage::{Data, Micro};
use chimera_core::{device, stage as stages};

use super::llama::{Ids, Llama};

#[test]
fn candle_is_a_device() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        device::conformance::run(&Candle::cpu(dtype), tolerance);
    }
}

#[test]
fn a_piece_is_a_stage() {
    let candle = Candle::cpu(DType::F64);
    let made =
        || (0..3).map(|id| stage(&candle, Llama::of_stage(id, 3)).expect("a stage")).collect();
    stages::conformance::all(&candle, made, &Ids);
}

/// Layers of `sin(2.5 x w)`, the last of which counts a thousandth of it. The loss is curved, and
/// its gradient so short that an f32 could not show a short step along it.
struct Wave {
    is_first: bool,
    is_last: bool,
    nth: usize,
}

impl Piece for Wave {
    type Item = f32;
    type Module = Tensor;

    fn build(&self, vb: VarBuilder<'_>) -> candle_core::Result<Tensor> {
        let init = Init::Uniform { lo: -1.0, up: 1.0 };
        vb.get_with_hints((2, 2), &format!("wave.{}", self.nth), init)
    }

    fn forward(
        &self,
        w: &Tensor,
        micro: &Micro<'_, f32>,
        x: Option<&Tensor>,
    ) -> candle_core::Result<Ran> {
        let rows = |numbers: &[f32]| {
            Tensor::from_slice(numbers, (numbers.len() / 2, 2), &Device::Cpu)?.to_dtype(DType::F64)
        };
        let x = match x {
            Some(x) if !self.is_first => x.clone(),
            _ => rows(micro.input)?,
        };
        let y = (x.matmul(w)? * 2.5)?.sin()?;
        if !self.is_last || micro.target.is_empty() {
            return Ok(Ran::Activation(y));
        }
        let error = ((y * 1e-3)? - rows(micro.target)?)?;
        Ok(Ran::Loss((error.sqr()?.sum_all()? * micro.loss_scale)?))
    }
}

/// Points on a curve.
struct Curve;

impl Data<f32> for Curve {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<f32>, y: &mut Vec<f32>) -> std::io::Result<()> {
        let at = (7 * step + n) as f32;
        x.extend([at.sin(), at.cos()]);
        y.extend([1.0 + (0.7 * at).sin(), 0.3]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        2
    }
}

#[test]
fn a_deep_piece_whose_gradient_is_short_is_a_stage() {
    let candle = Candle::cpu(DType::F64);
    for depth in [12, 16] {
        let wave = |nth| Wave { is_first: nth == 0, is_last: nth + 1 == depth, nth };
        let made = || (0..depth).map(|nth| stage(&candle, wave(nth)).expect("a stage")).collect();
        stages::conformance::all(&candle, made, &Curve);
    }
}

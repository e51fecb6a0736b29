//! The suites of the engine.

use candle_core::DType;
use chimera_candle::{Candle, stage};
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

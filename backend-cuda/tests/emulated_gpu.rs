//! The backend for NVIDIA GPUs on emulated ones: the suites that every device passes, and training.

#![allow(unsafe_code)] // opening the emulated libraries

mod emulated;
#[path = "emulated/memory.rs"]
mod memory;

use chimera_backend_candle::gpu::Element;
use chimera_core::device::reference::Reference;
use chimera_core::equivalence::{Run, RunError};
use chimera_core::ids::Rank;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_core::{device, layers};

#[test]
fn f32_conforms() {
    let gpu = emulated::gpu(0, Element::F32);
    device::conformance::run(&gpu, 1e-5);
    layers::conformance::run(&gpu, 1e-5);
}

#[test]
fn bf16_conforms() {
    let round = |x| half::bf16::from_f32(x).to_f32();
    let gpu = emulated::gpu(0, Element::Bf16);
    device::conformance::run(&gpu, 1e-5); // weights, gradients and moments stay f32
    layers::conformance::run_rounded(&gpu, 1e-2, round);
}

#[test]
fn f32_trains_as_the_reference() -> Result<(), RunError> {
    trains(Element::F32, 1e-4)
}

#[test]
fn bf16_trains_beside_the_reference() -> Result<(), RunError> {
    trains(Element::Bf16, 1e-2)
}

/// Schedules with a worker to a thread, each with a stream of its own: on one GPU, and on two in turn.
fn trains(activations: Element, tolerance: f64) -> Result<(), RunError> {
    for (schedule, depth, architecture) in [
        ("dapple", 1, Architecture::GPT2),
        ("1f1b", 2, Architecture::GPT2),
        ("chimera", 2, Architecture::BERT),
        ("chimera", 4, Architecture::GPT2),
    ] {
        let mut run = run(schedule, depth);
        run.model.architecture = architecture;
        let expected = run.train(|_| Ok(Reference))?.losses;
        for n_gpus in 1..=depth.min(2) {
            let gpu = |rank: Rank| emulated::gpu(rank.index() % n_gpus, activations);
            let got = run.train(|rank| Ok(gpu(rank)))?.losses;
            assert_eq!(got.len(), 4);
            for (got, expected) in got.iter().zip(&expected) {
                let error = (got - expected).abs() / expected;
                let case = format!("{schedule}, {depth} workers on {n_gpus}");
                assert!(error < tolerance, "{case}: {got} is not {expected}");
            }
        }
    }
    Ok(())
}

fn run(schedule: &'static str, depth: usize) -> Run {
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 4,
        hidden: 8,
        heads: 2,
        context: 6,
        vocab: 19,
        tied: false,
    };
    Run {
        schedule,
        shape: Shape::new(depth, 4),
        model,
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 1,
        steps: 4,
    }
}

//! The GPU's kernels on an emulated one: the suite that every device passes.

#![allow(unsafe_code)] // memory of the emulated device, and the kernels compiled into a library

mod emulated;
#[path = "emulated/memory.rs"]
mod memory;

use std::time::Duration;

use chimera_backend_cuda::gpu::Element;
use chimera_core::equivalence::{Run, RunError};
use chimera_core::fault::Class;
use chimera_core::kernels::conformance;
use chimera_core::kernels::reference::Reference;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;

#[test]
fn f32_conforms() {
    conformance::run(&emulated::gpu(Element::F32), 1e-5);
}

#[test]
fn bf16_conforms() {
    let round = |x| half::bf16::from_f32(x).to_f32();
    conformance::run_rounded(&emulated::gpu(Element::Bf16), 1e-2, round);
}

#[test]
fn f32_trains_as_the_reference() -> Result<(), RunError> {
    trains(Element::F32, 1e-4)
}

#[test]
fn bf16_trains_beside_the_reference() -> Result<(), RunError> {
    trains(Element::Bf16, 1e-2)
}

#[test]
fn memory_that_runs_out_is_accounted_for() {
    let on = |bytes: usize| {
        let run = run("chimera", 2);
        run.train(|_| Ok(emulated::gpu_with(Element::F32, bytes, Duration::ZERO)))
    };
    // The least that suffices lies somewhere; a little less runs out in a step.
    let (mut least, mut most) = (1 << 10, 1 << 24);
    while most - least > 1 << 10 {
        let middle = (least + most) / 2;
        match on(middle) {
            Ok(_) => most = middle,
            Err(_) => least = middle,
        }
    }
    let Err(RunError::Fault(fault)) = on(least) else { panic!("{least} bytes are enough") };
    assert_eq!((fault.class, fault.class.code()), (Class::OutOfMemory, 8));
    let text = fault.to_string();
    for word in ["bytes asked", "weights", "gradients", "moments", "residuals", "recompute full"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_step_lasts_until_its_device_is_done() -> Result<(), RunError> {
    let pause = Duration::from_millis(5);
    let trained =
        run("1f1b", 2).train(|_| Ok(emulated::gpu_with(Element::F32, usize::MAX, pause)))?;
    assert_eq!(trained.seconds.len(), 4);
    assert!(trained.seconds.iter().all(|s| *s >= pause.as_secs_f64()), "{:?}", trained.seconds);
    Ok(())
}

/// Schedules with a worker to a thread, each with a device of its own.
fn trains(activations: Element, tolerance: f64) -> Result<(), RunError> {
    use Architecture::{Bert, Gpt2};
    for (schedule, depth, architecture) in
        [("dapple", 1, Gpt2), ("1f1b", 2, Gpt2), ("chimera", 2, Bert), ("chimera", 4, Gpt2)]
    {
        let mut run = run(schedule, depth);
        run.model.architecture = architecture;
        let expected = run.train(|_| Ok(Reference))?.losses;
        let got = run.train(|_| Ok(emulated::gpu(activations)))?.losses;
        assert_eq!(got.len(), 4);
        for (got, expected) in got.iter().zip(&expected) {
            let error = (got - expected).abs() / expected;
            assert!(error < tolerance, "{schedule}, {depth} workers: {got} is not {expected}");
        }
    }
    Ok(())
}

fn run(schedule: &'static str, depth: usize) -> Run {
    let model = ModelConfig {
        architecture: Architecture::Gpt2,
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

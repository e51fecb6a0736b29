//! The memory that ranks use on an emulated GPU, to the last tensor, compared with the memory
//! model.
//!
//! A message counts on neither side until it is received. The model leaves out losses until the
//! step sync and BERT's lengths: a few bytes.

use chimera_backend_cuda::Format;
use chimera_core::lower::Recompute::{self, Full, None, Selective};
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_testkit::equivalence::{RunError, TrialRun};

use super::{emulated, llama};

/// The memory model promises 5 %; what it leaves out here is far less.
const TOLERANCE: f64 = 0.001;

/// A schedule and its depth, its recomputation, and whether backwards are split.
type Case = (&'static str, usize, Recompute, bool);

#[test]
fn f32_takes_what_is_foreseen() -> Result<(), RunError> {
    let cases = [
        ("dapple", 1, None, false),
        ("gpipe", 2, None, false),
        ("gpipe", 2, Full, true),
        ("1f1b", 2, None, true),
        ("1f1b", 2, Full, false),
        ("1f1b", 2, Selective, false),
        ("chimera", 2, None, false),
        ("chimera", 2, Full, true),
        ("zb-v", 2, None, false),
    ];
    are_foreseen(Format::F32, &cases)
}

#[test]
fn bf16_takes_what_is_foreseen() -> Result<(), RunError> {
    let cases = [("1f1b", 1, None, false), ("chimera", 2, Full, true)];
    are_foreseen(Format::Bf16, &cases)
}

/// Checks a GPT-2 in which logits and tables take most memory, and a Llama and a BERT in which
/// activations do.
fn are_foreseen(format: Format, cases: &[Case]) -> Result<(), RunError> {
    // The emulation of tensor cores is slow.
    let layers = if format == Format::Bf16 { 2 } else { 4 };
    for (schedule, depth, recompute, split_backward) in cases.iter().copied() {
        for (architecture, (hidden, context, vocab)) in
            Architecture::ALL.into_iter().zip([(8, 12, 309), (16, 16, 17), (16, 16, 17)])
        {
            let mut model = ModelConfig {
                architecture,
                layers,
                hidden,
                heads: 2,
                context,
                vocab,
                tied: false,
                llama: Option::None,
                end_of_text: Option::None,
            };
            model.llama = llama(&model);
            let shape = Shape::new(depth, 2 * depth as u32);
            let micro_batch_size = 2;
            let run = TrialRun {
                schedule,
                shape,
                model,
                recompute,
                split_backward,
                micro_batch_size,
                steps: 1,
            };
            check(&run, format)?;
        }
    }
    Ok(())
}

fn check(run: &TrialRun, format: Format) -> Result<(), RunError> {
    let foreseen = run.foreseen(format.activations().bytes() as u64)?;
    let gpus: Vec<_> = foreseen.iter().map(|_| emulated::gpu(0, format)).collect();
    let trained = run.train(|rank| Ok(gpus[rank.index()].clone()))?;
    assert!(trained.losses.iter().all(|loss| loss.is_finite()), "{run:?}: {:?}", trained.losses);
    for (rank, (gpu, foreseen)) in gpus.iter().zip(foreseen).enumerate() {
        let used = gpu.driver().held_peak() as f64;
        let error = (foreseen / used - 1.0).abs();
        assert!(error < TOLERANCE, "rank {rank} of {run:?}: {used} bytes, {foreseen} foreseen");
    }
    Ok(())
}

//! The processor with products in bf16: the suites that every device passes, and training.

use chimera_backend_cpu::{Bf16Products, Candle};
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, Llama, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_core::{device, layers};
use chimera_testkit::equivalence::{RunError, TrialRun};
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// Returns the device in each way that this processor can multiply.
fn devices() -> impl Iterator<Item = Candle> {
    Bf16Products::ALL.into_iter().filter_map(Candle::cpu_bf16_by)
}

#[test]
fn it_conforms() -> Result<(), ThreadPoolBuildError> {
    let round = |x| half::bf16::from_f32(x).to_f32();
    for (bf16, threads) in devices().flat_map(|bf16| [(bf16.clone(), 1), (bf16, 2)]) {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
        pool.install(|| {
            // weights, gradients, moments and optimizers' products stay f32
            device::conformance::run(&bf16, 1e-5);
            layers::conformance::run_rounded(&bf16, 1e-2, round);
        });
    }
    Ok(())
}

#[test]
fn pipelines_train_as_one_worker_and_as_the_reference_beside() -> Result<(), RunError> {
    let models = [Architecture::GPT2, Architecture::BERT, Architecture::LLAMA];
    for (bf16, architecture) in devices().flat_map(|bf16| models.map(|model| (bf16.clone(), model)))
    {
        let losses = |schedule, depth| -> Result<[Vec<f64>; 2], RunError> {
            let run = run(architecture, schedule, depth);
            let in_f32 = run.train(|_| Ok(Candle::cpu()))?.losses;
            Ok([run.train(|_| Ok(bf16.clone()))?.losses, in_f32])
        };
        let [alone, in_f32] = losses("dapple", 1)?;
        assert!(alone != in_f32, "the products are in f32");
        are_close(&alone, &in_f32, 1e-2);
        for (schedule, depth) in [("1f1b", 2), ("chimera", 2), ("zb-h1", 2), ("chimera", 4)] {
            let [got, in_f32] = losses(schedule, depth)?;
            are_close(&got, &alone, 1e-3);
            are_close(&got, &in_f32, 1e-2);
        }
    }
    Ok(())
}

#[test]
fn there_is_a_peak_where_there_is_the_instruction() {
    for way in Bf16Products::ALL {
        let has_instruction = Candle::cpu_bf16_by(way).is_some();
        assert_eq!(way.peak().is_some_and(|peak| peak > 1e9), has_instruction, "{way:?}");
    }
}

fn are_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (x, y) in got.iter().zip(expected) {
        assert!((x - y).abs() < tolerance * y, "{got:?} for {expected:?}");
    }
}

fn run(architecture: Architecture, schedule: &'static str, depth: usize) -> TrialRun {
    let (hidden, heads) = (32, 4);
    let usual = Llama::usual(hidden, heads);
    let llama = Llama { kv_heads: 2, window: Some(5), qkv_bias: true, ..usual };
    let model = ModelConfig {
        architecture,
        layers: 4,
        hidden,
        heads,
        context: 11,
        vocab: 67,
        tied: false,
        llama: (architecture == Architecture::LLAMA).then_some(llama),
        end_of_text: None,
    };
    TrialRun {
        schedule,
        shape: Shape::new(depth, 4),
        model,
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 3,
        steps: 10,
    }
}

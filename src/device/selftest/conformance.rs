//! Tests that every device must pass: its kernels match the reference, and training learns as on
//! the CPU.

use chimera_backend_cpu::Candle;
use chimera_core::device::{DeviceError, Dtype};
use chimera_core::layers::Layers;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, Llama, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_testkit::equivalence::TrialRun;

use super::size::Size;
use super::suite::Suite;
use crate::device::{Compute, Precision};

/// Compares every kernel with the reference in f64.
pub(super) struct Conformance<'s>(pub(super) &'s mut Suite);

impl Compute for Conformance<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let suite = self.0;
        let (limit, round): (f64, fn(f32) -> f32) = match suite.precision {
            Precision::F32 => (1e-5, |x| x),
            Precision::Tf32 => (2e-3, in_tf32),
            Precision::Bf16 => (1e-2, in_bf16),
        };
        let of_device = chimera_core::device::conformance::cases::<K>();
        let device = &by_rank[0];
        let of_layers = chimera_core::layers::conformance::cases_of(device);
        for case in of_device.into_iter().chain(of_layers) {
            let (value, at) = match case.check(device, round) {
                Ok(worst) => (worst.error, worst.at),
                Err(failure) => (f64::INFINITY, failure.to_string()),
            };
            suite.check(format!("kernel {}", case.name), value, limit, at);
        }
    }
}

/// Rounds to the nearest bf16 number.
fn in_bf16(x: f32) -> f32 {
    Dtype::Bf16.to_f32(Dtype::Bf16.of_f32(vec![x]), 1)[0]
}

/// Rounds to the nearest number with 11 significant bits.
fn in_tf32(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + (1 << 12)) & !((1 << 13) - 1))
}

/// Compares losses of schedules with those of one worker on the CPU.
pub(super) struct Equivalence<'s>(pub(super) &'s mut Suite);

impl Compute for Equivalence<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let runs = [("1f1b", 1), ("1f1b", 2), ("1f1b", 4), ("chimera", 2), ("chimera", 4)];
        compare(self.0, by_rank, "GPT-2", small, &runs);
        if by_rank[0].llama().is_some() {
            compare(self.0, by_rank, "a Llama", small_llama, &[("1f1b", 2), ("chimera", 4)]);
        }
        if self.0.size == Size::Full {
            let what = "two layers of GPT-2's width";
            compare(self.0, by_rank, what, wide, &[("1f1b", 1), ("1f1b", 2)]);
        }
    }
}

fn compare<K: Layers>(
    suite: &mut Suite,
    by_rank: &[K],
    model: &str,
    run: fn(&'static str, usize) -> TrialRun,
    schedules: &[(&'static str, usize)],
) {
    let what = format!("training {model} on the CPU");
    let Some(expected) = suite.train(&what, &run("1f1b", 1), &[Candle::cpu()]) else {
        return;
    };
    for &(schedule, depth) in schedules {
        let by = format!("of {model} by {schedule} with {depth} worker(s)");
        let Some(got) = suite.train(&by, &run(schedule, depth), by_rank) else { continue };
        suite.compare(format!("losses {by}"), &got.losses, &expected.losses);
        // Later norms belong to weights that have drifted apart by then.
        let [first, first_expected] =
            [&got, &expected].map(|run| run.norms.get(..1).unwrap_or(&[]));
        suite.compare(format!("first gradient norm {by}"), first, first_expected);
    }
}

/// A training run that every device finishes in seconds.
pub(super) fn small(schedule: &'static str, depth: usize) -> TrialRun {
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 4,
        hidden: 64,
        heads: 4,
        context: 32,
        vocab: 256,
        tied: false,
        llama: None,
        end_of_text: None,
    };
    let (shape, recompute) = (Shape::new(depth, 4), Recompute::None);
    TrialRun {
        schedule,
        shape,
        model,
        recompute,
        split_backward: false,
        micro_batch_size: 2,
        steps: 10,
    }
}

/// A variant of [`small`]: a Llama with wide grouped heads, biases and a window within the context.
fn small_llama(schedule: &'static str, depth: usize) -> TrialRun {
    let mut run = small(schedule, depth);
    let ModelConfig { hidden, heads, context, .. } = run.model;
    let usual = Llama::usual(hidden, heads);
    let window = Some(context / 2);
    let head_dim = Some(hidden / heads + 2);
    let llama = Llama { kv_heads: heads / 2, head_dim, qkv_bias: true, window, ..usual };
    run.model.llama = Some(llama);
    run.model.architecture = Architecture::LLAMA;
    run
}

/// A variant of [`small`] with rows as long, and classes as many and as odd, as those of GPT-2, and
/// two steps.
fn wide(schedule: &'static str, depth: usize) -> TrialRun {
    let mut run = small(schedule, depth);
    run.model =
        ModelConfig { layers: 2, hidden: 768, heads: 12, context: 256, vocab: 50257, ..run.model };
    (run.shape, run.micro_batch_size, run.steps) = (Shape::new(depth, 2), 1, 2);
    run
}

/// Checks that a device without free memory reports how much was asked for, and goes on.
pub(super) struct OutOfMemory<'s>(pub(super) &'s mut Suite);

impl Compute for OutOfMemory<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let k = &by_rank[0];
        let refused = k.zeros(&[1 << 42]);
        let still = k.zeros(&[1 << 10]).and_then(|zeros| k.download(&zeros));
        let is_refused = matches!(&refused, Err(DeviceError::OutOfMemory { .. }));
        let said = refused.err().map_or("it was given".into(), |e| e.to_string());
        self.0.check("16 TiB are refused".into(), f64::from(u8::from(!is_refused)), 0.0, said);
        let works = still.is_ok_and(|values| values.iter().all(|value| *value == 0.0));
        self.0.check("the device goes on".into(), f64::from(u8::from(!works)), 0.0, String::new());
    }
}

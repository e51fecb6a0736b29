//! What must hold on every device: its kernels compute what the reference does, and training learns as on the CPU.

use chimera_backend_candle::Candle;
use chimera_core::device::{DeviceError, Dtype};
use chimera_core::equivalence::TrialRun;
use chimera_core::layers::Layers;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;

use super::suite::Suite;
use crate::device::{Compute, Precision};

/// Every kernel against the reference in f64.
pub(super) struct Conformance<'s>(pub(super) &'s mut Suite);

impl Compute for Conformance<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let suite = self.0;
        let (limit, round): (f64, fn(f32) -> f32) = match suite.precision {
            Precision::F32 => (1e-5, |x| x),
            Precision::Bf16 => (1e-2, in_bf16),
        };
        let of_device = chimera_core::device::conformance::cases::<K>();
        for case in of_device.into_iter().chain(chimera_core::layers::conformance::cases()) {
            let (value, at) = match case.check(&by_rank[0], round) {
                Ok(worst) => (worst.error, worst.at),
                Err(failure) => (f64::INFINITY, failure.to_string()),
            };
            suite.check(format!("kernel {}", case.name), value, limit, at);
        }
    }
}

/// The nearest number in bf16.
fn in_bf16(x: f32) -> f32 {
    Dtype::Bf16.to_f32(Dtype::Bf16.of_f32(vec![x]), 1)[0]
}

/// Losses of schedules against those of one worker on the CPU.
pub(super) struct Equivalence<'s>(pub(super) &'s mut Suite);

impl Compute for Equivalence<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        let suite = self.0;
        let what = "training on the CPU";
        let Some(expected) = suite.train(what, &small("dapple", 1), &[Candle::cpu()]) else {
            return;
        };
        let runs = [("dapple", 1), ("1f1b", 2), ("1f1b", 4), ("chimera", 2), ("chimera", 4)];
        for (schedule, depth) in runs {
            let what = format!("losses of {schedule} with {depth} worker(s)");
            let Some(got) = suite.train(&what, &small(schedule, depth), by_rank) else { continue };
            suite.compare(what, &got.losses, &expected.losses);
        }
    }
}

/// A training that every device does in seconds.
pub(super) fn small(schedule: &'static str, depth: usize) -> TrialRun {
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 4,
        hidden: 64,
        heads: 4,
        context: 32,
        vocab: 256,
        tied: false,
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

/// A device without memory says so, with how much was asked for, and goes on.
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

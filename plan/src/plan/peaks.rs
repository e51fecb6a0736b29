//! Peaks of a worker's memory beside its weights, and the properties of weights that they depend on.

use chimera_core::analyze::{GradientPeaks, peak_bytes, peak_working_bytes, peaks_with_gradients};
use chimera_core::costs::StageBytes;
use chimera_core::engine::gradient_elements;
use chimera_core::model::{Cut, Memory, ModelConfig};
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_settings::Config;

use super::Plan;

/// The properties of a model's stages that their memory depends on.
pub struct Weights {
    /// Parameters by stage.
    pub params: Vec<Vec<Param>>,
    /// Bytes of an element of a weight.
    pub element: f64,
}

impl Weights {
    /// Returns weights in f32.
    pub(crate) fn of(model: &ModelConfig, cuts: &[Cut]) -> Weights {
        Weights { params: cuts.iter().map(|cut| model.params(cut)).collect(), element: 4.0 }
    }
}

/// Peak bytes by worker, without the weights.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Peaks {
    /// Bytes kept for backwards; and those of gradients, if they are there only while needed.
    pub(super) kept: Vec<f64>,
    /// Bytes kept for backwards, and used by an op while it runs.
    pub(super) used: Vec<f64>,
}

impl Peaks {
    /// Returns the peaks of a program.
    pub(super) fn of(
        config: &Config,
        (weights, memory): (&Weights, &[Memory]),
        program: &Program,
    ) -> Peaks {
        let samples =
            config.schedule.micro_batch_size as f64 / f64::from(program.units_per_micro());
        let by_sample: Vec<StageBytes> = memory.iter().map(|stage| stage.sample).collect();
        if config.replicas.zero > 1 {
            let sizes = gradient_elements(program, config.schedule.width, &weights.params);
            let sizes = sizes.times(weights.element);
            let peaks = peaks_with_gradients(program, &by_sample, samples, &sizes);
            let GradientPeaks { kept, used } = peaks;
            return Peaks { kept, used };
        }
        Peaks {
            kept: peak_bytes(program, &by_sample, samples),
            used: peak_working_bytes(program, &by_sample, samples),
        }
    }

    /// Returns the peaks of a plan: the highest of any of the programs that its course may take in
    /// turn.
    pub(super) fn of_plan(config: &Config, plan: &Plan) -> Peaks {
        let Plan { course, model, cuts, memory, .. } = plan;
        let weights = Weights::of(model, cuts);
        let higher = |mut peaks: Vec<f64>, others: Vec<f64>| {
            peaks.iter_mut().zip(others).for_each(|(peak, other)| *peak = peak.max(other));
            peaks
        };
        let of = |program| Peaks::of(config, (&weights, memory), program);
        let others = course.in_turn.iter().map(|(_, program)| of(program));
        others.fold(of(&course.program), |peaks, other| Peaks {
            kept: higher(peaks.kept, other.kept),
            used: higher(peaks.used, other.used),
        })
    }
}

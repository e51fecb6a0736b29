//! Peaks of a worker's memory beside its weights, and the properties of weights that they depend on.

use chimera_core::analyze::{GradientPeaks, peak_bytes, peak_working_bytes, peaks_with_gradients};
use chimera_core::costs::StageBytes;
use chimera_core::engine::shard_elements;
use chimera_core::ids::WorkerId;
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
            return Peaks::sharded(config, weights, program, (&by_sample, samples));
        }
        Peaks {
            kept: peak_bytes(program, &by_sample, samples),
            used: peak_working_bytes(program, &by_sample, samples),
        }
    }

    /// Returns the peaks of a program with sharded gradients, and maybe weights. Shards of weights
    /// differ between groups, so that a worker's peaks are the mean over them.
    fn sharded(
        config: &Config,
        Weights { params, element }: &Weights,
        program: &Program,
        (by_sample, samples): (&[StageBytes], f64),
    ) -> Peaks {
        let width = config.schedule.width;
        let of_group = |group| {
            let sizes = shard_elements(program, width, params, group).times(*element);
            let mut peaks = peaks_with_gradients(program, by_sample, samples, &sizes);
            for (worker, kept) in peaks.kept.iter_mut().enumerate() {
                let stages = program.placement().stages_of(WorkerId(worker as u16));
                // An evaluation gathers all stages, beside the sums of the last step.
                let sums: f64 = sizes.kept[worker].iter().sum();
                let gathered = sizes.weights.iter().map(|weights| {
                    let others = stages.iter().map(|stage| weights.others(worker, *stage));
                    sums + others.sum::<f64>()
                });
                *kept = gathered.fold(*kept, f64::max);
                peaks.used[worker] = kept.max(peaks.used[worker]);
            }
            peaks
        };
        if !program.shards_weights() {
            let GradientPeaks { kept, used } = of_group(None);
            return Peaks { kept, used };
        }
        let mut mean = Peaks { kept: vec![0.0; program.rows().len()], used: Vec::new() };
        mean.used.clone_from(&mean.kept);
        for group in 0..width {
            let GradientPeaks { kept, used } = of_group(Some(group));
            for (sum, more) in [(&mut mean.kept, kept), (&mut mean.used, used)] {
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more / width as f64);
            }
        }
        mean
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

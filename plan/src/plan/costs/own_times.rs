//! Costs of other configurations from the times of a run's own ops, where there is no profile.

use chimera_core::analyze::{Timeline, Work, simulate};
use chimera_core::costs::{StageCosts, UniformCosts};
use chimera_core::ids::{BucketId, StageId};
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::op::{Cell, Kind};
use chimera_core::program::Program;
use chimera_core::stage::Param;

use super::priced::{Stages, StepCosts};
use crate::plan::Course;
use crate::plan::step::chain::costs_by_flops;
use crate::plan::step::units::Units;

/// The speed of a run's own ops.
///
/// It holds for ops of the same size: for other schedules and layouts, and not for other
/// micro-batch sizes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OwnTimes {
    /// Floating-point operations per second of a forward.
    forward: f64,
    /// Seconds of a backward over those of as many operations in a forward.
    backward: f64,
    /// Seconds of the update of an element.
    update: f64,
    /// Seconds of a step.
    pub(crate) step_s: f64,
}

impl OwnTimes {
    /// Returns the times of a run by the timelines of its steps; `None` if they show no forward and
    /// no backward.
    pub fn of(
        course: &Course,
        (model, cuts): (&ModelConfig, &[Cut]),
        timelines: &[Timeline],
        step_s: f64,
    ) -> Option<OwnTimes> {
        let (config, program) = (&course.config, &course.program);
        let stages = Stages { config, model, cuts };
        let unit = OwnTimes { forward: 1.0, backward: 1.0, update: 1.0, step_s };
        let simulated = Totals::of(&simulate(program, &stages.own_costs(&unit, program)));
        let mut measured: Vec<Totals> = timelines.iter().map(Totals::of).collect();
        measured.sort_by(|a, b| a.forward.total_cmp(&b.forward));
        let measured = measured.get(measured.len() / 2)?;
        let forward = measured.forward / simulated.forward;
        let backward = measured.backward / simulated.backward;
        let update = measured.update / simulated.update;
        let is_known = [forward, backward].iter().all(|time| time.is_finite() && *time > 0.0);
        is_known.then_some(OwnTimes {
            forward: 1.0 / forward,
            backward: backward / forward,
            update: if update.is_finite() { update } else { 0.0 },
            step_s,
        })
    }
}

/// The time of all ops of a step by kind.
#[derive(Clone, Copy, Default)]
struct Totals {
    forward: f64,
    backward: f64,
    update: f64,
}

impl Totals {
    fn of(timeline: &Timeline) -> Totals {
        let mut all = Totals::default();
        for event in &timeline.events {
            let took = event.end - event.start;
            match event.work {
                Work::Cell(Cell::One(op)) => match op.kind {
                    Kind::Forward | Kind::Recompute => all.forward += took,
                    Kind::Backward | Kind::BackwardInput | Kind::BackwardWeight => {
                        all.backward += took;
                    }
                    _ => {}
                },
                Work::Step(_) => all.update += took,
                _ => {}
            }
        }
        all
    }
}

impl Stages<'_> {
    /// Returns the costs of a program's ops and updates by a run's own times. Messages and
    /// reductions are free.
    pub(crate) fn own_costs(&self, times: &OwnTimes, program: &Program) -> StepCosts {
        let Stages { config, model, cuts } = *self;
        let is_selective = |stage: StageId| program.rules().is_selective_somewhere(stage);
        let of_sample = times.forward / config.schedule.micro_batch_size as f64;
        let rate = (of_sample, Units::of(program));
        let stages = costs_by_flops(model, config.model.sequence, cuts, rate, is_selective);
        let stages = stages.into_iter().map(|stage| UniformCosts {
            input: stage.input * times.backward,
            weight: stage.weight * times.backward,
            ..stage
        });
        let updates = self.updated(program).into_iter().map(|n| n * times.update);
        StepCosts::with_updates(StageCosts::new(stages.collect()), updates.collect())
    }

    /// Returns the elements that a replica updates, by bucket.
    fn updated(&self, program: &Program) -> Vec<f64> {
        let Stages { config, model, cuts } = *self;
        let params: Vec<Vec<Param>> = cuts.iter().map(|cut| model.params(cut)).collect();
        let buckets = (0..).map(BucketId).zip(program.buckets_of_update());
        let elements = buckets.map(|(number, bucket)| {
            let is_tied = bucket.stages.len() > 1;
            let tensors = bucket.stages.first().map_or(&[][..], |stage| &params[stage.index()]);
            let its = tensors.iter().filter(|param| param.tied == is_tied && !param.frozen);
            let n: usize = its.map(Param::n_elements).sum();
            let n_replicas = program.replicas(config.schedule.width, number).len().max(1);
            n as f64 / if config.replicas.shard_optimizer { n_replicas as f64 } else { 1.0 }
        });
        elements.collect()
    }
}

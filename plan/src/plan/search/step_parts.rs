//! The parts of a configuration's step: the reasons why it takes as long as it does.

mod mapped;

use anyhow::Result;
use serde::Serialize;

use super::candidate::{Candidate, Cluster};
use super::estimate::ConfigGroup;
use super::step_time::{StepTime, taken};

/// Seconds of a step by cause, in the mean of all workers. Together they are the step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct StepParts {
    /// Compute: the step without idle time.
    pub ideal_s: f64,
    /// Waits for other workers, because of the order of the schedule.
    pub bubble_s: f64,
    /// Waits for messages and for moved activations.
    pub messages_s: f64,
    /// Waits for gradient reductions and the step sync.
    pub reductions_s: f64,
    /// Waits for the worker with the most work.
    pub unevenness_s: f64,
}

impl StepParts {
    fn of(taken: &StepTime) -> Option<StepParts> {
        let (idle, n_workers) = (taken.idle?, taken.busy.len() as f64);
        let share = |share: f64| share * taken.makespan;
        let ideal_s = taken.busy.iter().sum::<f64>() / n_workers;
        let longest = taken.busy.iter().copied().fold(0.0, f64::max);
        let waits = share(idle.activation + idle.gradient + idle.order + idle.other);
        let unevenness_s = (longest - ideal_s).clamp(0.0, waits.max(0.0));
        Some(StepParts {
            ideal_s,
            bubble_s: waits - unevenness_s,
            messages_s: share(idle.message + idle.moves),
            reductions_s: share(idle.reduction + idle.sync) + taken.agree,
            unevenness_s,
        })
    }

    /// Returns the parts by name, in the order of reports.
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("ideal", self.ideal_s),
            ("bubble", self.bubble_s),
            ("messages", self.messages_s),
            ("reductions", self.reductions_s),
            ("unevenness", self.unevenness_s),
        ]
    }
}

impl Candidate {
    /// Returns the parts of its step; `None` if the step is too long to be simulated.
    ///
    /// # Errors
    /// If there is no such configuration.
    pub fn parts_on(&self, cluster: &Cluster) -> Result<Option<StepParts>> {
        if !self.is_simulated {
            return Ok(None);
        }
        let mut group = ConfigGroup::simulated(cluster, false);
        let plan = group.plan(&self.config, self.config.schedule.micro_batches)?;
        Ok(StepParts::of(&taken(&plan, &self.config, cluster, true)?))
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::{Link, Network};

    use super::*;
    use crate::plan::search::candidate::{Fit, Speed};
    use chimera_settings::{Layers, Nothing};

    #[test]
    fn parts_add_up_to_the_step() {
        let model = "--layers 6 --hidden 64 --heads 4 --context 32 --threads 1";
        for options in [
            "--schedule 1f1b --depth 4 --micro-batches 8",
            "--schedule chimera --depth 2 --width 2 --micro-batches 4",
            "--schedule 1f1b --depth 1 --width 4 --micro-batches 2",
        ] {
            let layers = Layers::parse(&format!("{model} {options}")).unwrap();
            let link = Link { alpha: 1e-5, beta: 1e-9 };
            let network = Network { inside: link, between: link, ..Network::free(4) };
            let (memory, speed) = (1e12.into(), Speed::Flops(1e10.into()));
            let cluster = Cluster { n_ranks: 4, memory, speed, network, topology: None };
            let config = layers.resolve(&Nothing).unwrap();
            let mut group = ConfigGroup::simulated(&cluster, false);
            let Fit::Fits(way) = group.outcome(config).unwrap() else { panic!("it fits") };
            let parts = way.parts_on(&cluster).unwrap().expect("it is simulated");
            let sum: f64 = parts.named().iter().map(|(_, seconds)| seconds).sum();
            assert!((sum / way.step_s - 1.0).abs() < 1e-9, "{options}: {parts:?} {}", way.step_s);
            assert!(parts.named().iter().all(|(_, seconds)| *seconds >= 0.0), "{parts:?}");
            assert!(parts.ideal_s > 0.0 && parts.reductions_s > 0.0, "{options}: {parts:?}");
        }
    }
}

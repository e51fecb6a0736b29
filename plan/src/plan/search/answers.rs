//! Answers to common questions about the configurations of a choice.

use chimera_core::op::Kind;
use chimera_core::schedule::Shape;

use super::candidate::Candidate;
use super::choose::Choice;
use chimera_settings::schedules::Named;

/// The share by which the simplest configuration's step may be longer than the fastest one.
const SIMPLE_WITHIN: f64 = 0.03;

/// The best configurations of a choice by various measures.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'c> {
    /// The one with the shortest step.
    pub fastest: &'c Candidate,
    /// The simplest of those whose steps take at most 3 % longer than the fastest.
    pub simplest: &'c Candidate,
    /// The one that needs the least memory on its peak rank.
    pub least_memory: &'c Candidate,
    /// The fastest one without a pipeline, if it fits.
    pub data_parallel: Option<&'c Candidate>,
}

impl Choice {
    /// Returns the answers; `None` if nothing fits.
    pub fn answers(&self) -> Option<Answers<'_>> {
        let fastest = self.candidates.first()?;
        let limit = fastest.step_s * (1.0 + SIMPLE_WITHIN);
        let close = self.candidates.iter().take_while(|candidate| candidate.step_s <= limit);
        let bytes = |candidate: &Candidate| candidate.need.total();
        let simplest = close
            .min_by(|a, b| complexity(a).cmp(&complexity(b)).then(bytes(a).total_cmp(&bytes(b))))?;
        let least_memory = self.candidates.iter().min_by(|a, b| bytes(a).total_cmp(&bytes(b)))?;
        let is_plain = |candidate: &&Candidate| candidate.config.schedule.depth == 1;
        let data_parallel = self.candidates.iter().find(is_plain);
        Some(Answers { fastest, simplest, least_memory, data_parallel })
    }
}

/// Counts what has to be understood and set to run a configuration: further copies and stages of a
/// worker, split backwards, and settings other than the defaults.
fn complexity(way: &Candidate) -> usize {
    let config = &way.config;
    let settings = [
        way.recompute() != "none",
        config.replicas.shard_optimizer,
        way.has_unusual_sync(),
        way.layout().is_some(),
        way.reads_scaling() && way.scaling() != "direct",
        config.passes.split_backward,
    ];
    let settings = settings.into_iter().filter(|is_set| *is_set).count();
    if config.schedule.depth == 1 {
        return settings;
    }
    let order = match config.schedule.name {
        Named::Schedule(schedule) => schedule.timetable(&Shape::new(2, 4)).ok().map(|timetable| {
            let placement = &timetable.placement;
            let extra = placement.n_pipes() + placement.n_stages() / placement.n_workers() - 2;
            extra
                + usize::from(timetable.has(Kind::BackwardInput))
                + usize::from(timetable.units_per_micro > 1)
        }),
        Named::File(_) | Named::Auto => None,
    };
    1 + settings + order.unwrap_or(3) + way.parameters().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Need;
    use chimera_settings::{Layers, Nothing};

    fn candidate(options: &str, step_s: f64, bytes: f64) -> Candidate {
        let config = Layers::parse(options).unwrap().resolve(&Nothing).unwrap();
        let need = Need { state: bytes, ..Need::default() };
        Candidate { config, need, step_s, bubble_ratio: 0.0, is_simulated: true }
    }

    #[test]
    fn answers_are_the_best_of_their_kind() {
        let candidates = vec![
            candidate("--schedule zb-v --depth 4", 1.0, 5.0),
            candidate("--schedule chimera --depth 4", 1.01, 4.0),
            candidate("--schedule 1f1b --depth 4", 1.02, 3.0),
            candidate("--schedule 1f1b --depth 4 --recompute full", 1.025, 2.0),
            candidate("--schedule 1f1b --depth 1 --width 4", 1.2, 9.0),
            candidate("--schedule gpipe --depth 4 --recompute full", 2.0, 1.0),
        ];
        let choice = Choice { candidates, n_too_large: 0, smallest: None, n_left_out: 0 };
        let answers = choice.answers().unwrap();
        let steps = [
            Some(answers.fastest),
            Some(answers.simplest),
            Some(answers.least_memory),
            answers.data_parallel,
        ]
        .map(|way| way.unwrap().step_s);
        assert_eq!(steps, [1.0, 1.02, 2.0, 1.2]);
    }
}

//! What a step of a run is predicted to take by a profile, and how well it was.

use std::collections::BTreeMap;

use anyhow::Result;
use chimera_core::analyze::{Timeline, Work, simulate};
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::op::Cell;
use serde::{Deserialize, Serialize};

use super::Course;
use super::priced::Stages;
use crate::profile::ProfiledTimes;

/// A step, before it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of a step whose layers are all faster or slower by the spread of their measurements.
    pub range_s: [f64; 2],
    /// Why it may not hold here, if that is known.
    pub doubt: Option<String>,
    /// What each worker does in a step, or in a window of steps.
    pub timeline: Timeline,
    summary: Summary,
}

/// Something that was predicted, and measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What.
    pub what: String,
    /// Seconds, unless it is a ratio or bytes.
    pub predicted: f64,
    /// In the same unit.
    pub measured: f64,
    /// How much more was predicted than measured, in parts of what was measured.
    pub error: f64,
}

/// What is compared of a timeline.
#[derive(Clone, PartialEq, Debug)]
struct Summary {
    bubble_ratio: f64,
    /// By worker.
    busy: Vec<f64>,
    /// Mean over workers, by kind of work.
    kinds: BTreeMap<&'static str, f64>,
}

impl Prediction {
    /// What a step of a run takes by these times.
    ///
    /// # Errors
    /// If the model calls a layer of which there are none.
    pub(crate) fn of(
        times: &ProfiledTimes,
        course: &Course,
        model: &ModelConfig,
        cuts: &[Cut],
    ) -> Result<Prediction> {
        let (config, program) = (&course.config, &course.program);
        let stages = Stages { config, model, cuts };
        let timeline = |times: &ProfiledTimes| -> Result<Timeline> {
            let at =
                |times: &ProfiledTimes| Ok(simulate(program, &stages.step_costs(times, program)?));
            beside_others(times, config.width * config.depth, at, |t| 1.0 - t.bubble_ratio())
        };
        let n_steps = f64::from(program.window().n_steps().max(1));
        let step =
            |times: &ProfiledTimes| Ok::<_, anyhow::Error>(timeline(times)?.makespan() / n_steps);
        let middle = timeline(times)?;
        Ok(Prediction {
            step_s: middle.makespan() / n_steps,
            range_s: [step(&times.spread_by(-1.0))?, step(&times.spread_by(1.0))?],
            doubt: times.doubt().map(String::from),
            summary: Summary::of(&middle),
            timeline: middle,
        })
    }

    /// What was predicted beside what was measured: of steps, and of timelines of the program.
    pub fn against(&self, steps_s: &[f64], timelines: &[Timeline]) -> Vec<Figure> {
        let measured: Vec<Summary> = timelines.iter().map(Summary::of).collect();
        let each = |of: &dyn Fn(&Summary) -> f64| median(measured.iter().map(of).collect());
        let mut figures = vec![Figure::of("step", self.step_s, median(steps_s.to_vec()))];
        let Summary { bubble_ratio, busy, kinds } = &self.summary;
        figures.push(Figure::of("bubble ratio", *bubble_ratio, each(&|s| s.bubble_ratio)));
        for (kind, predicted) in kinds {
            let measured = each(&|s| s.kinds.get(kind).copied().unwrap_or(0.0));
            figures.push(Figure::of(*kind, *predicted, measured));
        }
        for (worker, predicted) in busy.iter().enumerate() {
            let measured = each(&|s| s.busy.get(worker).copied().unwrap_or(0.0));
            figures.push(Figure::of(format!("worker {worker} busy"), *predicted, measured));
        }
        figures
    }
}

impl Figure {
    /// A figure with its error.
    pub fn of(what: impl Into<String>, predicted: f64, measured: f64) -> Figure {
        let error = if measured > 0.0 { predicted / measured - 1.0 } else { 0.0 };
        Figure { what: what.into(), predicted, measured, error }
    }
}

impl Summary {
    fn of(timeline: &Timeline) -> Summary {
        let mut kinds = BTreeMap::new();
        for event in &timeline.events {
            let took = (event.end - event.start) / timeline.n_workers.max(1) as f64;
            *kinds.entry(kind(event.work)).or_default() += took;
        }
        Summary { bubble_ratio: timeline.bubble_ratio(), busy: timeline.busy(), kinds }
    }
}

fn kind(work: Work) -> &'static str {
    match work {
        Work::Cell(Cell::Pair(..)) => "pairs",
        Work::Cell(Cell::One(op)) => op.kind.name(),
        Work::Reduce(_) => "reduction",
        Work::Step(_) => "update",
    }
}

/// Predicts by times beside others that compute all the time, and, once it is known for how much of it they do, again.
pub(super) fn beside_others<T>(
    times: &ProfiledTimes,
    n_workers: usize,
    predict: impl Fn(&ProfiledTimes) -> Result<T>,
    busy: impl Fn(&T) -> f64,
) -> Result<T> {
    let first = predict(times)?;
    match n_workers {
        0 | 1 => Ok(first),
        _ => predict(&times.with_others_busy(busy(&first))),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::Event;
    use chimera_core::ids::WorkerId;
    use chimera_core::op::Op;

    use super::*;

    #[test]
    fn errors_are_signed_and_in_parts_of_what_was_measured() {
        let event = |worker, start, end, op| Event {
            worker: WorkerId(worker),
            work: Work::Cell(Cell::One(op)),
            start,
            end,
            after: None,
        };
        let timeline = |forward: f64| Timeline {
            n_workers: 2,
            events: vec![
                event(0, 0.0, forward, Op::forward(0, 0, 0)),
                event(1, forward, 10.0, Op::backward(0, 1, 0)),
            ],
        };
        let summary = Summary::of(&timeline(4.0));
        let prediction = Prediction {
            step_s: 9.0,
            range_s: [8.0, 12.0],
            doubt: None,
            timeline: timeline(4.0),
            summary,
        };
        let figures = prediction.against(&[10.0, 30.0, 6.0], &[timeline(5.0)]);
        let of = |what: &str| figures.iter().find(|f| f.what == what).expect("a figure");
        assert_eq!((of("step").measured, of("step").error), (10.0, 9.0 / 10.0 - 1.0));
        assert_eq!((of("forward").predicted, of("forward").measured), (2.0, 2.5));
        assert_eq!((of("worker 1 busy").predicted, of("worker 1 busy").measured), (6.0, 5.0));
        assert_eq!(of("bubble ratio").error, 0.0);
    }
}

//! Predictions of a run's step from a profile, and their comparison with measurements.

mod summary;

use anyhow::Result;
use chimera_core::analyze::{
    IdleTime, Timeline, Wait, behind_makespan, measured_idle, simulated_idle,
};
use chimera_core::costs::UnevenCosts;
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::program::Program;
use serde::{Deserialize, Serialize};

use self::summary::Summary;
use super::priced::Stages;
use super::varied::drawn;
use crate::plan::Course;
use crate::profile::{ProfiledTimes, ReferenceTime};

/// The prediction of a step before it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of a step if all layers are faster, or all slower, by the spread of their measurements.
    pub range_s: [f64; 2],
    /// The reason why the prediction may not hold here, if one is known.
    pub doubt: Option<String>,
    /// The speed of the machine that the prediction assumes, if it was measured.
    pub reference: Option<ReferenceTime>,
    /// The ops of each worker in a step, or in a window of steps, with random variation.
    pub timeline: Timeline,
    summary: Summary,
}

/// A quantity that was predicted and measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the quantity.
    pub what: String,
    /// Predicted value, in seconds unless it is a ratio or bytes.
    pub predicted: f64,
    /// Measured value in the same unit.
    pub measured: f64,
    /// Relative error: predicted over measured, minus 1.
    pub error: f64,
}

/// Simulated steps with random variation.
struct DrawnSteps {
    /// The step of median length.
    middle: Timeline,
    /// Seconds of the median step, including its step sync.
    takes: f64,
    summary: Summary,
}

impl Prediction {
    /// Predicts a step of a run by these times, scaled to the present time of the reference work.
    ///
    /// # Errors
    /// If the model calls a layer that the times lack.
    pub fn of(
        times: &ProfiledTimes,
        reference: Option<ReferenceTime>,
        course: &Course,
        model: &ModelConfig,
        cuts: &[Cut],
    ) -> Result<Prediction> {
        let times = &times.longer(reference.map_or(1.0, |time| time.ratio()));
        let (config, program) = (&course.config, &course.program);
        let stages = Stages { config, model, cuts };
        let at = |times: &ProfiledTimes| -> Result<DrawnSteps> {
            let of = |times: &ProfiledTimes| -> Result<_> {
                let costs = stages.step_costs(times, program)?;
                Ok(UnevenCosts::new(costs, config.worker_speeds()))
            };
            let usual = of(times)?;
            let mut draws = drawn(program, &usual, &of(&times.spread_by(1.0))?);
            let summary = |timeline: &Timeline| {
                let idle = simulated_idle(program, timeline, &usual);
                Summary::of(timeline, IdleTime::shares(&idle, 1.0))
            };
            let summary = Summary::mean(&draws.iter().map(summary).collect::<Vec<_>>());
            let middle = draws.swap_remove(draws.len() / 2);
            let takes = middle.makespan() + behind_makespan(program, &middle, &usual);
            Ok(DrawnSteps { middle, takes, summary })
        };
        let n_workers = config.schedule.width * config.schedule.depth;
        let predicted = |times: &ProfiledTimes| {
            beside_others(times, n_workers, at, |drawn| 1.0 - drawn.summary.bubble_ratio)
        };
        let n_steps = f64::from(program.window().n_steps().max(1));
        let step =
            |times: &ProfiledTimes| Ok::<_, anyhow::Error>(predicted(times)?.takes / n_steps);
        let DrawnSteps { middle, takes, summary } = predicted(times)?;
        Ok(Prediction {
            step_s: takes / n_steps,
            range_s: [step(&times.spread_by(-1.0))?, step(&times.spread_by(1.0))?],
            doubt: doubt(times, reference),
            reference,
            summary,
            timeline: middle,
        })
    }

    /// Returns predicted figures beside measured ones: of steps, and of timelines of the program with their waits.
    pub fn against(
        &self,
        program: &Program,
        steps_s: &[f64],
        timelines: &[Timeline],
        waits: &[Vec<Wait>],
    ) -> Vec<Figure> {
        let measured = timelines.iter().zip(waits).map(|(timeline, waits)| {
            let idle = measured_idle(program, timeline, waits);
            Summary::of(timeline, IdleTime::shares(&idle, 1.0))
        });
        let measured: Vec<Summary> = measured.collect();
        let each = |of: &dyn Fn(&Summary) -> f64| median(measured.iter().map(of).collect());
        let mut figures = vec![Figure::of("step", self.step_s, median(steps_s.to_vec()))];
        if measured.is_empty() {
            return figures;
        }
        let Summary { bubble_ratio, busy, kinds, idle } = &self.summary;
        figures.push(Figure::of("bubble ratio", *bubble_ratio, each(&|s| s.bubble_ratio)));
        for (kind, predicted) in kinds {
            let measured = each(&|s| s.kinds.get(kind).copied().unwrap_or(0.0));
            figures.push(Figure::of(*kind, *predicted, measured));
        }
        for (at, (cause, predicted)) in idle.named().into_iter().enumerate() {
            let measured = each(&|s| s.idle.named()[at].1);
            if predicted > 0.0 || measured > 0.0 {
                figures.push(Figure::of(format!("idle, {cause}"), predicted, measured));
            }
        }
        for (worker, predicted) in busy.iter().enumerate() {
            let measured = each(&|s| s.busy.get(worker).copied().unwrap_or(0.0));
            figures.push(Figure::of(format!("worker {worker} busy"), *predicted, measured));
        }
        figures
    }
}

impl Figure {
    /// Returns a figure with its error.
    pub fn of(what: impl Into<String>, predicted: f64, measured: f64) -> Figure {
        let error = if measured > 0.0 { predicted / measured - 1.0 } else { 0.0 };
        Figure { what: what.into(), predicted, measured, error }
    }
}

/// Returns why a prediction may not hold: for reasons of the profile, and of the machine's speed now.
fn doubt(times: &ProfiledTimes, reference: Option<ReferenceTime>) -> Option<String> {
    let of_speed = reference.and_then(|reference| reference.doubt());
    let all = times.doubt().map(String::from).into_iter().chain(of_speed);
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Predicts by times measured beside workers that compute all the time. Once it is known for how
/// much of the time they compute, predicts again.
pub(crate) fn beside_others<T>(
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
    use chimera_core::analyze::{Event, Work};
    use chimera_core::ids::{BucketId, WorkerId};
    use chimera_core::lower::{Lowering, lower};
    use chimera_core::op::{Cell, Op};
    use chimera_core::schedule::{Shape, find};

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
        let reduction = |worker, start, end| Event {
            worker: WorkerId(worker),
            work: Work::Reduce(BucketId(0)),
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
        let program = {
            let timetable = find("gpipe").unwrap().timetable(&Shape::new(2, 1)).unwrap();
            lower(&timetable, &Lowering::default()).unwrap()
        };
        let mut planned = timeline(4.0);
        planned.events.push(reduction(0, 4.0, 6.0));
        let idle = IdleTime { message: 3.0, ..IdleTime::default() };
        let summary = Summary::of(&planned, idle);
        let prediction = Prediction {
            step_s: 9.0,
            range_s: [8.0, 12.0],
            doubt: None,
            reference: None,
            timeline: planned,
            summary,
        };
        let mut ran = timeline(5.0);
        ran.events.extend([reduction(0, 1.0, 9.0), reduction(1, 7.0, 9.0)]);
        let figures = prediction.against(&program, &[10.0, 30.0, 6.0], &[ran], &[Vec::new()]);
        let of = |what: &str| figures.iter().find(|f| f.what == what).expect("a figure");
        assert_eq!((of("step").measured, of("step").error), (10.0, 9.0 / 10.0 - 1.0));
        assert_eq!((of("forward").predicted, of("forward").measured), (2.0, 2.5));
        assert_eq!((of("worker 1 busy").predicted, of("worker 1 busy").measured), (6.0, 5.0));
        assert_eq!(of("bubble ratio").error, 0.0);
        // Both replicas reduce once the last one has started.
        assert_eq!((of("reduction").predicted, of("reduction").measured), (1.0, 2.0));
        assert_eq!((of("idle, message").predicted, of("idle, message").measured), (3.0, 0.0));
    }
}

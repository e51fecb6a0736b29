//! Compares two traced runs: a plan and a measured run, or any two.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cli::parts::terminal::console::figure;
use crate::cli::parts::terminal::signed;
use crate::cli::parts::terminal::signed::{Signed, percent, points};
use crate::formats::trace::{Slice, TracedRun};

/// Shorter parts of a step are rounding errors.
const ROUNDING: f64 = 1e-12;

/// A figure of both runs.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
struct Compared {
    planned: f64,
    measured: f64,
}

/// Total time of a kind of work, or of waits for messages.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    count: usize,
    /// Mean over ranks.
    seconds_per_rank: f64,
}

/// Time of a kind of work in both runs.
#[derive(Serialize)]
struct KindTime {
    planned: Total,
    measured: Total,
}

/// The comparison of two runs.
#[derive(Serialize)]
pub(crate) struct Comparison {
    /// Names of the runs in their traces.
    runs: [Option<String>; 2],
    /// Number of steps in each run, if its trace has it: several steps are a window.
    #[serde(skip)]
    n_steps: [Option<u64>; 2],
    step: Compared,
    bubble_ratio: Compared,
    /// Work by kind; `message` is the time that ranks waited for values that had already been
    /// computed.
    kinds: BTreeMap<String, KindTime>,
    /// Busy seconds of each rank in the second trace.
    ranks: Vec<Compared>,
}

/// The part of a run that is compared.
pub(crate) struct TraceSummary {
    name: Option<String>,
    n_steps: Option<u64>,
    step: f64,
    busy: BTreeMap<u32, f64>,
    kinds: BTreeMap<String, Total>,
}

/// Returns the run of median length.
pub(crate) fn median(mut runs: Vec<TracedRun>) -> Result<TracedRun> {
    let length = |run: &TracedRun| run.span().1 - run.span().0;
    runs.sort_by(|a, b| length(a).total_cmp(&length(b)));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle).context("the trace has no step")
}

impl TraceSummary {
    /// Sums up a run whose times are in units of `seconds`.
    pub(crate) fn of(run: &TracedRun, seconds: f64) -> TraceSummary {
        let (start, end) = run.span();
        let mut busy = BTreeMap::new();
        let mut kinds: BTreeMap<String, Total> = BTreeMap::new();
        for slice in &run.slices {
            let took = (slice.end - slice.start) * seconds;
            *busy.entry(slice.rank).or_default() += if slice.is_busy { took } else { 0.0 };
            let kind = kinds.entry(slice.kind.clone()).or_default();
            kind.count += 1;
            kind.seconds_per_rank += took;
        }
        let stood = messages(run) * seconds;
        kinds.insert("message".into(), Total { count: run.arrows.len(), seconds_per_rank: stood });
        let n_ranks = busy.len().max(1) as f64;
        kinds.values_mut().for_each(|kind| kind.seconds_per_rank /= n_ranks);
        let (name, n_steps) = (run.name.clone(), run.n_steps());
        TraceSummary { name, n_steps, step: (end - start) * seconds, busy, kinds }
    }

    fn bubble_ratio(&self) -> f64 {
        1.0 - self.busy.values().sum::<f64>() / (self.step * self.busy.len() as f64)
    }
}

/// Describes a number of steps that ran without a border between them.
pub(crate) fn length(n_steps: u64) -> String {
    match n_steps {
        1 => "step".into(),
        n => format!("window of {n} steps"),
    }
}

/// Returns the time that ranks waited for values that had already been computed.
fn messages(run: &TracedRun) -> f64 {
    let mut rows: BTreeMap<u32, Vec<&Slice>> = BTreeMap::new();
    for slice in run.slices.iter().filter(|slice| slice.is_busy) {
        rows.entry(slice.rank).or_default().push(slice);
    }
    rows.values_mut().for_each(|row| row.sort_by(|a, b| a.start.total_cmp(&b.start)));
    // Returns the last slice of a rank that begins before a time.
    let before = |rank: u32, at: f64| {
        let row = rows.get(&rank)?;
        row[..row.partition_point(|slice| slice.start < at)].last().copied()
    };
    // A slice may begin with several messages: the last one counts.
    let mut stood: BTreeMap<(u32, u64), f64> = BTreeMap::new();
    for arrow in &run.arrows {
        let (rank, at) = arrow.to;
        let Some(maker) = before(arrow.from.0, arrow.from.1) else { continue };
        let free = before(rank, at).map_or(f64::NEG_INFINITY, |slice| slice.end);
        let stands = (at - maker.end.max(free)).max(0.0);
        let shortest = stood.entry((rank, at.to_bits())).or_insert(stands);
        *shortest = shortest.min(stands);
    }
    stood.values().sum()
}

impl Comparison {
    /// Compares two summaries.
    ///
    /// # Errors
    /// If the ranks of the second run are not whole groups of the first run's workers.
    pub(crate) fn of(planned: TraceSummary, measured: TraceSummary) -> Result<Comparison> {
        let (n, m) = (planned.busy.len(), measured.busy.len());
        ensure!(
            n > 0 && m.is_multiple_of(n),
            "{n} workers were planned and {m} ranks measured, which are not whole pipeline groups"
        );
        let step = Compared { planned: planned.step, measured: measured.step };
        let bubble_ratio =
            Compared { planned: planned.bubble_ratio(), measured: measured.bubble_ratio() };
        let names = planned.kinds.keys().chain(measured.kinds.keys()).cloned();
        let of = |kinds: &BTreeMap<String, Total>, name: &str| {
            kinds.get(name).copied().unwrap_or_default()
        };
        let kinds = names.map(|name| {
            let (planned, measured) = (of(&planned.kinds, &name), of(&measured.kinds, &name));
            (name, KindTime { planned, measured })
        });
        let kinds = kinds.collect();
        let workers: Vec<f64> = planned.busy.values().copied().collect();
        let ranks = measured.busy.values().zip(workers.iter().cycle());
        let ranks = ranks.map(|(m, p)| Compared { planned: *p, measured: *m }).collect();
        let n_steps = [planned.n_steps, measured.n_steps];
        let runs = [planned.name, measured.name];
        Ok(Comparison { runs, n_steps, step, bubble_ratio, kinds, ranks })
    }

    /// Returns the ratio of the run's work to the plan's, if it is larger than the error of a plan.
    pub(crate) fn other_unit(&self) -> Option<f64> {
        let work = |of: fn(&Compared) -> f64| self.ranks.iter().map(of).sum::<f64>();
        let factor = work(|busy| busy.measured) / work(|busy| busy.planned);
        let is_other = factor.is_finite() && factor > 0.0 && !(0.2..=5.0).contains(&factor);
        is_other.then_some(factor)
    }

    /// Formats the rows as text.
    pub(crate) fn table(&self) -> String {
        signed::table("planned", &self.rows(), 22)
    }

    /// Names what is compared: a step, or a window of steps.
    fn compared(&self) -> String {
        match self.n_steps {
            [Some(planned), Some(measured)] if planned != measured => {
                format!("{}, {}", length(planned), length(measured))
            }
            [planned, measured] => length(measured.or(planned).unwrap_or(1)),
        }
    }

    /// Returns the rows: step, kinds of work, ranks and bubble. A positive error means that more
    /// was measured than planned.
    pub(crate) fn rows(&self) -> Vec<Signed> {
        let row = |what: String, Compared { planned, measured }: Compared| {
            // For work that takes no time, only rounding errors remain.
            let is_planned = planned > ROUNDING * self.step.planned;
            let planned = if is_planned { planned } else { 0.0 };
            let error = if is_planned { percent(measured / planned - 1.0) } else { String::new() };
            Signed { what, expected: figure(planned), measured: figure(measured), error }
        };
        let mut rows = vec![row(self.compared(), self.step)];
        for (name, KindTime { planned, measured }) in &self.kinds {
            let each = |total: &Total| total.seconds_per_rank;
            let what = if planned.count == measured.count || planned.count == 0 {
                format!("{name} ({})", measured.count)
            } else {
                format!("{name} ({}, {})", planned.count, measured.count)
            };
            rows.push(row(what, Compared { planned: each(planned), measured: each(measured) }));
        }
        for (rank, busy) in self.ranks.iter().enumerate() {
            rows.push(row(format!("rank {rank} busy"), *busy));
        }
        let Compared { planned, measured } = self.bubble_ratio;
        rows.push(Signed {
            what: "bubble ratio".into(),
            expected: format!("{planned:.4}"),
            measured: format!("{measured:.4}"),
            error: points(measured - planned),
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_steps_is_not_called_a_step() {
        let slice = Slice {
            rank: 0,
            kind: "forward".into(),
            start: 0.0,
            end: 1.0,
            is_busy: true,
            lane: 0,
            name: "F0".into(),
            ops: Vec::new(),
        };
        let of = |name: Option<&str>| {
            let (name, slices) = (name.map(str::to_string), vec![slice.clone()]);
            TraceSummary::of(&TracedRun { name, slices, ..TracedRun::default() }, 1.0)
        };
        for (planned, measured, what) in [
            (None, None, "step"),
            (None, Some("step 4"), "step"),
            (None, Some("steps 3 to 5"), "window of 3 steps"),
            (Some("steps 3 to 5"), Some("steps 3 to 5"), "window of 3 steps"),
            (Some("steps 6 to 7"), Some("steps 3 to 5"), "window of 2 steps, window of 3 steps"),
        ] {
            let compared = Comparison::of(of(planned), of(measured)).expect("one rank each");
            assert_eq!(compared.rows()[0].what, what);
        }
    }
}

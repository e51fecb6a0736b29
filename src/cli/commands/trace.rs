//! `chimera trace compare`: two timelines, and where they differ.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;

use crate::cli::parts::console::{figure, print, tell};
use crate::cli::parts::costs::number;
use crate::formats::trace::{Slice, TracedRun, read};

/// Reads traces of steps
#[derive(Subcommand)]
pub(crate) enum TraceCommand {
    /// Compares two traces: a plan and a run, or any two
    Compare(Compare),
}

impl TraceCommand {
    pub(crate) fn run(self) -> Result<()> {
        let TraceCommand::Compare(compare) = self;
        compare.run()
    }
}

/// Compares two traces. Of several steps in a trace the one of median length counts. Where the second has more
/// ranks than the first, its pipeline groups are compared with the first's one.
#[derive(Args)]
pub(crate) struct Compare {
    /// The trace of what was planned: of `simulate --trace` or `schedule export --format chrome`
    #[arg(value_name = "PLAN", value_hint = ValueHint::FilePath)]
    plan: PathBuf,
    /// The trace of what was measured: of `train --trace`
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    trace: PathBuf,
    /// Seconds of a unit of time in the plan
    #[arg(long, value_name = "S", default_value = "1", value_parser = number)]
    seconds_per_unit: f64,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A figure of both.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
struct Both {
    planned: f64,
    measured: f64,
}

/// Time of work of a kind, or of waits for messages.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
struct Total {
    count: usize,
    /// Mean over ranks.
    seconds_per_rank: f64,
}

#[derive(Serialize)]
struct Kind {
    planned: Total,
    measured: Total,
}

#[derive(Serialize)]
struct Comparison {
    /// What the runs are called in their traces.
    runs: [Option<String>; 2],
    step: Both,
    bubble_ratio: Both,
    /// Work by kind; `message` is the time for which ranks stood still until a value came that had been made.
    kinds: BTreeMap<String, Kind>,
    /// Busy seconds by rank of the second trace.
    ranks: Vec<Both>,
}

/// What is compared of a run.
struct Summary {
    name: Option<String>,
    step: f64,
    busy: BTreeMap<u32, f64>,
    kinds: BTreeMap<String, Total>,
}

impl Compare {
    fn run(self) -> Result<()> {
        let of = |path, scale| -> Result<Summary> { Ok(Summary::of(&median(read(path)?)?, scale)) };
        let planned = of(&self.plan, self.seconds_per_unit)?;
        let measured = of(&self.trace, 1.0)?;
        let (n, m) = (planned.busy.len(), measured.busy.len());
        ensure!(
            m.is_multiple_of(n),
            "{} has {n} workers and {} has {m} ranks, which are no whole pipeline groups",
            self.plan.display(),
            self.trace.display()
        );
        let comparison = Comparison::of(planned, measured);
        if self.json {
            return print(serde_json::to_string_pretty(&comparison)?);
        }
        print(comparison.table()?)?;
        if let Some(factor) = comparison.other_unit() {
            let unit = figure(self.seconds_per_unit * factor);
            tell(format!(
                "the plan counts in another unit: with --seconds-per-unit {unit} its work takes as long as the run's"
            ));
        }
        Ok(())
    }
}

/// The run of median length.
fn median(mut runs: Vec<TracedRun>) -> Result<TracedRun> {
    let length = |run: &TracedRun| run.span().1 - run.span().0;
    runs.sort_by(|a, b| length(a).total_cmp(&length(b)));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle).context("the trace has no step")
}

impl Summary {
    fn of(run: &TracedRun, seconds: f64) -> Summary {
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
        Summary { name: run.name.clone(), step: (end - start) * seconds, busy, kinds }
    }

    fn bubble_ratio(&self) -> f64 {
        1.0 - self.busy.values().sum::<f64>() / (self.step * self.busy.len() as f64)
    }
}

/// For how long ranks stood still until values came that had been made.
fn messages(run: &TracedRun) -> f64 {
    let mut rows: BTreeMap<u32, Vec<&Slice>> = BTreeMap::new();
    for slice in run.slices.iter().filter(|slice| slice.is_busy) {
        rows.entry(slice.rank).or_default().push(slice);
    }
    rows.values_mut().for_each(|row| row.sort_by(|a, b| a.start.total_cmp(&b.start)));
    // The last slice of a rank that begins before a time.
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
    fn of(planned: Summary, measured: Summary) -> Comparison {
        let step = Both { planned: planned.step, measured: measured.step };
        let bubble_ratio =
            Both { planned: planned.bubble_ratio(), measured: measured.bubble_ratio() };
        let names = planned.kinds.keys().chain(measured.kinds.keys()).cloned();
        let of = |kinds: &BTreeMap<String, Total>, name: &str| {
            kinds.get(name).copied().unwrap_or_default()
        };
        let kinds = names.map(|name| {
            let (planned, measured) = (of(&planned.kinds, &name), of(&measured.kinds, &name));
            (name, Kind { planned, measured })
        });
        let kinds = kinds.collect();
        let workers: Vec<f64> = planned.busy.values().copied().collect();
        let ranks = measured.busy.values().zip(workers.iter().cycle());
        let ranks = ranks.map(|(m, p)| Both { planned: *p, measured: *m }).collect();
        Comparison { runs: [planned.name, measured.name], step, bubble_ratio, kinds, ranks }
    }

    /// By how much longer the run's work takes than the plan's, where that is more than a plan errs.
    fn other_unit(&self) -> Option<f64> {
        let work = |of: fn(&Both) -> f64| self.ranks.iter().map(of).sum::<f64>();
        let factor = work(|busy| busy.measured) / work(|busy| busy.planned);
        let is_other = factor.is_finite() && factor > 0.0 && !(0.2..=5.0).contains(&factor);
        is_other.then_some(factor)
    }

    fn table(&self) -> Result<String> {
        let mut text = format!("{:22} {:>10} {:>10} {:>9}", "", "planned", "measured", "error");
        let mut row = |what: &str, Both { planned, measured }: Both| {
            let error = match planned > 0.0 {
                true => format!("{:+.1} %", (measured / planned - 1.0) * 100.0),
                false => String::new(),
            };
            let (planned, measured) = (figure(planned), figure(measured));
            write!(text, "\n{what:22} {planned:>10} {measured:>10} {error:>9}")
        };
        row("step", self.step)?;
        for (name, Kind { planned, measured }) in &self.kinds {
            let each = |total: &Total| total.seconds_per_rank;
            let what = match planned.count == measured.count || planned.count == 0 {
                true => format!("{name} ({})", measured.count),
                false => format!("{name} ({}, {})", planned.count, measured.count),
            };
            row(&what, Both { planned: each(planned), measured: each(measured) })?;
        }
        for (rank, busy) in self.ranks.iter().enumerate() {
            row(&format!("rank {rank} busy"), *busy)?;
        }
        let Both { planned, measured } = self.bubble_ratio;
        let points = (measured - planned) * 100.0;
        write!(text, "\n{:22} {planned:>10.4} {measured:>10.4} {points:+5.1} pts", "bubble ratio")?;
        Ok(text)
    }
}

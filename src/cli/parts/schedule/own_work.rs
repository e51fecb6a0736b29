//! The user's own work, which fills the idle time of a step.

use std::fmt::Write;
use std::str::FromStr;

use anyhow::{Result, ensure};
use chimera_core::analyze::{FreeWindow, Timeline, Work, simulate, windows};
use chimera_core::costs::{Costs, PerStage, WithOwnWork};
use chimera_core::effects::{OwnWork, Pieces};
use chimera_core::ids::WorkId;
use chimera_core::lower::{Lowering, fill};
use chimera_core::op::{Cell, Kind, Op};
use chimera_core::program::Program;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::parts::terminal::console::{figure, warn};

/// The largest number of pieces; a longer list would be useless.
const MOST_PIECES: f64 = 1e6;

/// The option `--work`.
#[derive(Args, Clone, Default)]
pub(crate) struct WorkArgs {
    /// Fill idle time with indivisible pieces of other work, of COST each (in the unit of the step); may be repeated; pieces of
    /// several works alternate
    #[arg(long, value_name = "NAME=COST")]
    work: Vec<WorkArg>,
}

/// A value of `--work`: its name, and the time of a piece.
#[derive(Clone)]
struct WorkArg {
    name: String,
    takes: f64,
}

impl FromStr for WorkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkArg, String> {
        let form = || format!("`{text}` is not a name and the time of a piece, such as fisher=1");
        let (name, takes) = text.split_once('=').ok_or_else(form)?;
        let takes: f64 = takes.parse().map_err(|_| form())?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(form());
        }
        if !(takes.is_finite() && takes > 0.0) {
            return Err(format!("a piece of `{name}` has to take some time, not {takes}"));
        }
        Ok(WorkArg { name: name.into(), takes })
    }
}

/// A step whose idle time is filled with work.
pub(crate) struct FilledStep<'c, C> {
    works: Vec<WorkArg>,
    /// Idle time of each worker before it was filled.
    idle: Vec<f64>,
    pub(crate) program: Program,
    pub(crate) costs: WithOwnWork<'c, C>,
    pub(crate) timeline: Timeline,
    /// Pieces of each worker: work, start and end.
    pieces: Vec<Vec<(WorkId, f64, f64)>>,
}

impl WorkArgs {
    /// Warns that the JSON of a timetable does not have the additional work.
    pub(crate) fn warn_of_json(&self) {
        if !self.work.is_empty() {
            warn(
                "`work` has no effect: a timetable's JSON holds only the training, and work is \
                 added where a program is drawn or simulated",
            );
        }
    }

    /// Fills the idle time of each worker in a step with the simulated `timeline`. Returns `None`
    /// if there is no work.
    pub(crate) fn fill<'c, C: Costs>(
        &self,
        (program, timeline): (&Program, &Timeline),
        how: &Lowering,
        costs: &'c C,
    ) -> Result<Option<FilledStep<'c, C>>> {
        let works = &self.work;
        if works.is_empty() {
            return Ok(None);
        }
        ensure!(works.len() < 256, "{} works are more than the limit of 255", works.len());
        let length = |windows: &Vec<FreeWindow>| windows.iter().map(|w| w.to - w.from).sum::<f64>();
        let idle: Vec<f64> = windows(program, timeline).iter().map(length).collect();
        let all: f64 = idle.iter().sum();
        for WorkArg { name, takes } in works {
            ensure!(
                all / takes <= MOST_PIECES,
                "{} pieces of `{name}` would fit, more than {MOST_PIECES}: choose pieces that take longer",
                (all / takes).floor()
            );
        }
        let own =
            |work: &WorkArg| OwnWork { name: work.name.clone(), pieces: Pieces::Anytime(u32::MAX) };
        let takes = works.iter().map(|work| PerStage(vec![work.takes])).collect();
        let costs = WithOwnWork::new(costs, takes);
        let program = fill(program, &works.iter().map(own).collect::<Vec<_>>(), how, &costs)?;
        let timeline = simulate(&program, &costs);
        let pieces = pieces(&timeline);
        Ok(Some(FilledStep { works: works.clone(), idle, program, costs, timeline, pieces }))
    }
}

fn pieces(timeline: &Timeline) -> Vec<Vec<(WorkId, f64, f64)>> {
    let mut pieces = vec![Vec::new(); timeline.n_workers];
    for event in &timeline.events {
        if let Work::Cell(Cell::One(Op { kind: Kind::Work(work), .. })) = event.work {
            pieces[event.worker.index()].push((work, event.start, event.end));
        }
    }
    pieces
}

impl<C> FilledStep<'_, C> {
    /// The pieces of a worker, each as `[name, from, to]`.
    pub(crate) fn json(&self, worker: usize) -> Value {
        let pieces = self.pieces[worker].iter();
        pieces.map(|(work, from, to)| json!([self.works[work.index()].name, from, to])).collect()
    }

    /// A table of the number of pieces that fit on each worker, and of the remaining idle time.
    pub(crate) fn table(&self) -> Result<String> {
        let heads: Vec<String> =
            self.works.iter().map(|w| format!("{} ({})", w.name, figure(w.takes))).collect();
        let mut text = format!(
            "\nwork in idle time, pieces that fit\nworker  {}  idle after it\n",
            heads.join("  ")
        );
        for (worker, (idle, pieces)) in self.idle.iter().zip(&self.pieces).enumerate() {
            let (mut counts, mut filled) = (vec![0; heads.len()], 0.0);
            for (work, from, to) in pieces {
                counts[work.index()] += 1;
                filled += to - from;
            }
            write!(text, "{worker:>6}")?;
            for (n, head) in counts.iter().zip(&heads) {
                write!(text, "  {n:>width$}", width = head.chars().count())?;
            }
            writeln!(text, "  {:>13}", figure((idle - filled).max(0.0)))?;
        }
        Ok(text.trim_end().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_a_name_and_takes_time() {
        assert!("fisher=0.5".parse::<WorkArg>().is_ok());
        for bad in ["fisher", "=1", "fisher=", "fisher=0", "fisher=-1", "fisher=nan", "fisher=inf"]
        {
            assert!(bad.parse::<WorkArg>().is_err(), "{bad}");
        }
    }
}

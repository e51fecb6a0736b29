//! Work of the user's own that fills the idle time of a simulated step.

use std::fmt::Write;
use std::str::FromStr;

use anyhow::{Result, ensure};
use chimera_core::analyze::{FreeWindow, OwnWork, WorkPiece, fill};
use serde_json::{Value, json};

use crate::cli::parts::console::figure;

/// More pieces than anybody reads.
const MOST_PIECES: f64 = 1e6;

/// The value of `--work`.
#[derive(Clone)]
pub(crate) struct WorkArg(OwnWork);

impl FromStr for WorkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkArg, String> {
        let form = || format!("`{text}` is not a name and what a piece takes, such as fisher=1");
        let (name, takes) = text.split_once('=').ok_or_else(form)?;
        let takes: f64 = takes.parse().map_err(|_| form())?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(form());
        }
        if !(takes.is_finite() && takes > 0.0) {
            return Err(format!("a piece of `{name}` has to take some time, not {takes}"));
        }
        Ok(WorkArg(OwnWork { name: name.into(), takes }))
    }
}

/// Works, and where their pieces fit.
pub(crate) struct FilledStep {
    works: Vec<OwnWork>,
    /// By worker: idle time.
    idle: Vec<f64>,
    pieces: Vec<WorkPiece>,
}

impl FilledStep {
    /// Fills the windows of each worker; nothing without work.
    pub(crate) fn of(works: &[WorkArg], windows: &[Vec<FreeWindow>]) -> Result<Option<FilledStep>> {
        let works: Vec<OwnWork> = works.iter().map(|WorkArg(work)| work.clone()).collect();
        let length = |windows: &Vec<FreeWindow>| windows.iter().map(|w| w.to - w.from).sum::<f64>();
        let idle: Vec<f64> = windows.iter().map(length).collect();
        let all: f64 = idle.iter().sum();
        for OwnWork { name, takes } in &works {
            ensure!(
                all / takes <= MOST_PIECES,
                "{} pieces of `{name}` would fit, more than {MOST_PIECES}: choose pieces that take longer",
                (all / takes).floor()
            );
        }
        let pieces = fill(windows, &works);
        Ok((!works.is_empty()).then_some(FilledStep { works, idle, pieces }))
    }

    fn of_worker(&self, worker: usize) -> impl Iterator<Item = &WorkPiece> {
        self.pieces.iter().filter(move |piece| piece.worker.index() == worker)
    }

    /// The pieces of a worker: `[name, from, to]` each.
    pub(crate) fn json(&self, worker: usize) -> Value {
        let pieces = self.of_worker(worker);
        pieces.map(|p| json!([self.works[p.work].name, p.from, p.to])).collect()
    }

    /// How many pieces of each work fit on each worker, and the idle time that is left.
    pub(crate) fn table(&self) -> Result<String> {
        let heads: Vec<String> =
            self.works.iter().map(|w| format!("{} ({})", w.name, figure(w.takes))).collect();
        let mut text = format!(
            "\nwork in idle time, pieces that fit\nworker  {}  idle after it\n",
            heads.join("  ")
        );
        for (worker, idle) in self.idle.iter().enumerate() {
            write!(text, "{worker:>6}")?;
            for (work, head) in heads.iter().enumerate() {
                let n = self.of_worker(worker).filter(|piece| piece.work == work).count();
                write!(text, "  {n:>width$}", width = head.chars().count())?;
            }
            let filled: f64 = self.of_worker(worker).map(|piece| piece.to - piece.from).sum();
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

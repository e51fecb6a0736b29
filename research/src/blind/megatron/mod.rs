//! Bytes and seconds of Megatron-LM's own test runs.

mod bytes;
mod groups;
mod run;
mod seconds;
mod settings;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use chimera_core::analyze::peak_working_bytes;
use chimera_core::lower::{Lowering, lower};
use chimera_core::program::Program;
use chimera_core::schedule::{Schedule, Shape};

use self::groups::Groups;
use self::run::Run;
use self::seconds::Machine;
use self::settings::Settings;
use super::table::{Row, Table};

const ROWS: &str = include_str!("../../../blind/megatron_h100.csv");
const OPTIONS: &str = include_str!("../../../blind/megatron_options.csv");
/// The row that the time of a launch is fitted to.
const FITTED: &str = "gpt/gpt3_mcore_tp1_pp2";

/// The table, predicted.
pub(super) struct Megatron {
    pub(super) predicted: Vec<Predicted>,
    /// Cases that are not predicted, with the reason.
    pub(super) left_out: Vec<(String, String)>,
    /// Seconds in which the host launches one pass of a layer.
    pub(super) launch_s: f64,
}

/// A row, predicted and published.
pub(super) struct Predicted {
    pub(super) case: String,
    pub(super) is_fitted: bool,
    /// Peak bytes, bytes at the end of a step, and seconds of a step.
    pub(super) figures: [Pair; 3],
}

/// A figure, predicted and published.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) predicted: f64,
    pub(super) published: f64,
}

impl Pair {
    /// Returns the relative difference of the prediction.
    pub(super) fn error(self) -> f64 {
        self.predicted / self.published - 1.0
    }
}

impl Megatron {
    pub(super) fn published() -> Result<Megatron> {
        Megatron::of(ROWS, None)
    }

    /// Predicts the rows of a table, whose options are in a folder of configurations.
    pub(super) fn of(rows: &str, configs: Option<&Path>) -> Result<Megatron> {
        let machine = fitted()?;
        let table = Table::of(rows)?;
        let (mut predicted, mut left_out) = (Vec::new(), Vec::new());
        for row in table.rows() {
            let case = row.text("case")?;
            let run = if row.number("tp")? > 1.0 {
                Err(anyhow!("tensor-parallel: layers are not split over ranks here"))
            } else {
                settings(case, configs).and_then(|settings| Run::of(case, &settings))
            };
            match run {
                Ok(run) => predicted.push(predict(row, &run, &machine)?),
                Err(reason) => left_out.push((case.to_string(), format!("{reason:#}"))),
            }
        }
        Ok(Megatron { predicted, left_out, launch_s: machine.launch_s })
    }
}

/// Returns the machine, fitted to one row.
fn fitted() -> Result<Machine> {
    let table = Table::of(ROWS)?;
    let mut rows = table.rows();
    let row = rows.find(|row| row.text("case").is_ok_and(|case| case == FITTED));
    let row = row.context("the fitted row is not in the table")?;
    let run = Run::of(FITTED, &settings(FITTED, None)?)?;
    let mut machine = Machine::h100()?;
    machine.fit(&run, &program(&run)?, row.number("iter_s_median")?);
    Ok(machine)
}

fn settings(case: &str, configs: Option<&Path>) -> Result<Settings> {
    if let Some(folder) = configs {
        let path = folder.join(case).join("model_config.yaml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        return Settings::of_config(&text);
    }
    let table = Table::of(OPTIONS)?;
    let found = table.rows().find(|row| row.text("case").is_ok_and(|known| known == case));
    match found {
        Some(row) => Settings::of_words(row.text("options")?),
        None => bail!("its model_config.yaml is not known; give --configs"),
    }
}

fn program(run: &Run) -> Result<Program> {
    let shape = Shape { n_chunks: run.chunks, ..Shape::new(run.depth, run.micro_batches) };
    Ok(lower(&Groups(run.group).timetable(&shape)?, &Lowering::default())?)
}

/// Megatron's figures of memory are those of its last rank, which writes the log.
fn predict(row: Row<'_>, run: &Run, machine: &Machine) -> Result<Predicted> {
    let program = program(run)?;
    let stages: Vec<_> = (0..run.n_stages()).map(|stage| bytes::stage(run, stage)).collect();
    let last = run.depth - 1;
    let resident = bytes::resident(run, last);
    let peak = resident + peak_working_bytes(&program, &stages, 1.0)[last];
    let of =
        |predicted, name| Ok::<_, anyhow::Error>(Pair { predicted, published: row.number(name)? });
    let case = row.text("case")?;
    Ok(Predicted {
        is_fitted: case == FITTED,
        case: case.to_string(),
        figures: [
            of(peak, "max_alloc_bytes")?,
            of(resident, "alloc_bytes")?,
            of(machine.step_s(run, &program), "iter_s_median")?,
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published table is predicted, and a row whose options are not known is not.
    #[test]
    fn peak_bytes_are_close_and_unknown_rows_are_left_out() {
        let table = Megatron::published().unwrap();
        let is_close = |row: &&Predicted| row.figures[0].error().abs() < 0.05;
        assert_eq!(table.predicted.iter().filter(is_close).count(), table.predicted.len());
        assert_eq!((table.predicted.len(), table.left_out.len()), (10, 12));
        let rows = "case,tp,iter_s_median,max_alloc_bytes,alloc_bytes\ngpt/other,1,1,1,1\n";
        let other = Megatron::of(rows, None).unwrap();
        assert!(other.left_out[0].1.contains("give --configs"), "{:?}", other.left_out);
    }
}

//! Gathers the files that a run left in its folder, and the reasons for missing ones.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cli::parts::training::comparison::{Comparison, TraceSummary, length, median};
use crate::cli::parts::training::followed::Followed;
use crate::cli::parts::training::outcome::NOT_DRAWN;
use crate::formats::files::text_regular;
use crate::formats::trace::{self, TracedRun};
use crate::plan::Figure;
use crate::run::{MEASURED, PLANNED, SETTINGS, SUMMARY, settings_in};

/// Longer files do not belong to a run.
const MAX_BYTES: u64 = 16 << 20;

/// The reason why files are missing before the end of a run.
const AT_THE_END: &str = "a run writes it after all its steps";

/// A value, or the reason why it is missing.
pub(super) type Known<T> = Result<T, String>;

/// Everything that the page shows.
pub(super) struct Gathered {
    pub(super) run: Followed,
    /// The text of the settings, with the origin of each.
    pub(super) settings: String,
    pub(super) table: toml::Table,
    /// `Ok` if the metrics could be read.
    pub(super) metrics: Known<()>,
    pub(super) ended: Known<RunSummary>,
    pub(super) planned: Known<TracedRun>,
    pub(super) measured: Known<MeasuredStep>,
    pub(super) comparison: Known<Comparison>,
}

/// The part of a run's summary that is shown.
#[derive(Deserialize)]
pub(super) struct RunSummary {
    pub(super) steps: u64,
    pub(super) validation_loss: Option<f64>,
    pub(super) perplexity: Option<f64>,
    /// A text that the model wrote.
    pub(super) sample: Option<String>,
    pub(super) seconds: Option<f64>,
    pub(super) prediction: Option<Vec<Figure>>,
    #[serde(default)]
    pub(super) advice: Vec<String>,
    pub(super) planned_by: Option<String>,
}

/// A measured step, or a window of steps.
pub(super) struct MeasuredStep {
    pub(super) run: TracedRun,
    /// Describes which step it is.
    pub(super) which: String,
    /// Whether the run wrote it at its end.
    pub(super) is_of_end: bool,
}

impl Gathered {
    pub(super) fn of(folder: &Path) -> Result<Gathered> {
        let table = settings_in(folder)?;
        let settings = text_regular(&folder.join(SETTINGS), MAX_BYTES)?.unwrap_or_default();
        let mut run = Followed::open(folder)?;
        let metrics = known(run.read());
        let ended = known(ended(&folder.join(SUMMARY)));
        let named = table.get("trace").and_then(toml::Value::as_str);
        let planned = known(only(&folder.join(PLANNED), ended.is_ok()));
        let measured = known(measured(folder, named, ended.is_ok()));
        let comparison = match (&planned, &measured) {
            (Ok(planned), Ok(MeasuredStep { run, .. })) => {
                let [planned, measured] = [planned, run].map(|run| TraceSummary::of(run, 1.0));
                known(Comparison::of(planned, measured))
            }
            _ => Err("It needs both a planned and a measured timeline.".into()),
        };
        Ok(Gathered { run, settings, table, metrics, ended, planned, measured, comparison })
    }

    /// Returns the text of a setting.
    pub(super) fn setting(&self, key: &str) -> Option<String> {
        let value = self.table.get(key)?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_string))
    }
}

fn known<T>(outcome: Result<T>) -> Known<T> {
    outcome.map_err(|error| format!("{error:#}"))
}

fn ended(path: &Path) -> Result<RunSummary> {
    absent(path, AT_THE_END)?;
    let place = || format!("{} cannot be read", path.display());
    let text = text_regular(path, MAX_BYTES).with_context(place)?;
    let text = text.with_context(|| format!("it is longer than {MAX_BYTES} bytes"));
    serde_json::from_str(&text.with_context(place)?).with_context(place)
}

/// Reads the trace of a single step that a run writes at its end; `has_ended` is whether it has
/// ended.
fn only(path: &Path, has_ended: bool) -> Result<TracedRun> {
    let why = if has_ended {
        format!("{NOT_DRAWN}; or the run was killed after them, before it wrote its end")
    } else {
        AT_THE_END.to_string()
    };
    absent(path, &why)?;
    median(trace::read_regular(path)?)
}

/// Reads the trace that the settings name, which has all ranks, otherwise the last step of the
/// first group.
fn measured(folder: &Path, named: Option<&str>, has_ended: bool) -> Result<MeasuredStep> {
    let path = folder.join(MEASURED);
    let last = || -> Result<MeasuredStep> {
        let run = only(&path, has_ended)?;
        let last = length(run.n_steps().unwrap_or(1));
        let which = format!("the last {last}, of the first group of ranks");
        Ok(MeasuredStep { run, which, is_of_end: true })
    };
    let Some(named) = named.map(PathBuf::from) else { return last() };
    match trace::read_regular(&named).and_then(median) {
        Ok(run) => {
            let name = run.name.clone().unwrap_or_else(|| "a step".into());
            let which = format!("{name}, of median length among those in {}", named.display());
            Ok(MeasuredStep { run, which, is_of_end: false })
        }
        Err(error) => {
            let measured = last().with_context(|| format!("{error:#}"))?;
            let which = format!("{} (of the trace: {error:#})", measured.which);
            Ok(MeasuredStep { which, ..measured })
        }
    }
}

/// Explains why a file is missing, if it is.
fn absent(path: &Path, why: &str) -> Result<()> {
    anyhow::ensure!(path.exists(), "{} is not there: {why}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_that_ended_did_not_write_is_not_promised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PLANNED);
        let why = |has_ended| only(&path, has_ended).map(drop).unwrap_err().to_string();
        assert!(why(false).ends_with("a run writes it after all its steps"));
        assert!(why(true).contains("is not there: none of its last steps was a whole run"));
    }
}

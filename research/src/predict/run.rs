//! Runs trainings and plans with the command.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use xtask::command::read;

/// The command, the profile and the folder of trainings.
pub(super) struct Lab {
    pub(super) chimera: PathBuf,
    pub(super) profile: PathBuf,
    pub(super) steps: u32,
    /// The folder of the runs.
    pub(super) folder: tempfile::TempDir,
}

/// The summary of a training.
pub(super) struct Trained(Value);

impl Lab {
    /// Trains some steps with the options.
    pub(super) fn train(&self, options: &[String]) -> Result<Trained> {
        let out = tempfile::tempdir_in(self.folder.path())?;
        let mut train = Command::new(&self.chimera);
        train.arg("train").args(options).args(["--threads", "1", "--steps"]);
        train.arg(self.steps.to_string()).arg("--predict").arg(&self.profile);
        train.args(["--no-save", "true", "--json", "--out"]).arg(out.path().join("run"));
        let summary = read(&mut train)?;
        serde_json::from_str(&summary).map(Trained).context("the summary of a run")
    }

    /// The plan for a number of ranks and steps of `batch` samples.
    pub(super) fn plan(&self, ranks: usize, batch: usize, options: &[String]) -> Result<Value> {
        let mut plan = Command::new(&self.chimera);
        plan.args(["plan", "--ranks", &ranks.to_string(), "--batch", &batch.to_string()]);
        plan.args(["--memory", "4GiB", "--top", "100000", "--json", "--threads", "1"]);
        plan.arg("--profile").arg(&self.profile).args(options);
        serde_json::from_str(&read(&mut plan)?).context("the plan")
    }
}

impl Trained {
    /// Returns the predicted value of a figure, the measured one, and the relative error.
    pub(super) fn figure(&self, what: &str) -> Option<[f64; 3]> {
        let figures = self.0["prediction"].as_array()?;
        let figure = figures.iter().find(|figure| figure["what"] == what)?;
        let number = |key: &str| figure[key].as_f64();
        Some([number("predicted")?, number("measured")?, number("error")?])
    }

    /// The options suggested at its end, and the predicted gain as a fraction of a step.
    pub(super) fn suggestion(&self) -> Option<(String, f64)> {
        let suggestion = &self.0["suggestion"];
        Some((suggestion["options"].as_str()?.into(), suggestion["less"].as_f64()?))
    }

    /// Names of all figures.
    pub(super) fn figures(&self) -> Vec<&str> {
        let figures = self.0["prediction"].as_array();
        figures.into_iter().flatten().filter_map(|figure| figure["what"].as_str()).collect()
    }
}

//! Runs of the command that survive deaths, compared with an undisturbed one.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xtask::measure::{METRICS, metrics};
use xtask::strike::write_text;

/// Four ranks of Chimera, with two replicas of each stage.
const OPTIONS: &str = "train --depth 4 --micro-batches 4 --layers 4 --hidden 32 --heads 2 --context 64 \
     --micro-batch-size 2 --threads 1";
/// The file with the output of a run.
const OUTPUT: &str = "output";
/// Number of lines at the end of the output that an error shows.
const N_LINES: usize = 25;
/// Message of a launcher whose daemon has died, and the number of attempts for such a run.
const DAEMON_LOST: &str = "lost communication with a remote daemon";
const N_TRIES: usize = 6;

/// Starts runs that all train on the same text.
pub(super) struct Lab<L> {
    launch: L,
    data: TempDir,
}

impl<L: Fn() -> Command> Lab<L> {
    pub(super) fn new(launch: L) -> Result<Self> {
        let data = TempDir::new()?;
        write_text(data.path())?;
        Ok(Lab { launch, data })
    }

    pub(super) fn command(
        &self,
        strike: &str,
        options: &str,
        survive: &str,
        folder: &Path,
    ) -> Command {
        let strike = strike.replace("FILE", &folder.join("struck").display().to_string());
        let mut command = (self.launch)();
        command.args(OPTIONS.split_whitespace()).args(options.split_whitespace());
        command.args(["--survive", survive, "--data"]).arg(self.data.path().join("text"));
        command.arg("--out").arg(folder.join("run")).env("CHIMERA_STRIKE", strike);
        command
    }

    /// Starts a run, and waits until a rank of it is killed or stopped, or until it ends.
    pub(super) fn start_struck(
        &self,
        strike: &str,
        options: &str,
        survive: &str,
        folder: &Path,
    ) -> Result<Child> {
        let command = &mut self.command(strike, options, survive, folder);
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        while running.try_wait()?.is_none() && !folder.join("struck").exists() {
            sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    pub(super) fn train(&self, strike: &str, options: &str, survive: &str) -> Result<TempDir> {
        let folder = TempDir::new()?;
        let (path, said) = (folder.path(), folder.path().join(OUTPUT));
        let mut command = self.command(strike, options, survive, path);
        let output = fs::File::create(&said)?;
        let ended = command.stderr(output.try_clone()?).stdout(output).status()?;
        ensure!(ended.success(), "it ended with {ended}:\n{}", last_lines(&said)?);
        Ok(folder)
    }

    /// Trains as [`train`](Self::train) does. Tries again if the death also ended the launcher's
    /// own daemon on the rank's host: Chimera cannot survive that.
    fn survived(&self, strike: &str, options: &str, survive: &str) -> Result<TempDir> {
        for _ in 0..N_TRIES {
            let struck = self.train(strike, options, survive)?;
            let said = fs::read(struck.path().join(OUTPUT))?;
            if !String::from_utf8_lossy(&said).contains(DAEMON_LOST) {
                return Ok(struck);
            }
            println!("{strike}: Open MPI's daemon died, too");
        }
        bail!("Open MPI's daemon died {N_TRIES} times in a row")
    }

    /// Runs once for each strike. Returns a text with the number of ranks that were hit.
    pub(super) fn strike(
        &self,
        strikes: &[String],
        options: &str,
        survive: &str,
        undisturbed: &TempDir,
        most: f64,
    ) -> Result<String> {
        let (mut n_struck, mut n_missed) = (0, 0);
        for strike in strikes {
            let place = || format!("survive {survive}, struck: {strike}");
            let struck = self.survived(strike, options, survive).with_context(place)?;
            let is_struck = struck.path().join("struck").exists();
            *(if is_struck { &mut n_struck } else { &mut n_missed }) += 1;
            let apart = apart(struck.path(), undisturbed.path());
            let said = || last_lines(&struck.path().join(OUTPUT)).unwrap_or_default();
            let apart = apart.with_context(said).with_context(place)?;
            ensure!(apart <= most, "{}: losses or weights are {apart:e} apart", place());
        }
        Ok(format!("{n_struck} runs of the command ({n_missed} more ended before the point)"))
    }
}

/// The largest difference between the losses, norms and weights of two runs.
pub(super) fn apart(struck: &Path, undisturbed: &Path) -> Result<f64> {
    let (ours, theirs) = (steps(struck)?, steps(undisturbed)?);
    ensure!(ours.len() == theirs.len(), "{} steps in place of {}", ours.len(), theirs.len());
    let mut most = 0.0f64;
    for (a, b) in ours.iter().zip(&theirs) {
        ensure!(a["step"] == b["step"], "step {} in place of {}", a["step"], b["step"]);
        for key in ["loss", "grad_norm"] {
            let value = |step: &Value| step[key].as_f64().context("a step without its figures");
            most = most.max((value(a)? - value(b)?).abs());
        }
    }
    let (a, b) = (weights(struck)?, weights(undisturbed)?);
    ensure!(a.len() == b.len(), "another number of weights");
    Ok(a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(most, f64::max))
}

fn last_lines(file: &Path) -> Result<String> {
    let bytes = fs::read(file)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(N_LINES)..].join("\n"))
}

/// The steps of the run in a folder of a [`Lab`].
pub(super) fn steps(folder: &Path) -> Result<Vec<Value>> {
    metrics(&folder.join("run").join(METRICS))
}

/// All weights of a run, in the order of their file.
fn weights(folder: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(folder.join("run/model/model.safetensors"))?;
    let (length, rest) = bytes.split_first_chunk::<8>().context("no length of a header")?;
    let values = rest.get(u64::from_le_bytes(*length) as usize..).context("no weights")?;
    Ok(values.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

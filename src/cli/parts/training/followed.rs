//! Reads the files of a run while it writes them.

use std::fs::read_dir;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cli::parts::terminal::console::duration;
use crate::cli::parts::training::ranks::{LastSteps, Member};
use crate::formats::files::{open_regular, text_regular};
use crate::observe::{Lines, Metrics, TimeLeft};
use crate::run::{METRICS, RUNS, is_at_work, is_error, newest_first, settings_in};

/// Longer settings or error files do not belong to a run.
const MAX_BYTES: u64 = 16 << 20;

/// A run and the facts known about it.
pub(crate) struct Followed {
    folder: PathBuf,
    pub(crate) metrics: PathBuf,
    /// Whether the settings name the file of the metrics, which is then not in the folder by
    /// default.
    is_named: bool,
    /// Bytes of the metrics that have been read, up to the end of a line.
    n_read: u64,
    /// Lines of the metrics that have been read.
    n_lines: u64,
    pub(crate) n_steps: Option<u64>,
    /// Pairs of step and loss.
    pub(crate) losses: Vec<(f64, f64)>,
    /// Pairs of step and validation loss.
    pub(crate) validations: Vec<(f64, f64)>,
    /// Tokens per second in each step.
    pub(crate) tokens_per_s: Vec<u64>,
    left: TimeLeft,
    pub(crate) last_steps: LastSteps,
    /// The machines of its ranks, if the run has a host.
    pub(crate) members: Vec<Member>,
    pub(crate) last: Option<Metrics>,
    /// Damaged lines of the metrics: not a step, or a step that does not follow the one before.
    pub(crate) n_damaged: usize,
    /// The number of the first damaged line, from 1.
    first_damaged: Option<u64>,
    pub(crate) state: RunState,
}

/// The state of a run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RunState {
    AtWork,
    Over,
    /// Failed for this reason.
    Failed(String),
}

/// Returns the folder of the named run, otherwise of the newest run in `runs`.
pub(crate) fn named_or_newest(run: Option<PathBuf>) -> Result<PathBuf> {
    let newest = || newest_first(Path::new(RUNS)).into_iter().next();
    run.or_else(newest).with_context(|| format!("there is no run in {RUNS}/: name its folder"))
}

impl Followed {
    pub(crate) fn open(folder: &Path) -> Result<Followed> {
        let not_a_run = || format!("{} is not the folder of a run", folder.display());
        let settings = settings_in(folder).with_context(not_a_run)?;
        let steps = settings.get("steps").and_then(toml::Value::as_integer);
        let metrics = settings.get("metrics").and_then(toml::Value::as_str);
        Ok(Followed {
            folder: folder.to_path_buf(),
            metrics: metrics.map_or_else(|| folder.join(METRICS), PathBuf::from),
            is_named: metrics.is_some(),
            n_read: 0,
            n_lines: 0,
            n_steps: steps.and_then(|steps| u64::try_from(steps).ok()),
            losses: Vec::new(),
            validations: Vec::new(),
            tokens_per_s: Vec::new(),
            left: TimeLeft::default(),
            last_steps: LastSteps::default(),
            members: Vec::new(),
            last: None,
            n_damaged: 0,
            first_damaged: None,
            state: RunState::AtWork,
        })
    }

    /// Marks the run as over: the calling process has trained it, and still locks its folder.
    pub(crate) fn conclude(&mut self) {
        self.state = end(&self.folder);
    }

    /// Returns the run's name, progress and state.
    pub(crate) fn headline(&self) -> String {
        format!("{}  {}", self.folder().display(), self.progress())
    }

    /// Returns the run's progress and state.
    pub(crate) fn progress(&self) -> String {
        let n_done = self.last.as_ref().map_or(0, |last| last.step.saturating_add(1));
        let step = match (n_done, self.n_steps) {
            (0, _) => String::new(),
            (n, Some(all)) => format!("{n} of {all} steps"),
            (n, None) => format!("{n} steps"),
        };
        let left = self.seconds_left().filter(|seconds| seconds.is_finite());
        let state = match (&self.state, left) {
            (RunState::AtWork, Some(left)) => format!("running, {} left", duration(left)),
            (RunState::AtWork, None) => "running".to_string(),
            (RunState::Over, _) if self.n_steps.is_some_and(|all| n_done < all) => {
                "stopped early".to_string()
            }
            (RunState::Over, _) => "finished".to_string(),
            (RunState::Failed(why), _) => format!("failed: {why}"),
        };
        let damaged = match self.n_damaged {
            0 => String::new(),
            n => format!("  ({n} damaged line(s) of metrics left out)"),
        };
        format!("{step}  {state}{damaged}")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads the lines that were written since the last call. Starts again if a resumed run has cut
    /// some off.
    pub(crate) fn read(&mut self) -> Result<()> {
        self.state = state(&self.folder);
        let mut file = open_regular(&self.metrics)
            .with_context(|| format!("cannot read {}{}", self.metrics.display(), self.remedy()))?;
        if file.metadata()?.len() < self.n_read {
            *self = Followed { state: self.state.clone(), ..Followed::open(&self.folder)? };
        }
        file.seek(SeekFrom::Start(self.n_read))?;
        self.members = Member::all_in(&self.folder);
        let mut lines = Lines::of(BufReader::new(file));
        while let Some(line) = lines.next_line()? {
            self.n_read += line.len() as u64;
            self.n_lines += 1;
            let last = self.last.as_ref().map(|last| last.step);
            let is_next = |metrics: &Metrics| last.is_none_or(|last| last < metrics.step);
            match serde_json::from_slice(line) {
                Ok(metrics) if is_next(&metrics) => self.add(metrics),
                _ => {
                    self.n_damaged += 1;
                    self.first_damaged.get_or_insert(self.n_lines);
                }
            }
        }
        ensure!(
            self.last.is_some() || self.n_damaged == 0,
            "{}: no metrics of a step in any of its {} line(s): does it belong to another program?",
            self.metrics.display(),
            self.n_lines
        );
        Ok(())
    }

    /// Describes the damaged lines of the metrics, if there are any.
    pub(crate) fn damage(&self) -> Option<String> {
        let (first, file) = (self.first_damaged?, self.metrics.display());
        let others = match self.n_damaged {
            1 => "it is".to_string(),
            n => format!("it and {} more are", n - 1),
        };
        Some(format!(
            "{file}: line {first} is not the metrics of a step that comes after the one before: {others} left out"
        ))
    }

    /// Suggests what to do if there are no metrics.
    fn remedy(&self) -> &'static str {
        match (self.metrics.exists(), self.is_named, self.metrics.is_relative()) {
            (true, ..) => "",
            (_, false, _) => {
                ", which a run writes from its first step on: copy it too, if this folder is a copy of a run"
            }
            (_, true, true) => {
                ", which the settings name relative to the folder in which the run was started: \
                 follow the run from there"
            }
            (_, true, false) => ", which the settings name: is the run from another machine?",
        }
    }

    fn add(&mut self, metrics: Metrics) {
        // The loss of a skipped step may be missing; and values beyond f32 would leave the curve
        // without bounds.
        let sound = |loss: &f64| loss.abs() <= f64::from(f32::MAX);
        let point = |loss| (metrics.step as f64, loss);
        self.losses.extend(metrics.loss.filter(sound).map(point));
        self.validations.extend(metrics.validation_loss.filter(sound).map(point));
        self.tokens_per_s.push(metrics.tokens_per_s as u64);
        self.left.add(metrics.step_s);
        self.last_steps.add(&metrics);
        self.last = Some(metrics);
    }

    /// Returns the seconds until the last step, at the speed of recent steps.
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let n_left = self.n_steps?.saturating_sub(self.last.as_ref()?.step.saturating_add(1));
        self.left.of(n_left)
    }
}

fn state(folder: &Path) -> RunState {
    if is_at_work(folder) { RunState::AtWork } else { end(folder) }
}

/// Returns how a run ended: a failed run leaves an error file.
fn end(folder: &Path) -> RunState {
    let files = read_dir(folder).into_iter().flatten().flatten();
    let is_error =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(is_error);
    let error = files.map(|file| file.path()).filter(is_error).min();
    let Some(error) = error else { return RunState::Over };
    let text = text_regular(&error, MAX_BYTES).ok().flatten().unwrap_or_default();
    let error: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    RunState::Failed(error["message"].as_str().unwrap_or("for an unknown reason").to_string())
}

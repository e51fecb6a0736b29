//! The folder of a run that has begun: its settings, metrics and errors.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use chimera_core::fault::{Class, Fault};
use chimera_formats::checkpoint::Store;
use chimera_formats::files::{self, io_fault, is_lost};
use chimera_settings::Config;

use super::claim::{Place, is_own};
use super::history::{conflicts, forked_from, note_writer, other_writer};
use super::layout::{METRICS, SETTINGS, is_same, path_in, resolved, write_error};
use super::lock::Lock;
use super::outputs::{Behind, Undo, check_places, claim_outputs, fresh_metrics, named_file};
use crate::observe::{Best, EventFile, Explain, Metrics, history};

/// The folder that one run writes to.
pub struct Folder {
    place: Place,
    first_step: u64,
    metrics: BufWriter<File>,
    metrics_path: PathBuf,
    events: Option<EventFile>,
    best: Option<Best>,
    /// Locks held for as long as the run is at work.
    _claims: Vec<Lock>,
}

impl Place {
    /// Writes `config.toml` and begins the metrics. The metrics of a run that is resumed, or that
    /// has nothing to resume from, continue at step `first`. Calls `warn` for metrics that are lost
    /// and for files that get another name. A refusal leaves settings and files as they were.
    pub fn begin(self, config: &Config, first: u64, warn: &dyn Fn(&str)) -> Result<Folder> {
        let (shown, own_metrics) = (self.path.join(SETTINGS), self.path.join(METRICS));
        let metrics_path = config.output.metrics.as_ref().unwrap_or(&own_metrics).clone();
        check_apart(config, &metrics_path)?;
        check_places(config, &self.path, self.store().folder())?;
        let claims = claim_outputs(config)?;
        let named_metrics = config.output.metrics.as_deref();
        let other = named_metrics.and_then(|path| other_writer(path, &self.path));
        let (goes_on, has_saved) = (self.goes_on(config), self.has_saved(config));
        let before = self.before(config);
        self.refuse_another(config, first, before.as_ref())?;
        let settings = self.settings(config, goes_on);
        let unwritten = |e: std::io::Error| io_fault("settings", &shown, &e);
        let mut undos = Vec::new();
        // The settings of a new run mark the folder as taken; those of a resumed run are the last to change.
        if !goes_on {
            check_fresh(&shown, &self.store())?;
            files::write(&shown, settings.as_bytes()).map_err(unwritten)?;
            undos.push(Undo::of_new(&shown));
        }
        self.prepare_weights(config, has_saved)?;
        let path_before = |key| before.as_ref().and_then(|before| path_in(before, key));
        let is_new = |trace: &&Path| !path_before("trace").is_some_and(|was| is_same(was, trace));
        if let Some(trace) = config.output.trace.as_deref().filter(is_new) {
            undos.push(named_file(trace)?.1);
        }
        let tensorboard = config.output.tensorboard.as_deref();
        let events = tensorboard.map(|dir| create_events(dir, first, &settings)).transpose()?;
        undos.extend(events.as_ref().map(|events| Undo::of_new(events.path())));
        let had_metrics = is_same(path_before("metrics").unwrap_or(&own_metrics), &metrics_path);
        let is_own = self.is_again || had_metrics || is_same(&metrics_path, &own_metrics);
        let has_trained = self.is_again || first > 0 && self.store().has_whole();
        let behind = Behind {
            path: &metrics_path,
            first,
            is_named: config.output.metrics.is_some(),
            had_metrics: had_metrics && has_trained,
        };
        let (metrics, best) = if goes_on && is_own && other.is_none() {
            let opened = behind.open(warn);
            opened.with_context(|| format!("cannot go on with {}", metrics_path.display()))?
        } else {
            let (metrics, undo) = match &config.output.metrics {
                Some(named) => named_file(named)?,
                None => fresh_metrics(&metrics_path)?,
            };
            undos.push(undo);
            (metrics, None)
        };
        self.remove_leftovers()?;
        if goes_on {
            files::write(&shown, settings.as_bytes()).map_err(unwritten)?;
        }
        undos.into_iter().for_each(|undo| undo.give_up(warn));
        if let Some(other) = other.filter(|_| goes_on && had_metrics) {
            let (file, run) = (metrics_path.display(), other.display());
            warn(&format!(
                "{file} held the metrics of the run in {run}: it begins anew at step {first}"
            ));
        }
        if let Some(error) = named_metrics.and_then(|path| note_writer(path, &self.path).err()) {
            warn(&format!("it is not recorded that these metrics belong to this run: {error:#}"));
        }
        let (place, first_step, metrics) = (self, first, BufWriter::new(metrics));
        Ok(Folder { place, first_step, metrics, metrics_path, events, best, _claims: claims })
    }

    /// The settings to write for `config`.
    fn settings(&self, config: &Config, goes_on: bool) -> String {
        let mut said = config.clone();
        // A fork without a checkpoint of its own begins there again.
        if let Some(from) = forked_from(&self.path).filter(|_| goes_on) {
            said.checkpoints.resume = Some(from.display().to_string());
        }
        said.to_toml()
    }

    /// Refuses a folder that holds another run than that of `config`, which begins with step `first`.
    fn refuse_another(
        &self,
        config: &Config,
        first: u64,
        before: Option<&toml::Table>,
    ) -> Result<()> {
        let conflicts = before.filter(|_| first == 0).map(|before| conflicts(before, config));
        let conflicts = conflicts.unwrap_or_default();
        ensure!(
            conflicts.is_empty(),
            "{} holds another run, without a checkpoint: choose another --out, or remove it\n  {}",
            self.path.display(),
            conflicts.join("\n  ")
        );
        // A run that begins with another run's checkpoint would also prune the ones here.
        let is_fresh = !is_own(config, &self.path) && !self.path.join(SETTINGS).exists();
        ensure!(
            !is_fresh || !self.store().has_whole(),
            "{} holds checkpoints: --resume auto goes on with them; or choose another --out, or remove them",
            self.path.display()
        );
        Ok(())
    }
}

impl Folder {
    /// Returns the folder of a run that begins at its start.
    pub fn create(config: &Config) -> Result<Folder> {
        Place::claim(config)?.begin(config, 0, &|_| ())
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Returns the first step whose metrics this process writes. It is later than the run's first if rank 0 has died.
    pub fn first_step(&self) -> u64 {
        self.first_step
    }

    /// Returns the locked folder itself.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Adds a step to the metrics. Calls `warn` if their file was removed.
    ///
    /// # Errors
    /// If the metrics cannot be written, or the folder is no longer the one that this run began in:
    /// what is saved next might belong to another run.
    pub fn record(&mut self, metrics: &Metrics, warn: &dyn Fn(&str)) -> Result<()> {
        self.place.check()?;
        self.reopen_metrics(metrics.step, warn)?;
        let text = serde_json::to_string(metrics)?;
        let written = writeln!(self.metrics, "{text}").and_then(|()| self.metrics.flush());
        written.map_err(|e| io_fault("metrics", &self.metrics_path, &e))?;
        self.best = Best::of(self.best, metrics.step, metrics.validation_loss);
        if let Some(events) = &mut self.events {
            events.record(metrics).map_err(|e| io_fault("events", events.path(), &e))?;
        }
        Ok(())
    }

    /// Makes the metrics file again, from `step` on, if it was removed or replaced.
    fn reopen_metrics(&mut self, step: u64, warn: &dyn Fn(&str)) -> Result<()> {
        let (file, path) = (self.metrics.get_ref(), &self.metrics_path);
        let is_device = file.metadata().is_ok_and(|found| !found.is_file());
        if is_device || !is_lost(file, path.metadata()) {
            return Ok(());
        }
        warn(&format!(
            "{} was removed or replaced while the run trained: it goes on there from step {step}",
            path.display()
        ));
        let is_named = *path != self.place.path.join(METRICS);
        let file = history::reopen(path, is_named).map_err(|e| io_fault("metrics", path, &e))?;
        self.metrics = BufWriter::new(file);
        Ok(())
    }

    /// Returns the best validation loss of the run, including the time before it was resumed.
    pub fn best_validation(&self) -> Option<Best> {
        self.best
    }

    /// Writes why a run failed, and the last ops of its ranks. Writes nothing for a run that was stopped on request,
    /// or whose folder now belongs to another run. Returns the errors of writing: the error that counts is the first.
    pub fn write_failure(
        &self,
        error: &anyhow::Error,
        explain: Option<&Explain>,
    ) -> Vec<anyhow::Error> {
        match error.downcast_ref::<Fault>() {
            Some(fault) if fault.class != Class::Requeue && self.place.is_held() => {
                let explained = explain.map_or(Ok(()), Explain::write_all);
                [self.write_error(fault), explained].into_iter().filter_map(Result::err).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Writes `error.<rank>.json`. On a full disk it takes the space of the lock.
    fn write_error(&self, fault: &Fault) -> Result<()> {
        let write = || write_error(self.path(), fault.rank, fault);
        write().or_else(|_| {
            self.place.lock.as_ref().map(Lock::free_room);
            write()
        })
    }
}

/// Refuses a folder that is marked as a run's. The error says how to resume the run that is there.
fn check_fresh(path: &Path, store: &Store) -> Result<()> {
    let has_any = store.entries().is_ok_and(|entries| !entries.is_empty());
    ensure!(
        !(has_any && path.exists()),
        "{} is a run with checkpoints: --resume auto goes on with it; or choose another --out",
        path.parent().unwrap_or(path).display()
    );
    ensure!(
        path.symlink_metadata().is_err(),
        "cannot write {}: does it belong to another run? choose another --out: it is there already",
        path.display()
    );
    Ok(())
}

/// Creates the event file in `dir` of a run that begins with step `first`.
fn create_events(dir: &Path, first: u64, settings: &str) -> Result<EventFile> {
    let created = EventFile::create(dir, first, settings);
    created.with_context(|| format!("cannot write event files to {}", dir.display()))
}

/// Refuses a run whose metrics in `metrics` and whose trace have one path.
fn check_apart(config: &Config, metrics: &Path) -> Result<()> {
    let trace = config.output.trace.as_deref();
    ensure!(
        trace.is_none_or(|trace| resolved(trace) != resolved(metrics)),
        "metrics and trace are both {}: name two files",
        metrics.display()
    );
    Ok(())
}

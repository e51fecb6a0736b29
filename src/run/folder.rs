//! The folder of a run: settings, metrics, and what went wrong.

use std::fs::{File, create_dir_all, remove_dir, remove_file, rename};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use serde_json::json;

use super::earlier_files::{Behind, Undo, fresh_metrics, named_file};
use super::lock::{Lock, is_at_work};
use super::own_files::{METRICS, SETTINGS, check_outputs, remove_errors, resolved};
use super::resume::conflicts;
use super::runs::{RUNS, fresh};
use crate::formats::checkpoint::{AUTO, Checkpoint, Entry, Open, Store};
use crate::formats::files::disk::part_of;
use crate::formats::files::{self, io_fault, prepare_dir, replace, text_regular};
use crate::formats::save::{Claim, holds_model, prepare, saved_steps};
use crate::observe::{Best, EventFile, Explain, Metrics};
use crate::settings::{Config, MODEL};

/// Longer files are no settings.
pub(super) const MAX_SETTINGS: u64 = 16 << 20;
/// What the settings of every run say.
const OF_ALL: [&str; 2] = ["seed", "steps"];
/// Where one run writes.
pub struct Folder {
    place: Place,
    metrics: BufWriter<File>,
    metrics_path: PathBuf,
    events: Option<EventFile>,
    best: Option<Best>,
}

/// The folder of a run that is about to begin, which nobody else can write into.
pub struct Place {
    path: PathBuf,
    is_fresh: bool,
    /// Whether the run has begun here before, by a rank that has died.
    is_again: bool,
    /// There until the place is given up.
    lock: Option<Lock>,
}

impl Drop for Place {
    /// A fresh folder in which nothing was begun goes.
    fn drop(&mut self) {
        drop(self.lock.take());
        if self.is_fresh {
            let _ = remove_dir(&self.path); // which removes none that holds anything
        }
    }
}

impl Place {
    /// Makes the folder that `config` names, or a fresh one under `runs/`, and locks it.
    pub fn claim(config: &Config) -> Result<Place> {
        let is_auto = config.resume.as_deref() == Some(AUTO);
        ensure!(
            !is_auto || config.out.is_some(),
            "resume auto needs the folder of the run: name it with --out"
        );
        let path = match &config.out {
            Some(out) => {
                create_dir_all(out)
                    .with_context(|| format!("cannot make folder {}", out.display()))?;
                out.clone()
            }
            None => fresh(Path::new(RUNS))?,
        };
        let lock = Some(Lock::take(&path)?);
        Ok(Place { path, is_fresh: config.out.is_none(), is_again: false, lock })
    }

    /// Takes the folder of a run under way from a rank that has died.
    pub fn take_over(path: PathBuf) -> Result<Place> {
        create_dir_all(&path).with_context(|| format!("cannot make folder {}", path.display()))?;
        let lock = Some(Lock::take(&path)?);
        Ok(Place { path, is_fresh: false, is_again: true, lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checkpoint that `config` wants to go on from; `None` if it wants none, or takes whatever is
    /// there and none was ever finished. `tell` is told of those that cannot be used; `open` opens them.
    pub fn checkpoint(
        &self,
        config: &Config,
        tell: &dyn Fn(&str),
        open: &mut Open<'_>,
    ) -> Result<Option<Checkpoint>> {
        let Some(resume) = &config.resume else { return Ok(None) };
        if resume == AUTO {
            return self.store().newest_by(tell, open);
        }
        let checkpoint = open(Path::new(resume))?;
        let step = checkpoint.manifest().step;
        let newest = self.store().entries()?.into_iter().rfind(|entry| entry.is_whole);
        if let Some(newest) = newest.filter(|newest| newest.step > step) {
            bail!(
                "{} holds a newer checkpoint than {resume}, of step {}: choose another --out, or remove it",
                self.path.display(),
                newest.step
            );
        }
        Ok(Some(checkpoint))
    }

    /// Where its checkpoints are.
    pub fn store(&self) -> Store {
        Store::of(&self.path)
    }

    fn is_held(&self) -> bool {
        self.lock.as_ref().is_some_and(Lock::is_held)
    }

    /// Removes what ranks wrote of an earlier end of the run: why they failed, and what they did before it.
    pub fn remove_errors(&self) -> Result<()> {
        let place =
            || format!("cannot remove the errors of an earlier run in {}", self.path.display());
        remove_errors(&self.path).with_context(place)
    }

    /// Writes `config.toml` and begins the metrics; those of a run that is resumed, or that was to be but
    /// has nothing to be resumed from, go on behind step `first`. `warn` is told of metrics that are lost, and of files
    /// that get another name. What is refused leaves settings and files as they were.
    pub fn begin(self, config: &Config, first: u64, warn: &dyn Fn(&str)) -> Result<Folder> {
        let (shown, own_metrics) = (self.path.join(SETTINGS), self.path.join(METRICS));
        let metrics_path = config.metrics.as_ref().unwrap_or(&own_metrics).clone();
        let is_trace = |trace: &PathBuf| resolved(trace) == resolved(&metrics_path);
        ensure!(
            !config.trace.as_ref().is_some_and(is_trace),
            "metrics and trace are both {}: name two files",
            metrics_path.display()
        );
        let (goes_on, has_saved) = (self.goes_on(config), self.has_saved(config, first));
        let before = self.before(config);
        self.refuse_another(config, first, before.as_ref())?;
        let settings = config.to_toml();
        let unwritten = |e: std::io::Error| io_fault("settings", &shown, &e);
        let mut undos = Vec::new();
        // Those of a new run mark the folder as taken; those of one that goes on are the last to change.
        if !goes_on {
            check_fresh(&shown, &self.store())?;
            files::write(&shown, settings.as_bytes()).map_err(unwritten)?;
            undos.push(Undo::of_new(&shown));
        }
        self.prepare_weights(config, has_saved)?;
        if let Some(dir) = &config.log {
            let place = || format!("cannot write a log into {}", dir.display());
            prepare_dir(dir).with_context(place)?;
        }
        let path_before = |key| before.as_ref().and_then(|before| path_in(before, key));
        let is_new = |trace: &&Path| !path_before("trace").is_some_and(|was| is_same(was, trace));
        if let Some(trace) = config.trace.as_deref().filter(is_new) {
            undos.push(named_file(trace)?.1);
        }
        let events = config.tensorboard.as_deref().map(|dir| {
            EventFile::create(dir, first, &settings)
                .with_context(|| format!("cannot write event files to {}", dir.display()))
        });
        let events = events.transpose()?;
        undos.extend(events.as_ref().map(|events| Undo::of_new(events.path())));
        let had_metrics = is_same(path_before("metrics").unwrap_or(&own_metrics), &metrics_path);
        let is_own = self.is_again || had_metrics || is_same(&metrics_path, &own_metrics);
        let (metrics, best) = if goes_on && is_own {
            Behind {
                path: &metrics_path,
                first,
                is_named: config.metrics.is_some(),
                had_metrics: first > 0 && had_metrics,
            }
            .open(warn)
            .with_context(|| format!("cannot go on with {}", metrics_path.display()))?
        } else {
            let (metrics, undo) = match &config.metrics {
                Some(named) => named_file(named)?,
                None => fresh_metrics(&metrics_path)?,
            };
            undos.push(undo);
            (metrics, None)
        };
        self.remove_errors()?;
        if goes_on {
            files::write(&shown, settings.as_bytes()).map_err(unwritten)?;
        }
        undos.into_iter().for_each(|undo| undo.give_up(warn));
        Ok(Folder { place: self, metrics: BufWriter::new(metrics), metrics_path, events, best })
    }

    /// Refuses a folder that holds another run than that of `config`, which begins with step `first`.
    fn refuse_another(
        &self,
        config: &Config,
        first: u64,
        before: Option<&toml::Table>,
    ) -> Result<()> {
        // Behind a checkpoint they are written anew.
        if first == 0 && !self.is_again && self.goes_on(config) {
            self.check_settings()?;
        }
        let conflicts = before.filter(|_| first == 0).map(|before| conflicts(before, config));
        let conflicts = conflicts.unwrap_or_default();
        ensure!(
            conflicts.is_empty(),
            "{} holds another run, without a checkpoint: choose another --out, or remove it\n  {}",
            self.path.display(),
            conflicts.join("\n  ")
        );
        let is_fresh = config.resume.is_none() && !self.path.join(SETTINGS).exists();
        let has_checkpoints = |entries: Vec<Entry>| entries.iter().any(|entry| entry.is_whole);
        ensure!(
            !is_fresh || !self.store().entries().is_ok_and(has_checkpoints),
            "{} holds checkpoints: --resume auto goes on with them; or choose another --out, or remove them",
            self.path.display()
        );
        Ok(())
    }

    /// Refuses settings that are there, but are not whole.
    fn check_settings(&self) -> Result<()> {
        let lacking = |settings: toml::Table| {
            let key = OF_ALL.iter().find(|key| !settings.contains_key(**key))?;
            Some(format!("{}: it lacks `{key}`", self.path.join(SETTINGS).display()))
        };
        let torn = settings_in(&self.path).map_or_else(|e| Some(format!("{e:#}")), lacking);
        ensure!(
            torn.is_none(),
            "{}: these are not the whole settings of a run. If a loss of power has torn them, remove the file, move \
             {METRICS} away and start again; or choose another --out",
            torn.unwrap_or_default()
        );
        Ok(())
    }

    /// Makes sure that weights can go where `config` says. A model that is there gives way only if this run
    /// `has_saved` it, and a folder that another run has claimed only if that is no longer at work.
    pub(crate) fn prepare_weights(&self, config: &Config, has_saved: bool) -> Result<()> {
        check_outputs(config, &self.path, self.store().folder())?;
        let Some(dir) = config.weights_dir(&self.path) else { return Ok(()) };
        let claim = Claim::of(&dir)?;
        if let Some(other) = claim.as_ref().filter(|claim| !self.is_of(claim)) {
            if self.is_again {
                return Ok(()); // a run under way goes on, and what it trained will go into its own folder
            }
            ensure!(
                !is_at_work(&other.run),
                "{} is where the run in {} saves its model, and it is at work: choose another folder",
                dir.display(),
                other.run.display()
            );
        }
        match &config.save {
            Some(dir) => prepare(dir, has_saved)?,
            // The run's own is made when there are weights.
            None => ensure!(
                has_saved || !holds_model(&dir),
                "{} holds a model already, which the weights of this run would replace: choose another --out, name \
                 another folder with --save, or leave them out with --no-save",
                dir.display()
            ),
        }
        if config.save.is_some() || claim.is_some() {
            Claim::make(&dir, &self.path, claim.is_some_and(|c| c.has_saved && self.is_of(&c)))?;
        }
        Ok(())
    }

    /// Whether a claim is of the run in this folder.
    fn is_of(&self, claim: &Claim) -> bool {
        is_same(&claim.run, &self.path)
    }

    /// Whether a model where `config` wants the weights is this run's, which begins with step `first`.
    pub(crate) fn has_saved(&self, config: &Config, first: u64) -> bool {
        let Some(dir) = config.weights_dir(&self.path) else { return false };
        let is_here = self.goes_on(config) || first > 0 && is_own(config, &self.path);
        let claim = Claim::of(&dir).ok().flatten();
        if config.save.is_some() {
            let is_claimed = claim.is_some_and(|claim| claim.has_saved && self.is_of(&claim));
            return self.is_again || is_here && is_claimed;
        }
        if claim.is_some_and(|claim| !self.is_of(&claim)) {
            return self.is_again;
        }
        let is_marked = || is_here && saved_steps(&dir).is_some();
        let was_wanted = |before: toml::Table| {
            let kept = before.get("no-save").and_then(toml::Value::as_bool) != Some(true);
            let own = self.path.join(MODEL);
            kept && is_same(path_in(&before, "save").unwrap_or(&own), &dir)
        };
        self.is_again || self.before(config).is_some_and(was_wanted) || is_marked()
    }

    /// Whether a run that has begun here goes on.
    fn goes_on(&self, config: &Config) -> bool {
        self.path.join(SETTINGS).exists() && (self.is_again || is_own(config, &self.path))
    }

    /// The settings so far of the run that goes on here.
    fn before(&self, config: &Config) -> Option<toml::Table> {
        if self.goes_on(config) { settings_in(&self.path).ok() } else { None }
    }
}

impl Folder {
    /// The folder of a run that begins at its start.
    pub fn create(config: &Config) -> Result<Folder> {
        Place::claim(config)?.begin(config, 0, &|_| ())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Adds a step to the metrics.
    ///
    /// # Errors
    /// If that cannot be written, or the folder is no more the one that this run began in: what is saved next might
    /// belong to another run.
    pub fn record(&mut self, metrics: &Metrics) -> Result<()> {
        self.check()?;
        let text = serde_json::to_string(metrics)?;
        let written = writeln!(self.metrics, "{text}").and_then(|()| self.metrics.flush());
        written.map_err(|e| io_fault("metrics", &self.metrics_path, &e))?;
        self.best = Best::of(self.best, metrics.step, metrics.validation_loss);
        if let Some(events) = &mut self.events {
            events.record(metrics).map_err(|e| io_fault("events", events.path(), &e))?;
        }
        Ok(())
    }

    /// The best validation loss of the run, before it was resumed too.
    pub fn best_validation(&self) -> Option<Best> {
        self.best
    }

    /// Whether the folder is still the one that this run began in.
    fn check(&self) -> Result<()> {
        let lost = || {
            io_fault(
                "into",
                self.path(),
                &"the folder was removed, moved or replaced while the run trained",
            )
        };
        Ok(self.place.is_held().then_some(()).ok_or_else(lost)?)
    }

    /// Writes another file into the folder.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        self.check()?;
        let path = self.path().join(name);
        Ok(files::write(&path, content.as_bytes()).map_err(|e| io_fault("file", &path, &e))?)
    }

    /// Writes why a run failed, and what its ranks did before it; nothing of one that was stopped on request. Returns
    /// what could not be written: the error that counts is the first.
    pub fn write_failure(
        &self,
        error: &anyhow::Error,
        explain: Option<&Explain>,
    ) -> Vec<anyhow::Error> {
        match error.downcast_ref::<Fault>() {
            Some(fault) if fault.class != Class::Requeue => {
                let explained = explain.map_or(Ok(()), Explain::write_all);
                [self.write_error(fault), explained].into_iter().filter_map(Result::err).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Writes `error.<rank>.json`, unless the folder is no more that of this run. On a full disk it takes the room
    /// of the lock.
    pub fn write_error(&self, fault: &Fault) -> Result<()> {
        if !self.place.is_held() {
            return Ok(());
        }
        let write = || write_error(self.path(), fault.rank, fault);
        write().or_else(|_| {
            self.place.lock.as_ref().map(Lock::free_room);
            write()
        })
    }
}

/// Writes `error.<rank>.json` into the folder of a run: why this process, which is `rank`, ends. The cause may
/// lie with another rank, which is then its peer.
pub fn write_error(folder: &Path, rank: Rank, fault: &Fault) -> Result<()> {
    let message = if fault.rank == rank { fault.message.clone() } else { fault.to_string() };
    let peer = fault.peer.or_else(|| (fault.rank != rank).then_some(fault.rank));
    let error = json!({
        "rank": rank, "pid": std::process::id(), "code": fault.class.code(), "class": fault.class,
        "step": fault.step, "op": fault.op, "peer": peer, "message": message,
    });
    let path = folder.join(format!("error.{}.json", rank.0));
    // Who reads it while this rank is killed finds all of it or nothing. A disk that is slow must not hold it up.
    let part = part_of(&path);
    let write = || {
        replace(&part)?.write_all(format!("{error:#}\n").as_bytes())?;
        rename(&part, &path)
    };
    let written = write().inspect_err(|_| {
        let _ = remove_file(&part); // the error that counts is the first
    });
    Ok(written.map_err(|e| io_fault("file", &path, &e))?)
}

/// Refuses a folder that is marked as a run's. Who wanted to go on with the one that is there is told how.
fn check_fresh(path: &Path, store: &Store) -> Result<()> {
    let has_any = store.entries().is_ok_and(|entries| !entries.is_empty());
    ensure!(
        !(has_any && path.exists()),
        "{} is a run with checkpoints: --resume auto goes on with it; or choose another --out",
        path.parent().unwrap_or(path).display()
    );
    ensure!(
        path.symlink_metadata().is_err(),
        "cannot write {}: is it of another run? choose another --out: it is there already",
        path.display()
    );
    Ok(())
}

/// Whether a run in `folder` goes on there, and does not begin with the checkpoint of another.
fn is_own(config: &Config, folder: &Path) -> bool {
    let holds = |resume: &str| Store::of(folder).holds(Path::new(resume));
    config.resume.as_deref().is_some_and(|resume| resume == AUTO || holds(resume))
}

/// A path among settings.
fn path_in<'s>(settings: &'s toml::Table, key: &str) -> Option<&'s Path> {
    settings.get(key)?.as_str().map(Path::new)
}

/// Whether two paths lead to one place.
fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    a == b || whole(a).is_some_and(|a| whole(b) == Some(a))
}

/// Whether a folder holds the settings of a run, be they torn, and not others of a user's.
pub fn is_run(folder: &Path) -> bool {
    let is_whole = |settings: toml::Table| OF_ALL.iter().all(|key| settings.contains_key(*key));
    folder.join(SETTINGS).exists() && settings_in(folder).map_or(true, is_whole)
}

/// The settings of the run in a folder.
pub fn settings_in(folder: &Path) -> Result<toml::Table> {
    let path = folder.join(SETTINGS);
    let read = || -> Result<_> {
        let text = text_regular(&path, MAX_SETTINGS)?;
        Ok(text.with_context(|| format!("it is longer than {MAX_SETTINGS} bytes"))?.parse()?)
    };
    read().with_context(|| path.display().to_string())
}

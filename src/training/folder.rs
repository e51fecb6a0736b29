//! The folder of a run: settings, metrics, and what went wrong.

use std::fs::{
    File, OpenOptions, create_dir, create_dir_all, read_dir, remove_dir, remove_file, rename, write,
};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use serde::Deserialize;
use serde_json::json;

use super::lock::Lock;
use super::resume::conflicts;
use super::tensorboard::EventFile;
use super::{Metrics, io_fault};
use crate::checkpoint::{AUTO, Checkpoint, Entry, Open, Store};
use crate::files::disk::part_of;
use crate::files::{self, prepare_dir};
use crate::settings::Config;

/// Where one run writes.
pub struct Folder {
    place: Place,
    metrics: BufWriter<File>,
    metrics_path: PathBuf,
    events: Option<EventFile>,
}

/// The folder of a run that is about to begin, which nobody else can write into.
pub struct Place {
    path: PathBuf,
    is_fresh: bool,
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
            None => fresh(Path::new("runs"))?,
        };
        let lock = Some(Lock::take(&path)?);
        Ok(Place { path, is_fresh: config.out.is_none(), lock })
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

    /// Writes `config.toml` and begins the metrics; those of a run that is resumed, or that was to be but
    /// has nothing to be resumed from, go on behind step `first`.
    pub fn begin(self, config: &Config, first: u64) -> Result<Folder> {
        let path = &self.path;
        let shown = path.join("config.toml");
        let metrics_path = config.metrics.clone().unwrap_or_else(|| path.join("metrics.jsonl"));
        let goes_on = shown.exists() && is_own(config, path);
        let before = if goes_on { settings_in(&shown) } else { None };
        if let Some(before) = before.as_ref().filter(|_| first == 0) {
            let conflicts = conflicts(before, config);
            ensure!(
                conflicts.is_empty(),
                "{} holds another run, without a checkpoint: choose another --out, or remove it\n  {}",
                path.display(),
                conflicts.join("\n  ")
            );
        }
        let trace_before = before.as_ref().and_then(|before| before.get("trace")?.as_str());
        let traced_before = goes_on && trace_before.map(Path::new) == config.trace.as_deref();
        let open = || -> Result<_> {
            if let Some(dir) = &config.save {
                crate::save::prepare(dir, config.resume.is_some())?;
            }
            if let Some(dir) = &config.log {
                let place = || format!("cannot write a log into {}", dir.display());
                prepare_dir(dir).with_context(place)?;
            }
            let events = config.tensorboard.as_deref().map(|dir| {
                EventFile::create(dir, first)
                    .with_context(|| format!("cannot write event files to {}", dir.display()))
            });
            let events = events.transpose()?;
            let metrics = if goes_on {
                behind(&metrics_path, first)
                    .with_context(|| format!("cannot go on with {}", metrics_path.display()))?
            } else {
                fresh_file(&metrics_path, config.metrics.as_ref().map_or("--out", |_| "--metrics"))?
            };
            if let Some(trace) = config.trace.as_deref().filter(|_| !traced_before) {
                fresh_file(trace, "--trace").inspect_err(|_| {
                    let _ = if goes_on { Ok(()) } else { remove_file(&metrics_path) };
                })?;
            }
            Ok((metrics, events))
        };
        let is_fresh = config.resume.is_none() && !shown.exists();
        let has_checkpoints = |entries: Vec<Entry>| entries.iter().any(|entry| entry.is_whole);
        ensure!(
            !is_fresh || !self.store().entries().is_ok_and(has_checkpoints),
            "{} holds checkpoints: --resume auto goes on with them; or choose another --out, or remove them",
            path.display()
        );
        let settings = config.to_toml();
        let opened = if goes_on {
            let written = files::write(&shown, settings.as_bytes());
            written.map_err(|e| io_fault("settings", &shown, &e))?;
            remove_errors(path)?;
            open()
        } else {
            let written = fresh_settings(&shown, &self.store())?.write_all(settings.as_bytes());
            written.map_err(|e| io_fault("settings", &shown, &e))?;
            open().inspect_err(|_| {
                let _ = remove_file(&shown); // it would mark the folder as taken
            })
        };
        let (metrics, events) = opened?;
        Ok(Folder { place: self, metrics: BufWriter::new(metrics), metrics_path, events })
    }
}

impl Folder {
    /// The folder of a run that begins at its start.
    pub fn create(config: &Config) -> Result<Folder> {
        Place::claim(config)?.begin(config, 0)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Adds a step to the metrics.
    pub fn record(&mut self, metrics: &Metrics) -> Result<()> {
        let text = serde_json::to_string(metrics)?;
        let written = writeln!(self.metrics, "{text}").and_then(|()| self.metrics.flush());
        written.map_err(|e| io_fault("metrics", &self.metrics_path, &e))?;
        if let Some(events) = &mut self.events {
            events.record(metrics).map_err(|e| io_fault("events", events.path(), &e))?;
        }
        Ok(())
    }

    /// Writes another file into the folder.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.path().join(name);
        Ok(write(&path, content).map_err(|e| io_fault("file", &path, &e))?)
    }

    /// Writes `error.<rank>.json`.
    pub fn write_error(&self, fault: &Fault) -> Result<()> {
        write_error(self.path(), fault.rank, fault)
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
    let written = write(&part, format!("{error:#}\n")).and_then(|()| rename(&part, &path));
    Ok(written.map_err(|e| io_fault("file", &path, &e))?)
}

/// A file of a run, in which an option puts it: one that is there belongs to another run, or to somebody else.
fn fresh_file(path: &Path, option: &str) -> Result<File> {
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let is_device = || std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
    match created {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && is_device() => {
            OpenOptions::new().write(true).open(path)
        }
        opened => opened,
    }
    .map_err(|e| {
        let taken = e.kind() == ErrorKind::AlreadyExists;
        let hint = if taken {
            format!(": is it of another run? choose another {option}")
        } else {
            String::new()
        };
        anyhow::Error::new(e).context(format!("cannot write {}{hint}", path.display()))
    })
}

/// The file that marks a folder as a run's. Who wanted to go on with the one that is there is told how.
fn fresh_settings(path: &Path, store: &Store) -> Result<File> {
    let has_any = store.entries().is_ok_and(|entries| !entries.is_empty());
    ensure!(
        !(has_any && path.exists()),
        "{} is a run with checkpoints: --resume auto goes on with it; or choose another --out",
        path.parent().unwrap_or(path).display()
    );
    fresh_file(path, "--out")
}

/// Whether a run in `folder` goes on there, and does not begin with the checkpoint of another.
fn is_own(config: &Config, folder: &Path) -> bool {
    config.resume.as_deref().is_some_and(|resume| {
        let whole = |path: &Path| path.canonicalize().ok();
        let holder = Path::new(resume).parent().and_then(whole);
        resume == AUTO || (holder.is_some() && holder == whole(Store::of(folder).folder()))
    })
}

/// What a run's `config.toml` says, if it can be read.
fn settings_in(path: &Path) -> Option<toml::Table> {
    std::fs::read_to_string(path).ok()?.parse().ok()
}

/// Metrics that end with the last whole line of a step before `first`.
fn behind(path: &Path, first: u64) -> Result<File> {
    #[derive(Deserialize)]
    struct Step {
        step: u64,
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let (mut end, mut line) = (0, String::new());
    let mut lines = BufReader::new(&file);
    while lines.read_line(&mut line)? > 0 {
        let step = serde_json::from_str(&line).map(|Step { step }| step);
        let is_foreign = end == 0 && line.ends_with('\n') && step.is_err();
        ensure!(!is_foreign, "its first line is no metrics of a step: it is not of this run");
        if !line.ends_with('\n') || !step.is_ok_and(|step| step < first) {
            break;
        }
        end += line.len() as u64;
        line.clear();
    }
    if file.metadata()?.is_file() {
        file.set_len(end)?;
    }
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// Removes what ranks said of an earlier end of the run, and of what they did before it.
fn remove_errors(path: &Path) -> Result<()> {
    for entry in read_dir(path)? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_error = name.starts_with("error.") && name.contains(".json");
        if is_error || (name.starts_with("ops.") && name.ends_with(".jsonl")) {
            remove_file(&file)?;
        }
    }
    Ok(())
}

/// The first folder `0001`, `0002`, … of `parent` that is not there yet.
fn fresh(parent: &Path) -> Result<PathBuf> {
    create_dir_all(parent).with_context(|| format!("cannot make folder {}", parent.display()))?;
    for number in 1..100_000 {
        let path = parent.join(format!("{number:04}"));
        match create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => {
                return Err(e).with_context(|| format!("cannot make folder {}", path.display()));
            }
        }
    }
    bail!("{} is full: name a folder with --out", parent.display())
}

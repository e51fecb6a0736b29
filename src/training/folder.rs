//! The folder of a run: settings, metrics, and what went wrong.

use std::fs::{File, OpenOptions, create_dir, create_dir_all, remove_file, write};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use chimera_core::fault::Fault;
use serde_json::json;

use super::tensorboard::EventFile;
use super::{Metrics, io_fault};
use crate::settings::Config;

/// Where one run writes.
pub struct Folder {
    path: PathBuf,
    metrics: BufWriter<File>,
    metrics_path: PathBuf,
    events: Option<EventFile>,
}

impl Folder {
    /// Makes the folder that `config` names, or a fresh one under `runs/`, and writes `config.toml`.
    pub fn create(config: &Config) -> Result<Folder> {
        let path = match &config.out {
            Some(out) => {
                create_dir_all(out)
                    .with_context(|| format!("cannot make folder {}", out.display()))?;
                out.clone()
            }
            None => fresh(Path::new("runs"))?,
        };
        let shown = path.join("config.toml");
        let mut file = fresh_file(&shown)?;
        file.write_all(config.to_toml().as_bytes())
            .map_err(|e| io_fault("settings", &shown, &e))?;
        let metrics_path = config.metrics.clone().unwrap_or_else(|| path.join("metrics.jsonl"));
        let open = || -> Result<_> {
            if let Some(dir) = &config.save {
                crate::save::prepare(dir)?;
            }
            if let Some(trace) = &config.trace {
                fresh_file(trace)?;
            }
            let events = config.tensorboard.as_deref().map(|dir| {
                EventFile::create(dir)
                    .with_context(|| format!("cannot write event files to {}", dir.display()))
            });
            Ok((fresh_file(&metrics_path)?, events.transpose()?))
        };
        let (metrics, events) = open().inspect_err(|_| {
            let _ = remove_file(&shown); // it would mark the folder as taken
        })?;
        Ok(Folder { path, metrics: BufWriter::new(metrics), metrics_path, events })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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
        let path = self.path.join(name);
        Ok(write(&path, content).map_err(|e| io_fault("file", &path, &e))?)
    }

    /// Writes `error.<rank>.json`.
    pub fn write_error(&self, fault: &Fault) -> Result<()> {
        let error = json!({
            "rank": fault.rank, "pid": std::process::id(), "code": fault.class.code(),
            "class": fault.class, "step": fault.step, "op": fault.op, "peer": fault.peer,
            "message": fault.message,
        });
        self.write(&format!("error.{}.json", fault.rank.0), &format!("{error:#}\n"))
    }
}

/// A file of a run: one that is there belongs to another run, or to somebody else.
fn fresh_file(path: &Path) -> Result<File> {
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let is_device = || std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
    match created {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && is_device() => {
            OpenOptions::new().write(true).open(path)
        }
        opened => opened,
    }
    .with_context(|| {
        let path = path.display();
        format!(
            "cannot write {path}: is it of another run? choose another --out, --metrics or --trace"
        )
    })
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

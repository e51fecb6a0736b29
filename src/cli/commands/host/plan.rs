//! The plan that a host sends its members: the settings of the run, and the files that these name.

use std::fs::read_dir;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::formats::checkpoint::Store;
use crate::formats::hub::complete;
use crate::settings::Config;

/// Options whose files every rank reads.
const INPUTS: [&str; 6] =
    ["data", "validation-data", "own-placement", "profile", "init", "adapter"];
/// Options of the host alone: places for results, which only rank 0 writes.
const OUTPUTS: [&str; 8] =
    ["metrics", "log", "tensorboard", "prometheus", "save", "predict", "threads", "report"];
/// The most files.
const MAX_FILES: usize = 10_000;

/// The plan, and the files of the host by their numbers.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) plan: Sent,
    pub(crate) files: Vec<PathBuf>,
}

/// The plan as it is sent.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// Settings as TOML.
    pub(crate) settings: String,
    /// Paths of the files on the host, by their numbers.
    pub(crate) paths: Vec<PathBuf>,
    /// The ticket by which members come again if the run continues with another layout.
    pub(crate) again: Option<String>,
}

impl Plan {
    /// Lists what members need for a run.
    ///
    /// # Errors
    /// If a file is missing.
    pub(crate) fn of(config: &Config) -> Result<Plan> {
        let mut settings: toml::Table = config.to_toml().parse()?;
        OUTPUTS.iter().for_each(|option| drop(settings.remove(*option)));
        let mut files = Vec::new();
        config.model.init.as_deref().map_or(Ok(()), complete)?;
        for option in INPUTS {
            for path in settings.get(option).into_iter().flat_map(paths) {
                let added = add(Path::new(path), &mut files);
                added.with_context(|| format!("--{option} {path}, which members need"))?;
            }
        }
        let resume = config.checkpoints.resume.as_deref();
        match (resume, &config.output.out) {
            (Some("auto"), Some(out)) => {
                let entries = Store::of(out).entries().unwrap_or_default();
                for entry in entries.into_iter().filter(|entry| entry.is_whole) {
                    add(&entry.path(), &mut files)?;
                }
            }
            (Some(path), _) if path != "auto" => {
                let added = add(Path::new(path), &mut files);
                added.with_context(|| format!("--resume {path}, which members need"))?;
            }
            _ => {}
        }
        let plan = Sent { settings: settings.to_string(), paths: files.clone(), again: None };
        Ok(Plan { plan, files })
    }
}

impl Sent {
    /// Returns the settings for a machine that has the host's files where `local` says.
    ///
    /// # Errors
    /// If they are not TOML.
    pub(crate) fn settings_at(&self, local: impl Fn(&Path) -> PathBuf) -> Result<toml::Table> {
        let mut settings: toml::Table = self.settings.parse()?;
        OUTPUTS.iter().for_each(|option| drop(settings.remove(*option)));
        let moved = |path: &str| Value::String(local(Path::new(path)).display().to_string());
        for option in INPUTS.into_iter().chain(["out", "trace"]) {
            match settings.get_mut(option) {
                Some(Value::Array(paths)) => paths.iter_mut().for_each(|path| {
                    *path = path.as_str().map_or_else(|| path.clone(), moved);
                }),
                Some(value) => {
                    if let Some(path) = value.as_str() {
                        *value = moved(path);
                    }
                }
                None => {}
            }
        }
        if let Some(resume) = settings.get_mut("resume")
            && let Some(path) = resume.as_str().filter(|path| *path != "auto")
        {
            *resume = moved(path);
        }
        Ok(settings)
    }
}

/// Returns the paths in the value of an option.
fn paths(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(paths) => paths.iter().filter_map(Value::as_str).collect(),
        value => value.as_str().into_iter().collect(),
    }
}

/// Adds a file, or all files below a folder.
fn add(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        path.metadata()?;
        files.push(path.to_path_buf());
    } else {
        for entry in read_dir(path)? {
            add(&entry?.path(), files)?;
        }
    }
    ensure!(files.len() <= MAX_FILES, "there are more than {MAX_FILES} files");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_writes_nothing_where_the_host_says() {
        let settings =
            "out = \"/a/runs\"\nlog = \"/etc\"\nsave = \"/b\"\ndata = [\"../c.txt\"]\nsteps = 3\n";
        let sent = Sent { settings: settings.into(), paths: Vec::new(), again: None };
        let local = |path: &Path| Path::new("cache").join(path.file_name().unwrap_or_default());
        let settings = sent.settings_at(local).expect("TOML").to_string();
        let expected = "data = [\"cache/c.txt\"]\nout = \"cache/runs\"\nsteps = 3\n";
        assert_eq!(settings, expected);
    }
}

//! The files in the folder of a run: their names, its settings read again, the reason of a failure;
//! and the folder of runs whose settings name none.

use std::fs::{create_dir, create_dir_all, read_dir, remove_file, rename};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_formats::files::disk::{part_of, remove_parts};
use chimera_formats::files::{io_fault, replace, text_regular};
use chimera_settings::schedules::Named;
use chimera_settings::{Config, MODEL, OPTIONS, Origin};
use serde_json::json;

/// The settings file, which makes a folder the folder of a run.
pub const SETTINGS: &str = "config.toml";
/// The metrics of a run that names no other file.
pub const METRICS: &str = "metrics.jsonl";
/// The machines of the run's ranks, if they have joined a host.
pub const MEMBERS: &str = "members.json";
/// The results of the run.
pub const SUMMARY: &str = "summary.json";
/// The last step as it was planned, as a trace.
pub const PLANNED: &str = "planned.trace.json";
/// The last step as it ran, as a trace.
pub const MEASURED: &str = "measured.trace.json";
/// The last step as it ran, as a drawing.
pub const DRAWING: &str = "pipeline.svg";
/// The report of the run.
pub const REPORT: &str = "report.html";
/// Files that a run or its report writes into its folder, or that it looks for there.
const OWN: [&str; 10] =
    [SETTINGS, METRICS, MEMBERS, SUMMARY, PLANNED, MEASURED, "lock", "rejoin", DRAWING, REPORT];
/// Options that name inputs of a run: files, or the folder of a model.
const INPUTS: [&str; 7] =
    ["data", "validation-data", "init", "adapter", "schedule", "profile", "predict"];
/// Suffixes of the files beside prepared data.
const BESIDE_DATA: [&str; 3] = [".json", ".targets", ".tokenizer.json"];

/// Refuses outputs that would replace the run's own files, its checkpoints, or its inputs.
pub(crate) fn check_outputs(config: &Config, run: &Path, checkpoints: &Path) -> Result<()> {
    let inputs = inputs(config);
    for (option, path) in outputs(config) {
        let Some(path) = path else { continue };
        let place = resolved(path);
        let within = place.strip_prefix(resolved(run)).ok().and_then(Path::to_str);
        let name = within.map_or("", |name| name.strip_suffix(".part").unwrap_or(name));
        let is_own_metrics = option == "metrics" && name == METRICS;
        let is_model = Path::new(name).starts_with(MODEL) && option != "save";
        let is_own = (OWN.contains(&name) || is_of_a_failure(name) || is_model) && !is_own_metrics;
        ensure!(
            !is_own && !place.starts_with(resolved(checkpoints)),
            "--{option} {}: the run keeps its own files there: name another place",
            path.display()
        );
        // A model's folder takes no file of the run; saving another model there is checked elsewhere.
        let is_file = ["metrics", "trace"].contains(&option);
        let is_in = |input: &Path| is_file && input.is_dir() && place.starts_with(input);
        if let Some((key, _)) = inputs.iter().find(|(_, input)| place == *input || is_in(input))
            && !(option == "save" && *key == "init")
        {
            bail!("--{option} {}: the run reads that ({key}): name another place", path.display());
        }
    }
    Ok(())
}

/// Returns the places where a run writes outside of its usual files, by option.
pub(crate) fn outputs(config: &Config) -> [(&'static str, &Option<PathBuf>); 5] {
    [
        ("metrics", &config.output.metrics),
        ("trace", &config.output.trace),
        ("log", &config.output.log),
        ("tensorboard", &config.output.tensorboard),
        ("save", &config.checkpoints.save),
    ]
}

/// Returns the inputs of a run by the option that names them, and its settings files.
fn inputs(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let is_file = |schedule: &str| matches!(schedule.parse(), Ok(Named::File(_)));
    let said = |key: &'static str| {
        let paths = match config.value(key).map(|(value, _)| value) {
            Some(toml::Value::String(name)) if key == "schedule" && !is_file(&name) => Vec::new(),
            Some(toml::Value::String(path)) => vec![path],
            Some(toml::Value::Array(paths)) => {
                paths.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        };
        let endings: &[&str] = if key.ends_with("data") { &BESIDE_DATA } else { &[] };
        let all = paths.into_iter().flat_map(move |path| {
            let beside: Vec<String> = endings.iter().map(|end| format!("{path}{end}")).collect();
            std::iter::once(path).chain(beside)
        });
        all.map(move |path| (key, resolved(Path::new(&path)))).collect::<Vec<_>>()
    };
    let settings = OPTIONS.iter().filter_map(|option| match config.value(option.name)?.1 {
        Origin::File(path, _) => Some(("config", resolved(path))),
        _ => None,
    });
    INPUTS.into_iter().flat_map(said).chain(settings).collect()
}

/// Resolves the links of a path, as far as its folders exist.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let there = |folder: &Path| {
        let (whole, rest) = (folder.canonicalize().ok()?, path.strip_prefix(folder).ok()?);
        // Joining an empty path would add a slash, as for a folder.
        Some(if rest.as_os_str().is_empty() { whole } else { whole.join(rest) })
    };
    path.ancestors().find_map(there).unwrap_or_else(|| path.clone())
}

/// Removes the records of an earlier failure, and the partial files of a killed process.
pub(crate) fn remove_leftovers(folder: &Path) -> std::io::Result<()> {
    for entry in read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_of_a_failure) {
            remove_file(entry.path())?;
        }
    }
    remove_parts(folder, &OWN);
    Ok(())
}

/// Returns true for `error.<rank>.json`.
pub fn is_error(name: &str) -> bool {
    is_of_a_rank(name, "error.", ".json")
}

/// Returns true for an error file, even a partial one, and for `ops.<rank>.jsonl`.
fn is_of_a_failure(name: &str) -> bool {
    is_error(name.strip_suffix(".part").unwrap_or(name)) || is_of_a_rank(name, "ops.", ".jsonl")
}

fn is_of_a_rank(name: &str, start: &str, end: &str) -> bool {
    let rank = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
}

/// Longer files are not settings.
pub(crate) const MAX_SETTINGS: u64 = 16 << 20;
/// Keys in the settings of every run.
const OF_ALL: [&str; 2] = ["seed", "steps"];

/// Returns true if a folder holds the settings of a run, even torn ones, and not a user's own settings.
pub fn is_run(folder: &Path) -> bool {
    let is_whole = |settings: toml::Table| OF_ALL.iter().all(|key| settings.contains_key(*key));
    folder.join(SETTINGS).exists() && settings_in(folder).map_or(true, is_whole)
}

/// Returns the settings of the run in a folder.
pub fn settings_in(folder: &Path) -> Result<toml::Table> {
    let path = folder.join(SETTINGS);
    let read = || -> Result<_> {
        let text = text_regular(&path, MAX_SETTINGS)?;
        Ok(text.with_context(|| format!("it is longer than {MAX_SETTINGS} bytes"))?.parse()?)
    };
    read().with_context(|| path.display().to_string())
}

/// Refuses settings that exist but are not whole.
pub(crate) fn check_whole(folder: &Path) -> Result<()> {
    let lacking = |settings: toml::Table| {
        let key = OF_ALL.iter().find(|key| !settings.contains_key(**key))?;
        Some(format!("{}: it lacks `{key}`", folder.join(SETTINGS).display()))
    };
    let torn = settings_in(folder).map_or_else(|e| Some(format!("{e:#}")), lacking);
    ensure!(
        torn.is_none(),
        "{}: the settings of the run are incomplete. If a power failure damaged them, remove the \
         file, move {METRICS} away and start again; or choose another --out",
        torn.unwrap_or_default()
    );
    Ok(())
}

/// Returns a path from settings.
pub(crate) fn path_in<'s>(settings: &'s toml::Table, key: &str) -> Option<&'s Path> {
    settings.get(key)?.as_str().map(Path::new)
}

/// Returns true if two paths lead to the same place.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    a == b || whole(a).is_some_and(|a| whole(b) == Some(a))
}

/// Writes `error.<rank>.json` into the folder of a run: the reason why this process, which is
/// `rank`, ends. If the cause lies with another rank, that rank is its peer.
pub fn write_error(folder: &Path, rank: Rank, fault: &Fault) -> Result<()> {
    let message = if fault.rank == rank { fault.message.clone() } else { fault.to_string() };
    let peer = fault.peer.or_else(|| (fault.rank != rank).then_some(fault.rank));
    let error = json!({
        "rank": rank, "pid": std::process::id(), "code": fault.class.code(), "class": fault.class,
        "step": fault.step, "op": fault.op, "peer": peer, "message": message,
    });
    let path = folder.join(format!("error.{}.json", rank.0));
    // A reader finds the whole file or none, even if this rank is killed. A slow disk must not hold it up.
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

/// The parent folder of runs whose settings name no folder.
pub const RUNS: &str = "runs";

/// Returns the runs in `parent`, newest first.
pub fn newest_first(parent: &Path) -> Vec<PathBuf> {
    let entries = read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = entries.filter(|path| number(path).is_some()).collect();
    runs.sort_unstable_by_key(|path| std::cmp::Reverse(number(path)));
    runs
}

/// Makes the folder `0001`, `0002`, … of `parent` that comes after all existing ones.
pub(crate) fn fresh(parent: &Path) -> Result<PathBuf> {
    create_dir_all(parent).with_context(|| format!("cannot make folder {}", parent.display()))?;
    let newest = newest_first(parent).first().and_then(|path| number(path)).unwrap_or(0);
    // Another run may make the same one at the same moment.
    for number in newest.saturating_add(1)..=u32::MAX {
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

/// Returns the number of a run in its path.
fn number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let is_number = name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { name.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs::remove_dir;

    use super::*;

    #[test]
    fn the_newest_run_has_the_highest_number() {
        let parent = tempfile::tempdir().expect("a folder");
        let of = |name: &str| parent.path().join(name);
        assert_eq!(fresh(parent.path()).expect("made"), of("0001"));
        for name in ["0002", "0010", "notes", "0009"] {
            create_dir(of(name)).expect("made");
        }
        remove_dir(of("0001")).expect("removed");
        assert_eq!(fresh(parent.path()).expect("made"), of("0011"));
        assert_eq!(newest_first(parent.path()), ["0011", "0010", "0009", "0002"].map(of));
    }
}

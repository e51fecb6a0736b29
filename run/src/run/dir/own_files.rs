//! The files that a run keeps in its folder, and that its outputs must not replace.

use std::fs::{read_dir, remove_file};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Result, bail, ensure};
use chimera_formats::files::disk::remove_parts;
use chimera_settings::schedules::Named;
use chimera_settings::{Config, MODEL, OPTIONS, Origin};

/// The settings file, which makes a folder the folder of a run.
pub const SETTINGS: &str = "config.toml";
/// The metrics of a run that names no other file.
pub const METRICS: &str = "metrics.jsonl";
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
const OWN: [&str; 9] =
    [SETTINGS, METRICS, SUMMARY, PLANNED, MEASURED, "lock", "rejoin", DRAWING, REPORT];
/// Options that name inputs of a run: files, or the folder of a model.
const INPUTS: [&str; 6] = ["data", "validation-data", "init", "schedule", "profile", "predict"];
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

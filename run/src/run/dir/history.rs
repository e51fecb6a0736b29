//! The past of the run in a folder: the settings that it began with, the checkpoint that it
//! continues from, and the run that wrote its metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use chimera_core::schedule::{Shape, find};
use chimera_formats::checkpoint::{AUTO, Manifest, Store, Unusable};
use chimera_formats::files::disk::with_ending;
use chimera_formats::files::{text_regular, write};
use chimera_settings::{Config, OPTIONS, OWN_MODEL, Resume};
use serde::{Deserialize, Serialize};

use super::layout::{SETTINGS, is_same, path_in, settings_in};

/// Values that held before these keys existed.
const EARLIER: &[(&str, &str)] = &[
    ("model", "\"gpt2\""),
    ("dropout", "0.0"),
    ("lora-dropout", "0.0"),
    ("dora", "false"),
    ("document-mask", "false"),
    ("layout", "\"balanced\""),
    ("head-dim", "0"),
    ("recompute-stages", "\"all\""),
    ("kfac-every", "10"),
    ("kfac-damping", "0.03"),
    ("kfac-decay", "0.9"),
    ("precision", "\"f32\""),
    ("bf16-products", "\"auto\""),
    ("reduce-precision", "\"f32\""),
    ("reduce-within", "0"),
    ("wire", "\"f32\""),
];
/// A key, and the older key that had its value before it existed.
const EARLIER_KEY: (&str, &str) = ("sequence", "context");
/// The option that decides whether all of the data is trained on.
pub(crate) const VALIDATION: &str = "validation-data";
/// The options that decide how old the weights of an asynchronous schedule are.
const STALENESS: [&str; 2] = ["schedule", "window"];

/// Describes the settings that differ from those in `was` and would make the run another training.
pub(crate) fn conflicts(was: &toml::Table, config: &Config) -> Vec<String> {
    let name = |key: &str| if key == OWN_MODEL { "model".into() } else { key.to_string() };
    let was = was.iter().map(|(key, value)| (name(key), value.to_string())).collect();
    let now = settings(config);
    let mut conflicts = changes(Resume::Fixed, &was, (config, &now), "there");
    conflicts.extend(other_split(&was, &now, "there"));
    conflicts
}

/// Describes the differences in options that have this treatment on resume. Options that a training
/// does not read are left out, such as those of another optimizer.
pub(crate) fn changes(
    resume: Resume,
    was: &BTreeMap<String, String>,
    (config, now): (&Config, &BTreeMap<String, String>),
    where_it_was: &str,
) -> Vec<String> {
    let read = OPTIONS.iter().filter(|o| o.resume == resume && o.read_in(config).is_ok());
    read.filter_map(|option| change(option.name, was, now, where_it_was)).collect()
}

/// Returns true if the settings name files to validate with.
pub(crate) fn has_validation(settings: &BTreeMap<String, String>) -> bool {
    settings.get(VALIDATION).is_some_and(|files| files != "[]")
}

/// Describes a change in which part of the data is trained on, if there is one. Without files to
/// validate with, the last tenth of the data is held out.
pub(crate) fn other_split(
    was: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
    where_it_was: &str,
) -> Option<String> {
    let change = change(VALIDATION, was, now, where_it_was)?;
    let remedy = match (has_validation(was), has_validation(now)) {
        (true, false) => "all of `data` was trained on: name such files again",
        (false, true) => "the last tenth of `data` was not trained on: leave it out",
        _ => return None,
    };
    Some(format!("{change}: {remedy}"))
}

/// Describes the difference of a setting, if there is one.
pub(crate) fn change(
    key: &str,
    was: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
    where_it_was: &str,
) -> Option<String> {
    let of = |settings: &BTreeMap<String, String>| {
        let earlier = || EARLIER.iter().find(|(of, _)| *of == key);
        let (later, before) = EARLIER_KEY;
        let value = settings.get(key).or_else(|| settings.get(before).filter(|_| key == later));
        value.cloned().or_else(|| earlier().map(|(_, was)| was.to_string()))
    };
    let (was, is) = (of(was), of(now));
    let text = |value: Option<String>| value.unwrap_or_else(|| "not set".into());
    (was != is).then(|| format!("{key}: {} {where_it_was}, {} now", text(was), text(is)))
}

/// Returns all settings, as TOML values.
pub(crate) fn settings(config: &Config) -> BTreeMap<String, String> {
    let said = OPTIONS.iter().filter_map(|option| {
        let (value, _) = config.value(option.name)?;
        Some((option.name.to_string(), value.to_string()))
    });
    said.collect()
}

/// Describes differences in the staleness of weights, if one of the two trainings has stale
/// weights.
pub(crate) fn other_staleness(
    was: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
    where_it_was: &str,
) -> Vec<String> {
    if !has_stale_weights(was) && !has_stale_weights(now) {
        return Vec::new();
    }
    STALENESS.iter().filter_map(|key| change(key, was, now, where_it_was)).collect()
}

/// Returns true if a schedule lets weights change between a forward and its backward. One from a file does not.
fn has_stale_weights(settings: &BTreeMap<String, String>) -> bool {
    let schedule = settings.get("schedule").and_then(|name| find(name.trim_matches('"')).ok());
    let timetable = schedule.and_then(|schedule| schedule.timetable(&Shape::new(2, 4)).ok());
    timetable.is_some_and(|timetable| timetable.update.is_asynchronous())
}

/// Returns the checkpoint that `resume` names; with `auto`, the newest of the run in `out`, or else
/// the one that this run began with. It may turn out to be unusable; then an older one is taken.
pub(crate) fn planned_checkpoint(
    resume: &str,
    out: Option<&Path>,
) -> Result<Option<(PathBuf, Manifest)>, Unusable> {
    let read = |path: PathBuf| Manifest::read(&path).map(|manifest| (path, manifest));
    if resume != AUTO {
        return read(resume.into()).map(Some);
    }
    let Some(out) = out else { return Ok(None) };
    let entries = Store::of(out).entries().unwrap_or_default();
    for entry in entries.iter().rev().filter(|entry| entry.is_whole) {
        match read(entry.path()) {
            Err(unusable) if unusable.is_damage() => {}
            found => return found.map(Some),
        }
    }
    let forked = forked_from(out).map(|from| read(from).map_err(|e| unusable_fork(out, e)));
    forked.transpose()
}

/// Returns the checkpoint of another run that the run in `folder` began with, according to its settings.
pub(crate) fn forked_from(folder: &Path) -> Option<PathBuf> {
    let settings = settings_in(folder).ok()?;
    let from = path_in(&settings, "resume")?;
    let is_other = from != Path::new(AUTO) && !Store::of(folder).holds(from);
    is_other.then(|| from.to_path_buf())
}

/// Adds to an error why the checkpoint is needed that the run in `folder` began with.
pub(crate) fn unusable_fork(folder: &Path, unusable: Unusable) -> Unusable {
    let settings = folder.join(SETTINGS);
    let reason = format!(
        "{}; {} says that the run began with this checkpoint, and it has none of its own yet: put it back, or choose another \
         --out",
        unusable.reason,
        settings.display()
    );
    Unusable { reason, ..unusable }
}

/// Longer files are not ours.
const MAX_BYTES: u64 = 1 << 16;

#[derive(Serialize, Deserialize)]
struct WrittenBy {
    /// The folder of the run.
    run: PathBuf,
}

/// Returns the folder of the run that has written the metrics at `path`, if it is not `run`. A resumed run leaves such
/// metrics as they are, even if the other run has ended. Without a note beside the metrics the writer is unknown.
pub(crate) fn other_writer(path: &Path, run: &Path) -> Option<PathBuf> {
    let text = text_regular(&beside(path), MAX_BYTES).ok().flatten()?;
    let writer: WrittenBy = serde_json::from_str(&text).ok()?;
    (path.is_file() && !is_same(&writer.run, run)).then_some(writer.run)
}

/// Notes beside the metrics at `path` that they belong to `run`. Devices and pipes belong to nobody.
pub(crate) fn note_writer(path: &Path, run: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let beside = beside(path);
    let note = || -> Result<()> {
        let text = serde_json::to_string_pretty(&WrittenBy { run: run.canonicalize()? })?;
        Ok(write(&beside, format!("{text}\n").as_bytes())?)
    };
    note().with_context(|| format!("cannot write {}", beside.display()))
}

fn beside(path: &Path) -> PathBuf {
    with_ending(path, ".written-by.json")
}

#[cfg(test)]
mod tests {
    use crate::run::machine::outside::OnDisk;
    use chimera_settings::Layers;

    use super::*;

    #[test]
    fn what_nobody_reads_is_no_conflict() {
        let of = |line: &str| Layers::parse(line).unwrap().resolve(&OnDisk).unwrap();
        let conflicts = |was: &str, now: &str| {
            let was = of(was).to_toml().parse::<toml::Table>().unwrap();
            conflicts(&was, &of(now))
        };
        assert_eq!(conflicts("--kfac-every 5", "--kfac-every 7"), [""; 0]);
        let of_kfac =
            conflicts("--optimizer kfac --kfac-every 5", "--optimizer kfac --kfac-every 7");
        assert_eq!(of_kfac, ["kfac-every: 5 there, 7 now"]);
        let of_another = conflicts("--optimizer kfac --kfac-every 5", "");
        assert!(of_another.iter().all(|change| !change.starts_with("kfac-")), "{of_another:?}");
    }

    #[test]
    fn metrics_are_of_the_run_that_wrote_them_last() {
        let folder = tempfile::tempdir().unwrap();
        let [metrics, own, other] =
            ["m.jsonl", "own", "other"].map(|name| folder.path().join(name));
        for run in [&own, &other] {
            std::fs::create_dir(run).unwrap();
        }
        std::fs::write(&metrics, "").unwrap();
        assert_eq!(other_writer(&metrics, &own), None);
        note_writer(&metrics, &other).unwrap();
        assert_eq!(other_writer(&metrics, &other), None);
        assert_eq!(other_writer(&metrics, &own), other.canonicalize().ok());
        note_writer(&metrics, &own).unwrap();
        assert_eq!(other_writer(&metrics, &own), None);
        std::fs::write(beside(&metrics), "{").unwrap();
        assert_eq!(other_writer(&metrics, &other), None);
    }
}

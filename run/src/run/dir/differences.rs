//! Differences between the settings of a run and those that it began with, as text.

use std::collections::BTreeMap;

use chimera_core::schedule::{Shape, find};
use chimera_settings::{Config, OPTIONS, OWN_MODEL, Resume};

/// Values that held before these keys existed.
const EARLIER: &[(&str, &str)] = &[
    ("model", "\"gpt2\""),
    ("dropout", "0.0"),
    ("document-mask", "false"),
    ("layout", "\"balanced\""),
    ("head-dim", "0"),
    ("recompute-stages", "\"all\""),
    ("kfac-every", "10"),
    ("kfac-damping", "0.03"),
    ("kfac-decay", "0.9"),
    ("precision", "\"f32\""),
    ("reduce-precision", "\"f32\""),
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

#[cfg(test)]
mod tests {
    use chimera_settings::Layers;

    use super::*;
    use crate::run::machine::outside::OnDisk;

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
}

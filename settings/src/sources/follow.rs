//! Settings that follow from other settings: from a timetable, a model, or data.

use std::path::{Path, PathBuf};

use anyhow::Result;
use chimera_core::model::{Lora, ModelConfig};
use toml::Value;

use super::check::{check, option};
use super::llama::choices;
use super::origin::{Entries, text};
use crate::values::recomputed::AUTO;
use crate::values::schedules::Named;
use crate::{Layout, Origin, Outside, SettingsError, Start};

/// Takes depth and micro-batches from the schedule if it is in a file; refuses other given values.
pub(crate) fn timetable(merged: &mut Entries, outside: &dyn Outside) -> Result<()> {
    let name = text(merged, "schedule").map(str::parse);
    let Some(Ok(Named::File(path))) = name else { return Ok(()) };
    let timetable = outside.timetable(&path)?;
    let n_micro_batches = timetable.micro_batches_per_step();
    let counts = [
        ("depth", Value::Integer(timetable.rows.len() as i64)),
        ("micro-batches", Value::Integer(i64::from(n_micro_batches))),
    ];
    let what = format!("the timetable in {}", path.display());
    follow(merged, counts, &Origin::Timetable(path), &what)
}

/// Takes layout uniform if numbers of it are given; refuses another given layout.
pub(crate) fn layout(merged: &mut Entries) -> Result<()> {
    let is_off = |key: &str| {
        let value = merged.get(key).map(|(value, _)| value);
        matches!(value, None | Some(Value::Boolean(false)))
    };
    let Some(key) = Layout::SPLIT.into_iter().find(|key| !is_off(key)) else { return Ok(()) };
    let origin = merged[key].1.clone();
    match (text(merged, "layout"), merged.get("layout")) {
        (Some("uniform"), _) => {}
        (Some(layout), Some((_, place))) if *place != Origin::Default => {
            let message = format!(
                "`{key}` is of layout uniform, and `layout` is \"{layout}\": leave one of them out"
            );
            return Err(SettingsError { place: origin.to_string(), message }.into());
        }
        _ => {
            merged.insert("layout", ("uniform".into(), origin));
        }
    }
    Ok(())
}

/// Takes the sizes of the initial model, if there is one, and refuses other given sizes. Takes its
/// dropout rate if none was given.
pub(crate) fn model(merged: &mut Entries, outside: &dyn Outside) -> Result<()> {
    let Some(dir) = text(merged, "init") else { return Ok(()) };
    let (resume, out) = (text(merged, "resume"), text(merged, "out").map(Path::new));
    let Start { folder, origin, model, dropout } = outside.start(Path::new(dir), resume, out)?;
    merged.entry("init").and_modify(|(init, _)| *init = folder.display().to_string().into());
    let what = match &origin {
        Origin::Model(dir) => format!("the model in {}", dir.display()),
        origin => format!("the {origin}"),
    };
    let longer = longer_context(merged, &model, &what)?;
    follow(merged, sizes(&model).filter(|(key, _)| !longer || *key != "context"), &origin, &what)?;
    if matches!(merged.get("dropout"), None | Some((_, Origin::Default))) {
        let several = "its config.json has several dropout rates, but training here has one: choose --dropout";
        let refusal = |message| SettingsError { place: origin.to_string(), message };
        let rate = dropout.ok_or_else(|| refusal(several.into()))?;
        let rate = option("dropout").and_then(|option| check(option, Value::Float(rate)));
        merged.insert("dropout", (rate.map_err(refusal)?, origin));
    }
    Ok(())
}

/// Takes rank, scale and layers of the adapter to begin with, if there is one, and refuses other
/// given values. Takes its dropout if none was given. A checkpoint comes before it, since its folder may no longer exist.
pub(crate) fn adapter(merged: &mut Entries, outside: &dyn Outside) -> Result<()> {
    let Some((dir, place)) = merged.get("adapter").cloned() else { return Ok(()) };
    let dir = PathBuf::from(dir.as_str().unwrap_or_default());
    if !begins_with_model(merged, outside) {
        let message = format!(
            "`adapter` {} changes a model: name the folder of that model by `init`",
            dir.display()
        );
        return Err(SettingsError { place: place.to_string(), message }.into());
    }
    let keys = ["lora", "lora-alpha", "lora-targets", "dora", "lora-dropout"];
    let (resume, out) = (text(merged, "resume"), text(merged, "out").map(Path::new));
    let before = keys.map(|key| resume.and_then(|resume| outside.before(key, resume, out)));
    let (values, origin) = if before[0].is_some() {
        (before, Origin::Default)
    } else {
        let Lora { rank, alpha, targets, dropout, has_magnitudes } = outside.adapter(&dir)?;
        let whole = |n: usize| Some(Value::Integer(n as i64));
        let targets = (!targets.is_empty()).then(|| Value::String(targets.to_string()));
        let (dora, rate) = (Value::Boolean(has_magnitudes), Value::Float(dropout));
        ([whole(rank), whole(alpha), targets, Some(dora), Some(rate)], Origin::Model(dir.clone()))
    };
    let has_rate = merged.get("lora-dropout").is_some_and(|(_, place)| !place.is_default());
    let found = keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)));
    let found = found.filter(|(key, _)| !has_rate || *key != "lora-dropout").collect::<Vec<_>>();
    follow(merged, found, &origin, &format!("the adapter in {}", dir.display()))
}

/// Returns true if the given context is longer than that of the initial model. Refuses it if the
/// model has no positions for it, and refuses a shorter one.
fn longer_context(merged: &Entries, model: &ModelConfig, what: &str) -> Result<bool> {
    let Some((Value::Integer(said), place)) = merged.get("context") else { return Ok(false) };
    let has = model.context as i64;
    if *said == has || matches!(place, Origin::Default | Origin::Preset(_)) {
        return Ok(false);
    }
    let remedy = match model.has_open_context() {
        true if *said > has => return Ok(true),
        _ if *said < has => {
            format!("leave `context` out, and choose `sequence` {said} for shorter samples")
        }
        _ => format!("leave `context` out, and choose a `sequence` of at most {has}"),
    };
    let message = format!("`context` is {said}, but {what} has {has}: {remedy}");
    Err(SettingsError { place: place.to_string(), message }.into())
}

/// Sets `recompute-stages` to auto if `recompute` is auto: each stage keeps as much as memory
/// allows, and at least its input.
pub(crate) fn recomputation(merged: &mut Entries) {
    if text(merged, "recompute") != Some(AUTO) {
        return;
    }
    let Some((_, origin)) = merged.get("recompute").cloned() else { return };
    let is_open = merged.get("recompute-stages").is_none_or(|(_, origin)| origin.is_default());
    if is_open {
        merged.insert("recompute-stages", (AUTO.into(), origin.clone()));
    }
    merged.insert("recompute", ("full".into(), origin));
}

/// Takes the vocabulary size from prepared data; refuses a smaller one that was given. (A larger
/// one wastes rows, but makes some devices faster.)
pub(crate) fn data(merged: &mut Entries, outside: &dyn Outside) -> Result<()> {
    let files = merged.get("data").and_then(|(files, _)| files.as_array());
    let files = files.into_iter().flatten().filter_map(Value::as_str);
    let files: Vec<PathBuf> = files.map(PathBuf::from).collect();
    let is_bert = text(merged, "model") == Some("bert");
    let Some((path, tokenizer, n_ids)) = outside.ids(&files, is_bert)? else { return Ok(()) };
    let n_ids = n_ids as i64;
    match merged.get("vocab") {
        Some((Value::Integer(said), place)) if !matches!(place, Origin::Preset(_)) => {
            if *said < n_ids {
                let remedy = match place {
                    Origin::Model(_) | Origin::Checkpoint(_) => {
                        "prepare the data with the tokenizer of the model"
                    }
                    _ => "leave `vocab` out",
                };
                let message = format!(
                    "`vocab` is {said}, but the data {} has the {n_ids} ids of {tokenizer}: {remedy}",
                    path.display(),
                );
                return Err(SettingsError { place: place.to_string(), message }.into());
            }
        }
        _ => {
            merged.insert("vocab", (Value::Integer(n_ids), Origin::Data(path)));
        }
    }
    Ok(())
}

/// Chooses a scaling if none was given. A resumed run keeps the scaling of its checkpoint, so that
/// it continues with the same bits. Otherwise workers that share cores use direct scaling, since
/// smaller ops only cost them time.
pub(crate) fn scaling(merged: &mut Entries, outside: &dyn Outside) {
    if !matches!(merged.get("scaling"), Some((_, Origin::Default))) {
        return;
    }
    let before = before("scaling", merged, outside);
    let whole = |key| merged.get(key).and_then(|(value, _)| value.as_integer()).unwrap_or(1);
    let n_workers = whole("depth").saturating_mul(whole("width"));
    let shares = || text(merged, "device") == Some("cpu") && !outside.has_cores(n_workers);
    if let Some(scaling) = before {
        merged.insert("scaling", (scaling, Origin::Default));
    } else if shares() {
        merged.insert("scaling", ("direct".into(), Origin::Machine));
    }
}

/// Keeps the way to multiply bf16 of the checkpoint of a resumed run, if none was given, so that the
/// run continues with the same bits.
pub(crate) fn bf16_products(merged: &mut Entries, outside: &dyn Outside) {
    const KEY: &str = "bf16-products";
    if !matches!(merged.get(KEY), Some((_, Origin::Default))) {
        return;
    }
    if let Some(way) = before(KEY, merged, outside) {
        merged.insert(KEY, (way, Origin::Default));
    }
}

/// Returns the value of an option in the run that a resumed one continues.
fn before(option: &str, merged: &Entries, outside: &dyn Outside) -> Option<Value> {
    let (resume, out) = (text(merged, "resume"), text(merged, "out").map(Path::new));
    outside.before(option, resume?, out)
}

/// Returns true if the training began, or begins, with the weights of a model.
pub(crate) fn begins_with_model(merged: &Entries, outside: &dyn Outside) -> bool {
    merged.contains_key("init") || before("init", merged, outside).is_some()
}

/// Takes values from `what`, which override defaults and presets; refuses other given values.
fn follow(
    merged: &mut Entries,
    values: impl IntoIterator<Item = (&'static str, Value)>,
    origin: &Origin,
    what: &str,
) -> Result<()> {
    for (key, value) in values {
        let value = option(key).and_then(|option| check(option, value));
        let refusal = |place: &Origin, message| SettingsError { place: place.to_string(), message };
        let value = value.map_err(|message| refusal(origin, message))?;
        match merged.get(key) {
            Some((said, place))
                if !matches!(place, Origin::Default | Origin::Preset(_)) && *said != value =>
            {
                let message =
                    format!("`{key}` is {said}, but {what} has {value}: leave `{key}` out");
                return Err(refusal(place, message).into());
            }
            _ => merged.insert(key, (value, origin.clone())),
        };
    }
    Ok(())
}

/// Lists the settings that describe a model, by key.
pub(crate) fn sizes(config: &ModelConfig) -> impl Iterator<Item = (&'static str, Value)> + use<> {
    let whole = |n: usize| Value::Integer(n as i64);
    let sizes = [
        ("model", Value::String(config.architecture.name().into())),
        ("layers", whole(config.layers)),
        ("hidden", whole(config.hidden)),
        ("heads", whole(config.heads)),
        ("context", whole(config.context)),
        ("vocab", whole(config.vocab)),
        ("tied", Value::Boolean(config.tied)),
    ];
    sizes.into_iter().chain(config.llama.as_ref().map(choices).into_iter().flatten())
}

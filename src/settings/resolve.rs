//! Merging the layers of settings.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use chimera_core::model::{Architecture, ModelConfig, Preset};
use toml::{Table, Value};

use super::check::check;
use super::config::Entries;
use super::{Config, Layers, Origin, SettingsError, file};
use crate::checkpoint::foreseen;
use crate::data::{Marks, Prepared};
use crate::hf::read_config;
use crate::launch::Launch;
use crate::timetable::{is_file, read};

impl Layers {
    /// Merges the layers and checks every value.
    ///
    /// # Errors
    /// [`SettingsError`], or [`ReadError`](chimera_core::exchange::ReadError) if the schedule is in a file
    /// that cannot be read, [`DataError`](crate::data::DataError) if the description of prepared data is, or
    /// what is wrong with the model to begin with.
    pub fn resolve(&self) -> Result<Config> {
        let mut said = match &self.config {
            Some(path) => file::load(path)?,
            None => Entries::new(),
        };
        let options = Table::try_from(&self.settings);
        let options = options.map_err(|e| refusal(Origin::CommandLine, e.to_string()))?;
        said.extend(entries(options, Origin::CommandLine)?);

        let mut merged = entries(defaults()?, Origin::Default)?;
        merged.extend(said.clone());
        if is_bert(&merged) && !said.contains_key("preset") {
            let preset = Value::String("bert-tiny".into());
            merged.insert("preset".into(), (preset, Origin::Default));
        }
        merged.extend(entries(preset_sizes(&merged), preset_origin(&merged))?);
        merged.extend(said);
        follow_timetable(&mut merged)?;
        follow_model(&mut merged)?;
        follow_data(&mut merged)?;
        for (key, value) in following(&merged) {
            merged.entry(key.into()).or_insert((value, Origin::Default));
        }
        Ok(config(merged)?)
    }
}

/// Takes depth and micro-batches from the schedule if it is in a file; refuses others that were said.
fn follow_timetable(merged: &mut Entries) -> Result<()> {
    let name = merged.get("schedule").and_then(|(name, _)| name.as_str());
    let Some(path) = name.filter(|name| is_file(name)).map(PathBuf::from) else {
        return Ok(());
    };
    let timetable = read(&path).with_context(|| format!("timetable {}", path.display()))?;
    let n_micro_batches = timetable.micro_batches_per_step();
    let counts = [
        ("depth", Value::Integer(timetable.rows.len() as i64)),
        ("micro-batches", Value::Integer(i64::from(n_micro_batches))),
    ];
    let what = format!("the timetable in {}", path.display());
    follow(merged, counts, &Origin::Timetable(path), &what)
}

/// Takes the sizes of the model to begin with, if there is one, and refuses others that were said; takes its rate of
/// dropout where none was said. A run that goes on takes them from its checkpoint, and the model may be gone.
fn follow_model(merged: &mut Entries) -> Result<()> {
    let text = |key| merged.get(key).and_then(|(value, _)| value.as_str());
    let Some(dir) = text("init").map(PathBuf::from) else { return Ok(()) };
    let resumed = text("resume").map(|resume| foreseen(resume, text("out").map(Path::new)));
    let (what, origin, model, dropout) = match resumed.transpose()?.flatten() {
        Some((path, manifest)) => {
            let origin = Origin::Checkpoint(path);
            let (model, dropout) = manifest.model().with_context(|| origin.to_string())?;
            (format!("the {origin}"), origin, model, Some(dropout))
        }
        None => {
            let what = format!("the model in {}", dir.display());
            let origin = Origin::Model(dir.clone());
            let (model, dropout) = read_config(&dir).with_context(|| origin.to_string())?;
            (what, origin, model, dropout.one())
        }
    };
    follow(merged, sizes(&model), &origin, &what)?;
    if matches!(merged.get("dropout"), None | Some((_, Origin::Default))) {
        let several =
            "its config.json has several rates of dropout, and training here one: choose --dropout";
        let rate = dropout.ok_or_else(|| refusal(origin.clone(), several.into()))?;
        let rate = check("dropout", Value::Float(rate));
        let rate = rate.map_err(|message| refusal(origin.clone(), message))?;
        merged.insert("dropout".into(), (rate, origin));
    }
    Ok(())
}

/// Takes values from `what`, over defaults and presets; refuses others that were said.
fn follow(
    merged: &mut Entries,
    values: impl IntoIterator<Item = (&'static str, Value)>,
    origin: &Origin,
    what: &str,
) -> Result<()> {
    for (key, value) in values {
        let value = check(key, value).map_err(|message| refusal(origin.clone(), message))?;
        match merged.get(key) {
            Some((said, place))
                if !matches!(place, Origin::Default | Origin::Preset(_)) && *said != value =>
            {
                let message =
                    format!("`{key}` is {said}, but {what} has {value}: leave `{key}` out");
                return Err(refusal(place.clone(), message).into());
            }
            _ => merged.insert(key.into(), (value, origin.clone())),
        };
    }
    Ok(())
}

/// Takes the vocabulary from prepared data; refuses a smaller one that was said. (A larger one wastes rows,
/// which some devices like.)
fn follow_data(merged: &mut Entries) -> Result<()> {
    let files = merged.get("data").and_then(|(files, _)| files.as_array());
    let files = files.into_iter().flatten().filter_map(Value::as_str);
    let files: Vec<PathBuf> = files.map(PathBuf::from).collect();
    let Some((path, prepared)) = Prepared::of(&files)? else { return Ok(()) };
    let n_ids = match is_bert(merged) {
        true => Marks::of(&prepared.tokenizer(path)?).vocab(prepared.vocab),
        false => prepared.vocab,
    } as i64;
    match merged.get("vocab") {
        Some((Value::Integer(said), place)) if !matches!(place, Origin::Preset(_)) => {
            if *said < n_ids {
                let message = format!(
                    "`vocab` is {said}, but the data {} has the {n_ids} ids of {}: leave `vocab` out",
                    path.display(),
                    prepared.name()
                );
                return Err(refusal(place.clone(), message).into());
            }
        }
        _ => {
            let origin = Origin::Data(path.to_path_buf());
            merged.insert("vocab".into(), (Value::Integer(n_ids), origin));
        }
    }
    Ok(())
}

fn is_bert(merged: &Entries) -> bool {
    merged.get("model").is_some_and(|(name, _)| name.as_str() == Some("bert"))
}

fn config(entries: Entries) -> Result<Config, SettingsError> {
    let values = entries.iter().map(|(key, (value, _))| (key.clone(), value.clone()));
    let config = Table::from_iter(values).try_into::<Config>();
    let config = config.map_err(|e| refusal(Origin::Default, e.message().to_owned()))?;
    Ok(Config { entries, ..config })
}

/// The values that hold where nothing is said.
fn defaults() -> Result<Table, SettingsError> {
    let text = include_str!("defaults.toml");
    toml::from_str(text).map_err(|e| refusal(Origin::Default, e.message().to_owned()))
}

/// The sizes of the preset in `merged`.
fn preset_sizes(merged: &Entries) -> Table {
    let named = merged.get("preset").and_then(|(name, _)| Preset::named(name.as_str()?));
    let sizes = named.into_iter().flat_map(|preset| sizes(&preset.config));
    sizes.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What a model is, by key.
fn sizes(config: &ModelConfig) -> [(&'static str, Value); 7] {
    let whole = |n: usize| Value::Integer(n as i64);
    let names = Architecture::ALL.into_iter();
    let name = names.filter(|(_, architecture)| *architecture == config.architecture);
    [
        ("model", Value::String(name.map(|(name, _)| name).collect())),
        ("layers", whole(config.layers)),
        ("hidden", whole(config.hidden)),
        ("heads", whole(config.heads)),
        ("context", whole(config.context)),
        ("vocab", whole(config.vocab)),
        ("tied", Value::Boolean(config.tied)),
    ]
}

fn preset_origin(merged: &Entries) -> Origin {
    let name = merged.get("preset").and_then(|(name, _)| name.as_str());
    Origin::Preset(name.unwrap_or_default().to_owned())
}

/// The defaults that follow from other settings.
fn following(merged: &Entries) -> [(&'static str, Value); 4] {
    let whole = |key| merged.get(key).and_then(|(value, _)| value.as_integer()).unwrap_or(1);
    // Wider models want smaller steps; this gives GPT-2's 5e-4 at 768.
    let lr = merged.get("lr").and_then(|(value, _)| value.as_float());
    let lr = lr.unwrap_or(0.4 / whole("hidden") as f64);
    let cores = available_parallelism().map_or(1, |n| n.get() as i64);
    let neighbours = Launch::found().and_then(|launch| launch.n_local).map(i64::from);
    let workers = neighbours.unwrap_or(whole("depth") * whole("width"));
    [
        ("warmup", Value::Integer((whole("steps") / 10).max(1))),
        ("lr", Value::Float(lr)),
        ("min-lr", Value::Float(0.1 * lr)),
        ("threads", Value::Integer((cores / workers).clamp(1, 1 << 10))),
    ]
}

fn entries(table: Table, origin: Origin) -> Result<Entries, SettingsError> {
    let checked = table.into_iter().map(|(key, value)| match check(&key, value) {
        Ok(value) => Ok((key, (value, origin.clone()))),
        Err(message) => Err(refusal(origin.clone(), message)),
    });
    checked.collect()
}

fn refusal(origin: Origin, message: String) -> SettingsError {
    SettingsError { place: origin.to_string(), message }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::Settings;

    fn resolve(file: &str, settings: Settings) -> Result<Config> {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("run.toml");
        fs::write(&path, file).unwrap();
        Layers { config: Some(path), settings }.resolve()
    }

    #[test]
    fn later_layers_win() {
        let options = Settings { heads: Some(4), steps: Some(50), ..Settings::default() };
        let config = resolve("preset = 'gpt2-124m'\nhidden = 64\nheads = 8\nsteps = 9", options);
        let config = config.unwrap();
        assert_eq!((config.layers, config.hidden, config.heads), (12, 64, 4));
        assert_eq!((config.steps, config.warmup, config.depth), (50, 5, 4));
        assert!(config.tied);
        let origin = |key| config.value(key).unwrap().1.to_string();
        assert_eq!(origin("layers"), "preset gpt2-124m");
        assert!(origin("hidden").ends_with("run.toml:2"));
        assert_eq!(origin("heads"), "command line");
        assert_eq!(origin("warmup"), "default");
        assert_eq!(config.value("save"), None);
    }

    #[test]
    fn a_preset_on_the_command_line_replaces_that_of_the_file() {
        let options = Settings { preset: Some("tiny".into()), ..Settings::default() };
        let config = resolve("preset = 'gpt2-124m'\ncontext = 32", options).unwrap();
        assert_eq!((config.hidden, config.context), (96, 32));
    }

    #[test]
    fn a_bert_has_a_preset_of_its_own() {
        let options = Settings { model: Some("bert".into()), ..Settings::default() };
        let config = resolve("hidden = 48", options).unwrap();
        assert_eq!(config.model().architecture, Architecture::Bert);
        assert_eq!((config.preset.as_str(), config.hidden, config.vocab), ("bert-tiny", 48, 260));
        let config = resolve("preset = 'bert-base'", Settings::default()).unwrap();
        assert_eq!(config.model().n_params(), 110_106_428);
        assert_eq!(config.value("model").unwrap().1.to_string(), "preset bert-base");
    }

    #[test]
    fn the_command_line_is_checked_too() {
        let options = Settings { depth: Some(0), ..Settings::default() };
        let refusal = resolve("", options).unwrap_err().to_string();
        assert_eq!(refusal, "command line: `depth` is 0; it must be a whole number from 1 to 8192");
        let options = Settings { seed: Some(-1), ..Settings::default() };
        assert!(resolve("", options).is_err());
    }

    #[test]
    fn every_key_reaches_the_configuration() {
        let keys = Settings::keys();
        let config = Layers::default().resolve().unwrap();
        let unset: Vec<_> = keys.iter().filter(|key| config.value(key).is_none()).collect();
        assert_eq!(
            unset,
            [
                "in-flight",
                "memory-cap",
                "init",
                "out",
                "metrics",
                "trace",
                "peak-flops",
                "log",
                "tensorboard",
                "prometheus",
                "save",
                "resume"
            ]
        );
        for key in keys {
            assert!(!check(&key, Value::Array(vec![])).is_err_and(|e| e.contains("unknown")));
        }
    }
}

//! Merges the layers of settings.

use anyhow::Result;
use chimera_core::model::{PRESETS, Preset};
use toml::Value;

use super::check::{check, option};
use super::follow::sizes;
use super::origin::{Entries, text};
use super::recipe::recipe;
use super::{file, follow, llama, zero};
use crate::{Config, Layers, Nothing, OPTIONS, Opt, Origin, Outside, Settings, SettingsError};

/// Number of sizes that all models have.
const N_SIZES: usize = 7;

impl Layers {
    /// Merges the layers and checks every value. Asks `outside` for files and facts about the
    /// machine.
    ///
    /// # Errors
    /// [`SettingsError`], or an error of `outside`:
    /// [`ReadError`](chimera_core::interchange::ReadError) if the file of the schedule cannot be
    /// read, an error of the data if the description of prepared data cannot be read, or an error
    /// of the initial model.
    pub fn resolve(&self, outside: &dyn Outside) -> Result<Config> {
        self.resolved(outside, false)
    }

    /// Like [`resolve`](Self::resolve), with the defaults of `chimera train`: its recipe for the
    /// smallest model, and as many workers as there are cores.
    ///
    /// # Errors
    /// As those of `resolve`.
    pub fn resolve_by_recipe(&self, outside: &dyn Outside) -> Result<Config> {
        self.resolved(outside, true)
    }

    fn resolved(&self, outside: &dyn Outside, by_recipe: bool) -> Result<Config> {
        let mut said = match &self.config {
            Some(path) => file::load(path, outside)?,
            None => Entries::new(),
        };
        said.extend(self.settings.checked()?);

        let mut merged = defaults(false);
        merged.extend(said.clone());
        let tiny = [("bert", "bert-tiny"), ("llama", "llama-tiny")];
        let tiny = tiny.iter().find(|(model, _)| text(&merged, "model") == Some(model));
        if let Some((_, preset)) = tiny.filter(|_| !said.contains_key("preset")) {
            merged.insert("preset", ((*preset).into(), Origin::Default));
        }
        if let Some(preset) = text(&merged, "preset").and_then(Preset::named) {
            let origin = Origin::Preset(preset.name.to_string());
            let sizes = sizes(&preset.config).map(|(key, value)| (key, (value, origin.clone())));
            merged.extend(sizes);
        }
        merged.extend(said);
        follow::timetable(&mut merged, outside)?;
        follow::model(&mut merged, outside)?;
        follow::adapter(&mut merged, outside)?;
        llama::complete(&mut merged)?;
        follow::layout(&mut merged)?;
        follow::data(&mut merged, outside)?;
        if by_recipe {
            recipe(&mut merged, outside);
        }
        follow::scaling(&mut merged, outside);
        follow::bf16_products(&mut merged, outside);
        for (key, value) in following(&merged, outside) {
            merged.entry(key).or_insert((value, Origin::Default));
        }
        let config = config(merged)?;
        config.check_weights()?;
        if config.checkpoints.no_save && config.checkpoints.save.is_some() {
            let message = "`no-save` contradicts `save`: leave one of them out".into();
            return Err(refusal(config.origins["no-save"].clone(), message).into());
        }
        Ok(config)
    }
}

impl Settings {
    /// Resolves the settings of a schedule that is drawn or simulated. The model is the default
    /// one, and the schedule checks its shape.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn drawn(&self) -> Result<Config, SettingsError> {
        let mut merged = defaults(true);
        let said = self.options().map(|said| {
            let (option, value) = said.map_err(|message| refusal(self.origin(), message))?;
            Ok((option.name, (value.clone(), self.origin())))
        });
        merged.extend(said.collect::<Result<Entries, SettingsError>>()?);
        let model = PRESETS.iter().flat_map(|preset| sizes(&preset.config)).take(N_SIZES);
        merged.extend(model.map(|(key, value)| (key, (value, Origin::Default))));
        let depth = merged.get("depth").map(|(depth, _)| depth.clone());
        let others = following(&merged, &Nothing).into_iter();
        for (key, value) in others.chain(depth.map(|depth| ("micro-batches", depth))) {
            merged.entry(key).or_insert((value, Origin::Default));
        }
        config(merged)
    }

    /// Returns the values if each is valid for its option.
    fn checked(&self) -> Result<Entries, SettingsError> {
        let checked = self.options().map(|said| {
            let (option, value) = said?;
            Ok((option.name, (check(option, value.clone())?, self.origin())))
        });
        checked.map(|said| said.map_err(|message| refusal(self.origin(), message))).collect()
    }

    /// Lists the options with their values, or an error for a key that is not an option.
    fn options(&self) -> impl Iterator<Item = Result<(&'static Opt, &Value), String>> {
        self.values.iter().map(|(key, value)| Ok((option(key)?, value)))
    }

    /// The origin of these values.
    fn origin(&self) -> Origin {
        if self.is_command_line { Origin::CommandLine } else { Origin::Program }
    }
}

fn config(mut entries: Entries) -> Result<Config, SettingsError> {
    follow::recomputation(&mut entries);
    zero::follow(&mut entries)?;
    let origins = entries.clone();
    Config::of(entries).map_err(|(key, message)| {
        let origin = origins.get(key).map_or(Origin::Default, |(_, origin)| origin.clone());
        refusal(origin, message)
    })
}

/// Returns the default values.
fn defaults(is_drawn: bool) -> Entries {
    let default = |option: &'static crate::Opt| {
        Some((option.name, (option.default_value(is_drawn)?, Origin::Default)))
    };
    OPTIONS.iter().filter_map(default).collect()
}

/// Returns the defaults that follow from other settings.
fn following(merged: &Entries, outside: &dyn Outside) -> [(&'static str, Value); 7] {
    let whole = |key| merged.get(key).and_then(|(value, _)| value.as_integer()).unwrap_or(1);
    let lr = merged.get("lr").and_then(|(value, _)| value.as_float());
    let lr = lr.unwrap_or_else(|| {
        // This gives GPT-2's 5e-4 at 768; a trained model would forget what it knows at that rate.
        let rate = if follow::begins_with_model(merged, outside) { 0.04 } else { 0.4 };
        rate / whole("hidden") as f64 // wider models want smaller steps
    });
    // The first step includes start-up, but it may be the only one.
    let traced = if whole("steps") == 1 { "0..1" } else { "1..11" };
    let threads = outside.threads(whole("depth").saturating_mul(whole("width")));
    [
        ("dropout", Value::Float(0.0)),
        ("sequence", Value::Integer(whole("context"))),
        ("warmup", Value::Integer((whole("steps") / 10).max(whole("steps").min(10)))),
        ("lr", Value::Float(lr)),
        ("min-lr", Value::Float(0.1 * lr)),
        ("trace-steps", Value::String(traced.into())),
        ("threads", Value::Integer(threads.clamp(1, 1 << 10))),
    ]
}

fn refusal(origin: Origin, message: String) -> SettingsError {
    SettingsError { place: origin.to_string(), message }
}

#[cfg(test)]
mod tests;

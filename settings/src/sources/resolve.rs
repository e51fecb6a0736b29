//! Merges the layers of settings.

use anyhow::Result;
use chimera_core::model::{PRESETS, Preset};
use toml::Value;

use super::check::{check, option};
use super::follow::sizes;
use super::origin::{Entries, text};
use super::recipe::recipe;
use super::{file, follow, llama};
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
        llama::complete(&mut merged)?;
        follow::data(&mut merged, outside)?;
        if by_recipe {
            recipe(&mut merged, outside);
        }
        follow::scaling(&mut merged, outside);
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
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use chimera_core::model::Architecture;

    use super::*;
    use crate::Start;
    use crate::sources::outside::Files;

    fn resolve(file: &str, options: &str) -> Result<Config> {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("run.toml");
        fs::write(&path, file).unwrap();
        Layers { config: Some(path), ..Layers::parse(options).unwrap() }.resolve(&Files)
    }

    #[test]
    fn later_layers_win() {
        let file = "preset = 'gpt2-124m'\nhidden = 64\nheads = 8\nsteps = 9";
        let config = resolve(file, "--heads 4 --steps 50");
        let config = config.unwrap();
        assert_eq!((config.model.layers, config.model.hidden, config.model.heads), (12, 64, 4));
        assert_eq!(
            (config.training.steps, config.training.warmup, config.schedule.depth),
            (50, 10, 4)
        );
        assert!(config.model.tied);
        let origin = |key| config.value(key).unwrap().1.to_string();
        assert_eq!(origin("layers"), "preset gpt2-124m");
        assert!(origin("hidden").ends_with("run.toml:2"));
        assert_eq!(origin("heads"), "command line");
        assert_eq!(origin("warmup"), "default");
        assert_eq!(config.value("save"), None);
    }

    #[test]
    fn a_preset_on_the_command_line_replaces_that_of_the_file() {
        let config = resolve("preset = 'gpt2-124m'\ncontext = 32", "--preset tiny").unwrap();
        assert_eq!((config.model.hidden, config.model.context), (96, 32));
    }

    #[test]
    fn a_bert_has_a_preset_of_its_own() {
        let config = resolve("hidden = 48", "--model bert").unwrap();
        assert_eq!(config.model().architecture, Architecture::BERT);
        assert_eq!(
            (config.model.preset.as_str(), config.model.hidden, config.model.vocab),
            ("bert-tiny", 48, 260)
        );
        let config = resolve("preset = 'bert-base'", "").unwrap();
        assert_eq!(config.model().n_params(), 110_106_428);
        assert_eq!(config.value("model").unwrap().1.to_string(), "preset bert-base");
    }

    #[test]
    fn a_llama_has_choices_of_its_own() {
        let tiny = resolve("", "--model llama").unwrap();
        assert_eq!(tiny.model(), Preset::named("llama-tiny").unwrap().config);
        let own = "--model llama --hidden 48 --heads 4 --kv-heads 1 --sliding-window 8 --activation gelu-tanh";
        let own = resolve("rope-scaling = 'linear:factor=2'", own).unwrap().model();
        let llama = own.llama.unwrap();
        assert_eq!((llama.kv_heads, llama.window, llama.mlp_hidden), (1, Some(8), 256));
        assert_eq!(llama.rope_scaling.to_string(), "linear:factor=2");
        assert_eq!(resolve("", "--model gpt2 --preset llama-tiny").unwrap().model().llama, None);
        let refusal = |options: &str| resolve("", options).unwrap_err().to_string();
        assert_eq!(
            refusal("--kv-heads 2"),
            "command line: a gpt2 has no `kv-heads`: leave it out, or choose model llama"
        );
        assert!(refusal("--model llama --rope-scaling ntk").contains("`rope-scaling` is \"ntk\""));
    }

    #[test]
    fn the_command_line_is_checked_too() {
        let refusal = resolve("", "--depth 0").unwrap_err().to_string();
        assert_eq!(refusal, "command line: `depth` is 0; it must be a whole number from 1 to 8192");
        assert!(resolve("", "--seed -1").is_err());
    }

    #[test]
    fn keys_of_a_program_are_checked_as_those_of_a_file() {
        let refusal = |settings: Settings| {
            let refusal = Layers { config: None, settings }.resolve(&Nothing).unwrap_err();
            refusal.to_string()
        };
        let key = format!("step{}", 'z'); // keys need not be constants
        assert_eq!(
            refusal(Settings::default().with(&key, 3)),
            "settings: unknown key `stepz`: did you mean `steps`?"
        );
        assert_eq!(
            refusal(Settings::default().with("depth", 0)),
            "settings: `depth` is 0; it must be a whole number from 1 to 8192"
        );
        let drawn = Settings::default().with("dept", 2).drawn().unwrap_err().to_string();
        assert_eq!(drawn, "settings: unknown key `dept`: did you mean `depth`?");
        let other_name = Settings::default().with("micro-batches", 4).with("micro_batches", 8);
        let config = Layers { config: None, settings: other_name }.resolve(&Nothing).unwrap();
        assert_eq!(config.schedule.micro_batches, 8);
    }

    /// Prepared data with ids of GPT-2's tokenizer, and an initial model of bytes.
    struct OtherTokens;

    impl Outside for OtherTokens {
        fn start(&self, init: &Path, _: Option<&str>, _: Option<&Path>) -> Result<Start> {
            let model = Preset::named("tiny").unwrap().config.clone();
            Ok(Start { origin: Origin::Model(init.to_path_buf()), model, dropout: Some(0.0) })
        }

        fn before(&self, option: &str, _: &str, _: Option<&Path>) -> Option<Value> {
            (option == "init").then(|| "model".into())
        }

        fn ids(&self, data: &[PathBuf], _: bool) -> Result<Option<(PathBuf, String, usize)>> {
            Ok(data.first().map(|path| (path.clone(), "gpt2".into(), 50257)))
        }
    }

    #[test]
    fn data_of_another_tokenizer_is_what_has_to_change() {
        let refusal = |options: &str| {
            let layers = Layers::parse(options).unwrap();
            layers.resolve(&OtherTokens).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("--init bytes --data ids.bin"),
            "model bytes: `vocab` is 256, but the data ids.bin has the 50257 ids of gpt2: prepare the data with the \
             tokenizer of the model"
        );
        assert_eq!(
            refusal("--vocab 256 --data ids.bin"),
            "command line: `vocab` is 256, but the data ids.bin has the 50257 ids of gpt2: leave `vocab` out"
        );
    }

    /// An initial model with rotary positions, or with a position table.
    struct Begins(&'static str);

    impl Outside for Begins {
        fn start(&self, init: &Path, _: Option<&str>, _: Option<&Path>) -> Result<Start> {
            let model = Preset::named(self.0).unwrap().config.clone();
            Ok(Start { origin: Origin::Model(init.to_path_buf()), model, dropout: Some(0.0) })
        }
    }

    #[test]
    fn a_model_with_rotary_positions_may_have_a_longer_context() {
        let resolved = |preset, options: &str| {
            let layers = Layers::parse(&format!("--init model {options}")).unwrap();
            layers.resolve(&Begins(preset)).map_err(|refusal| refusal.to_string())
        };
        let longer = resolved("llama-tiny", "--context 4096").unwrap();
        assert_eq!((longer.model.context, longer.model.sequence), (4096, 4096));
        let own = Preset::named("llama-tiny").unwrap().config.context;
        let refusal = resolved("llama-tiny", "--context 3").unwrap_err();
        let wanted = format!("has {own}: leave `context` out, and choose `sequence` 3 for shorter");
        assert!(refusal.contains(&wanted), "{refusal}");
        let own = Preset::named("tiny").unwrap().config.context;
        let refusal = resolved("tiny", "--context 4096").unwrap_err();
        let wanted =
            format!("has {own}: leave `context` out, and choose a `sequence` of at most {own}");
        assert!(refusal.contains(&wanted), "{refusal}");
    }

    #[test]
    fn each_file_has_its_weight() {
        let refusal = |options: &str| {
            Layers::parse(options).unwrap().resolve(&Nothing).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("--data a b c --data-weights 0.7,0.3"),
            "command line: `data-weights` has 2 weight(s), but `data` names 3 file(s): give each file its weight"
        );
        assert_eq!(
            refusal("--data-weights 1"),
            "command line: `data-weights` weighs the files of `data`, which names none"
        );
        assert_eq!(
            refusal("--data a b --data-weights 0.7,0.4"),
            "command line: `data-weights` is \"0.7,0.4\": their sum is 1.1, not 1"
        );
    }

    #[test]
    fn a_trained_model_goes_on_at_a_lower_rate() {
        let rate = |options: &str| {
            let config = Layers::parse(options).unwrap().resolve(&OtherTokens).unwrap();
            (config.training.lr, config.training.min_lr)
        };
        let from_scratch = 0.4 / 96.0;
        assert_eq!(rate("--hidden 96"), (from_scratch, 0.1 * from_scratch));
        assert_eq!(rate("--init model").0, 0.04 / 96.0);
        assert_eq!(rate("--init model --lr 0.5"), (0.5, 0.05));
        assert_eq!(rate("--resume auto").0, 0.04 / 96.0, "as the run that began with a model");
    }

    #[test]
    fn every_key_reaches_the_configuration() {
        let config = Layers::default().resolve(&Nothing).unwrap();
        let unset = OPTIONS.iter().filter(|option| config.value(option.name).is_none());
        let unset: Vec<_> = unset.map(|option| option.name).collect();
        assert_eq!(
            unset,
            [
                "data-weights",
                "speeds",
                "in-flight",
                "own-placement",
                "search-seed",
                "rank-memory",
                "memory-cap",
                "profile",
                "predict",
                "init",
                "kv-heads",
                "head-dim",
                "mlp-hidden",
                "activation",
                "qkv-bias",
                "sliding-window",
                "rope-theta",
                "rope-scaling",
                "norm-eps",
                "decay-steps",
                "param-groups",
                "peak-flops",
                "out",
                "metrics",
                "log-every",
                "trace",
                "log",
                "tensorboard",
                "prometheus",
                "save",
                "resume"
            ]
        );
    }

    /// Defaults are in their ranges, and can be read back after they are written.
    #[test]
    fn every_default_is_a_value() {
        let config = Layers::default().resolve(&Nothing).unwrap();
        for option in OPTIONS {
            let Some((value, _)) = config.value(option.name) else { continue };
            assert_eq!(check(option, value.clone()), Ok(value), "{}", option.name);
        }
    }

    /// Other commands only have other defaults if the table says so.
    #[test]
    fn what_is_drawn_differs_where_the_table_says_so() {
        let (trained, drawn) =
            (Layers::default().resolve(&Nothing).unwrap(), Settings::default().drawn().unwrap());
        let differs = |key: &&str| trained.value(key).map(|v| v.0) != drawn.value(key).map(|v| v.0);
        let keys: Vec<_> = OPTIONS.iter().map(|option| option.name).filter(differs).collect();
        assert_eq!(keys, ["micro-batches", "window"]);
        assert_eq!((drawn.schedule.micro_batches, drawn.schedule.window), (4, 2));
    }
}

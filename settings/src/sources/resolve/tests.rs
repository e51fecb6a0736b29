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
    assert_eq!((config.training.steps, config.training.warmup, config.schedule.depth), (50, 10, 4));
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
        let folder = init.to_path_buf();
        Ok(Start { origin: Origin::Model(folder.clone()), folder, model, dropout: Some(0.0) })
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
        let folder = init.to_path_buf();
        Ok(Start { origin: Origin::Model(folder.clone()), folder, model, dropout: Some(0.0) })
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
    let refusal =
        |options: &str| Layers::parse(options).unwrap().resolve(&Nothing).unwrap_err().to_string();
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
            "decoder-first-pipeline-num-layers",
            "decoder-last-pipeline-num-layers",
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
            "freeze",
            "frozen-weights",
            "lora",
            "lora-alpha",
            "lora-targets",
            "adapter",
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
    for option in OPTIONS.iter() {
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
    assert_eq!((drawn.schedule.micro_batches, drawn.shape().window), (4, 2));
}

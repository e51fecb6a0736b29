//! Loads the trained model that a command gets: a folder in Hugging Face's format, a run, or one of
//! its checkpoints.

use std::mem::take;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::model::{Cut, Lora, ModelConfig, Objective, Tuning};
use chimera_core::stage::Param;
use serde_json::json;
use toml::Value;

use crate::cli::parts::terminal::console::{require_folder, tell, warn};
use crate::cli::parts::training::suggest;
use crate::data::chat::copy_template;
use crate::data::tokenizer::{
    MAX_BYTES, TOKENIZER, Tokenizer, TokenizerError, tokenizer_content, write_tokenizer,
};
use crate::data::{tokenizer_file_of, tokenizer_of};
use crate::formats::SpecialIds;
use crate::formats::adapter::{ADAPTER, copy_adapter, save_adapter};
use crate::formats::checkpoint::{Checkpoint, Entry, MANIFEST, Store};
use crate::formats::files::{self, read_regular};
use crate::formats::hf::{self, CONFIG, DropoutRates, GENERATION, Pretrained};
use crate::formats::hub::{Part, folder_of};
use crate::formats::peft::PeftAdapter;
use crate::formats::save::{save, saved_steps};
use crate::run::{RUNS, SETTINGS, is_at_work, is_run, newest_first, settings_in};
use crate::settings::MODEL;

/// The file that describes a model.
const CARD: &str = "README.md";

/// A trained model, and the origin of its text.
pub(crate) struct Loaded {
    pub(crate) model: Pretrained,
    /// Folder of the model; for a run, of its checkpoint.
    pub(crate) place: PathBuf,
    /// Tokens per sample in its training: its context, unless its run says otherwise.
    pub(crate) sequence: usize,
    /// The adapters that are merged into the model, if its training had some.
    adapter: Option<Adapter>,
    text: Vocabulary,
}

/// Adapters, with the values of their matrices and the model that they were trained for.
type Adapter = (Lora, Vec<(Param, Vec<f32>)>, Option<PathBuf>);

/// The source of the tokenizer of a model's text.
enum Vocabulary {
    /// The folder of the model, which may have a `tokenizer.json`.
    Folder(PathBuf),
    /// The files of the model's training data.
    Data(Vec<PathBuf>),
}

/// Reads the model in `dir`, or without one that of the newest run under `runs/` that has a model.
/// For a run this is what it trained last: its weights, or a checkpoint of a later step. Prints
/// which one it is.
pub(crate) fn load(dir: Option<&Path>) -> Result<Loaded> {
    let Some(dir) = dir else { return of_run(&newest_run()?) };
    let dir = &folder_of(dir, Part::All)?;
    require_folder(dir)?;
    if dir.join(MANIFEST).exists() {
        return of_checkpoint(&Checkpoint::open(dir)?);
    }
    if is_run(dir) || !dir.join(CONFIG).exists() && dir.join(SETTINGS).exists() {
        of_run(dir)
    } else {
        of_folder(dir)
    }
}

/// Returns the newest run under `runs/` that has weights.
fn newest_run() -> Result<PathBuf> {
    let has_weights = |run: &PathBuf| has_model(run) || Store::of(run).has_whole();
    let newest = newest_first(Path::new(RUNS)).into_iter().find(has_weights);
    newest.with_context(|| {
        format!("no run in {RUNS}/ has a model: train first, or name the folder of a model")
    })
}

/// Returns true if a run saved its trained weights in its own folder.
fn has_model(run: &Path) -> bool {
    run.join(MODEL).join(CONFIG).exists()
}

fn of_run(run: &Path) -> Result<Loaded> {
    let store = Store::of(run);
    let trained = has_model(run).then(|| run.join(MODEL));
    let step = trained.as_deref().and_then(saved_steps);
    // Checkpoints of earlier steps are not read: they may be large, or damaged by now.
    let is_newer = |entry: &Entry| entry.is_whole && (trained.is_none() || Some(entry.step) > step);
    let newest = if store.entries().unwrap_or_default().iter().any(is_newer) {
        store.readable(&warn)?
    } else {
        None
    };
    match (newest, trained) {
        (Some(newest), trained) if trained.is_none() || Some(newest.manifest().step) > step => {
            tell(format_args!("model: {}", newest.path().display()));
            of_checkpoint(&newest)
        }
        (_, Some(trained)) => {
            tell(format_args!("model: {}", trained.display()));
            let mut settings = settings_in(run)?;
            let data = settings.remove("data").map(Value::try_into).transpose()?;
            let sequence = settings.remove("sequence").map(Value::try_into).transpose()?;
            let mut loaded = of_folder(&trained)?;
            loaded.sequence = sequence.unwrap_or(loaded.sequence);
            // The data may be gone or changed by now.
            if loaded.tokenizer_file()?.is_none() {
                loaded.text = Vocabulary::Data(data.unwrap_or_default());
            }
            Ok(loaded)
        }
        // A run of an earlier version saved the model next to its settings.
        _ if run.join(CONFIG).exists() => {
            tell(format_args!("model: {}", run.display()));
            of_folder(run)
        }
        _ => bail!("{} is a run without weights: {}", run.display(), why_no_weights(run)),
    }
}

/// Explains why a run has neither weights nor a finished checkpoint, and what to do.
fn why_no_weights(run: &Path) -> String {
    if is_at_work(run) {
        return "it still trains, and has no finished checkpoint yet: wait until it has one (--save-every), or is done"
            .into();
    }
    let settings = settings_in(run).unwrap_or_default();
    if let Some(dir) = settings.get("save").and_then(Value::as_str) {
        return format!("it saves them elsewhere at its end: name {dir}");
    }
    match settings.get("no-save").and_then(Value::as_bool) {
        Some(true) => "it was trained with --no-save: train it without".into(),
        _ => {
            let go_on = suggest::to_resume(settings.contains_key("out"), run);
            format!("it ended before it had a finished checkpoint: train it with {go_on}")
        }
    }
}

fn of_folder(dir: &Path) -> Result<Loaded> {
    let (model, place) = (hf::read(dir)?, dir.to_path_buf());
    let sequence = model.config.context;
    let text = Vocabulary::Folder(place.clone());
    Ok(Loaded { model, place, sequence, adapter: None, text })
}

fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Loaded> {
    let (manifest, place) = (checkpoint.manifest(), || checkpoint.path().display().to_string());
    let (config, dropout) = manifest.model().with_context(place)?;
    let lora = manifest.lora().with_context(place)?;
    let tuning = Tuning { lora: lora.clone(), ..Tuning::default() };
    let params = config.params(&Cut { tuning, ..Cut::whole(&config) });
    let weights = params.into_iter().map(|param| {
        let elements = checkpoint.finite_elements(&param.name, &param.shape)?;
        let values = elements.to_f32(param.shape.iter().product());
        Ok((param, values))
    });
    let mut weights: Vec<_> = weights.collect::<Result<_>>()?;
    let adapter = lora.map(|lora| {
        let adapters = weights.iter().filter(|(param, _)| Lora::is_adapter(&param.name));
        let adapters = adapters.cloned().collect();
        weights = config.merged(&lora, take(&mut weights));
        let base = manifest.value("init").ok();
        (lora, adapters, base.and_then(|base| base.as_str().map(PathBuf::from)))
    });
    let sequence = manifest.setting("sequence").ok().map(str::parse).transpose()?;
    let sequence = sequence.unwrap_or(config.context);
    let data = manifest.value("data").and_then(|data| Ok(data.try_into()?));
    let data: Vec<PathBuf> = data.with_context(place)?;
    let ids = SpecialIds::of(&config, manifest.special_ids.as_ref(), manifest.end_of_text);
    let model = Pretrained { config, dropout: DropoutRates::all(dropout), ids, weights };
    let place = checkpoint.path().to_path_buf();
    Ok(Loaded { model, place, sequence, adapter, text: Vocabulary::Data(data) })
}

impl Loaded {
    /// Uses samples of `context` tokens, if the model's own context is shorter and its positions
    /// can be extended.
    ///
    /// # Errors
    /// If the model has no such samples.
    pub(crate) fn extend(&mut self, context: usize) -> Result<()> {
        let config = &mut self.model.config;
        if context > config.context && config.has_open_context() {
            config.context = context;
            config.validate()?;
        }
        Ok(())
    }

    /// Returns the tokenizer of the model: the one in `named`, otherwise the one that came with the
    /// model, otherwise the usual one of its vocabulary size. Returns `None` if tokens are written
    /// as ids.
    pub(crate) fn tokenizer(&self, named: Option<&str>) -> Result<Option<Tokenizer>> {
        let vocab = self.model.config.vocab;
        let tokenizer = match named {
            Some("ids") => return Ok(None),
            Some(name) => Some(Tokenizer::named(name)?),
            None => self.own_tokenizer()?,
        };
        let usual = || Tokenizer::of_vocab(vocab);
        let Some(tokenizer) = tokenizer.or_else(usual) else { return Ok(None) };
        ensure!(
            tokenizer.vocab() <= vocab,
            "the tokenizer has {} ids, but the model knows {vocab}: name the one it was trained with",
            tokenizer.vocab()
        );
        Ok(Some(tokenizer))
    }

    /// Merges the adapter `peft` of the model in `base` into the weights.
    ///
    /// # Errors
    /// If it does not fit the model, or cannot be read.
    pub(crate) fn adapt(&mut self, peft: &PeftAdapter, base: &Path) -> Result<()> {
        let config = &self.model.config;
        let mut adapters = Vec::new();
        for param in peft.params(config)? {
            let values = peft.values(config.architecture, &param)?;
            adapters.push((param, values));
        }
        let mut weights = take(&mut self.model.weights);
        weights.extend(adapters.iter().cloned());
        self.model.weights = config.merged(peft.lora(), weights);
        self.adapter = Some((peft.lora().clone(), adapters, Some(base.to_path_buf())));
        Ok(())
    }

    /// Writes the model into a folder in the format of other programs, with its tokenizer if that
    /// is a file. Returns the file of the weights.
    ///
    /// # Errors
    /// If the model cannot be written, or the folder has another tokenizer.
    pub(crate) fn save(&self, dir: &Path) -> Result<PathBuf> {
        let Pretrained { config, dropout, ids, weights } = &self.model;
        let tokenizer = self.tokenizer_file()?.map(|file| content_of(&file)).transpose()?;
        refuse_other_tokenizer(dir, tokenizer.as_deref(), "the model: choose another folder")?;
        let path = save(dir, config, dropout, ids, weights)?;
        if let Some((lora, adapters, base)) = &self.adapter {
            save_adapter(&dir.join(ADAPTER), config, lora, base.as_deref(), adapters)?;
        } else {
            copy_adapter(&self.place.join(ADAPTER), &dir.join(ADAPTER))?;
        }
        if let Some(tokenizer) = tokenizer {
            write_tokenizer(dir, &tokenizer)?;
        }
        if let Vocabulary::Folder(from) = &self.text {
            copy_template(from, dir)?;
        }
        Ok(path)
    }

    /// Writes the files beside a saved model that other programs need to use it, unless they are
    /// there: the tokenizer, the defaults of generation and a model card.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn save_for_others(&self, dir: &Path) -> Result<()> {
        let config = &self.model.config;
        let tokenizer = self.tokenizer(None)?;
        let content = tokenizer.as_ref().and_then(Tokenizer::to_json);
        let of_tokens = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.context,
            "clean_up_tokenization_spaces": false,
        });
        let generation = json!({ "do_sample": true, "temperature": 0.8, "max_new_tokens": 200 });
        let text = |json: &serde_json::Value| format!("{json:#}\n").into_bytes();
        let has_tokenizer = content.is_some();
        let generates = config.objective() == Objective::NextToken;
        let files = [
            (TOKENIZER, content),
            ("tokenizer_config.json", has_tokenizer.then(|| text(&of_tokens))),
            (GENERATION, generates.then(|| text(&generation))),
            (CARD, Some(model_card(config).into_bytes())),
        ];
        for (name, content) in files {
            let path = dir.join(name);
            if let Some(content) = content.filter(|_| path.symlink_metadata().is_err()) {
                files::write(&path, &content)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Returns the tokenizer that came with the model, if there is one.
    pub(crate) fn own_tokenizer(&self) -> Result<Option<Tokenizer>> {
        match &self.text {
            Vocabulary::Folder(_) => {
                Ok(self.tokenizer_file()?.map(|file| Tokenizer::read(&file)).transpose()?)
            }
            Vocabulary::Data(files) => Ok(tokenizer_of(files)?),
        }
    }

    /// Returns the model's `tokenizer.json`, if it came with one.
    pub(crate) fn tokenizer_file(&self) -> Result<Option<PathBuf>> {
        match &self.text {
            Vocabulary::Folder(dir) => hf::file_in(dir, TOKENIZER),
            Vocabulary::Data(files) => Ok(tokenizer_file_of(files)?.filter(|file| file.exists())),
        }
    }
}

/// Returns the text that describes a model to others.
fn model_card(config: &ModelConfig) -> String {
    let (architecture, n_params) = (config.architecture.name(), config.n_params());
    let ModelConfig { layers, hidden, heads, context, vocab, .. } = config;
    let (task, class) = match config.objective() {
        Objective::NextToken => ("text-generation", "AutoModelForCausalLM"),
        Objective::MaskedTokens => ("fill-mask", "AutoModelForPreTraining"),
    };
    format!(
        "---\nlibrary_name: transformers\npipeline_tag: {task}\n---\n\n\
         A {architecture} of {n_params} parameters, trained with Chimera.\n\n\
         | layers | hidden | heads | context | vocabulary |\n|---|---|---|---|---|\n\
         | {layers} | {hidden} | {heads} | {context} | {vocab} |\n\n\
         ```python\nfrom transformers import {class}, AutoTokenizer\n\n\
         model = {class}.from_pretrained(\".\")\ntokenizer = AutoTokenizer.from_pretrained(\".\")\n```\n"
    )
}

/// Returns the content of a model's `tokenizer.json`.
fn content_of(file: &Path) -> Result<Vec<u8>> {
    tokenizer_content(file).map_err(|error| match error {
        TokenizerError::Unreadable { .. } | TokenizerError::Large { .. } => {
            Fault::new(Class::Io, Rank(0), error.to_string()).into()
        }
        error => error.into(),
    })
}

/// Refuses a folder for a model if its `tokenizer.json` differs from the model's `own`: it would be
/// lost, or be mistaken for the model's. `whose` describes the owner of `own` and an alternative.
pub(crate) fn refuse_other_tokenizer(dir: &Path, own: Option<&[u8]>, whose: &str) -> Result<()> {
    let file = dir.join(TOKENIZER);
    let is_there = file.symlink_metadata().is_ok();
    let found = || read_regular(&file, MAX_BYTES).ok().flatten();
    ensure!(
        !is_there || own.is_some() && found().as_deref() == own,
        "{} is not the tokenizer of {whose}, or remove the file",
        file.display()
    );
    Ok(())
}

/// Warns if bytes are given to a model without a tokenizer that has more ids than one trained on
/// bytes.
pub(crate) fn warn_of_bytes(data: Option<&Tokenizer>, vocab: usize) {
    /// Ids of bytes, and room for special tokens.
    const OF_BYTES: usize = 512;
    let name = match Tokenizer::of_vocab(vocab) {
        Some(Tokenizer::Gpt2) => "gpt2",
        _ if vocab > OF_BYTES => "FILE",
        _ => return,
    };
    if matches!(data, Some(Tokenizer::Bytes)) {
        warn(&format!(
            "the data is bytes, but a model of {vocab} ids was likely trained on other tokens: `chimera prepare \
             --tokenizer {name}` makes them"
        ));
    }
}

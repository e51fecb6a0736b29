//! The trained model that a command is given: a folder of Hugging Face, a run, or one of its checkpoints.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use chimera::checkpoint::{Checkpoint, Store};
use chimera::core::model::{Cut, ModelConfig};
use chimera::hf::{self, Pretrained};
use chimera::save::TOKENIZER;
use chimera::tokenizer::Tokenizer;

use super::tell;

/// The file that makes a folder a checkpoint.
const MANIFEST: &str = "manifest.json";

/// Reads a model. Of a run it is the newest checkpoint that is whole.
pub(super) fn load(dir: &Path) -> Result<Pretrained> {
    if dir.join(MANIFEST).exists() {
        return of_checkpoint(&Checkpoint::open(dir)?);
    }
    let store = Store::of(dir);
    if !dir.join("config.json").exists() && !store.entries().unwrap_or_default().is_empty() {
        let newest = store.readable(&|problem| tell(format_args!("warning: {problem}")))?;
        let newest = newest.with_context(|| format!("{} holds no checkpoint", dir.display()))?;
        return of_checkpoint(&newest);
    }
    hf::read(dir)
}

fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Pretrained> {
    let settings = &checkpoint.manifest().settings;
    let value = |key: &str| {
        let lacks = || anyhow!("{}: its settings lack {key}", checkpoint.path().display());
        settings.get(key).ok_or_else(lacks)
    };
    let size = |key: &str| Ok::<_, anyhow::Error>(value(key)?.parse::<usize>()?);
    // Before there was another there was no such setting.
    let architecture = settings.get("model").map_or("gpt2", |name| name.trim_matches('"'));
    let config = ModelConfig {
        architecture: architecture.parse().map_err(anyhow::Error::msg)?,
        layers: size("layers")?,
        hidden: size("hidden")?,
        heads: size("heads")?,
        context: size("context")?,
        vocab: size("vocab")?,
        tied: value("tied")? == "true",
    };
    config.validate()?;
    let params = config.params(&Cut { blocks: 0..config.layers, first: true, last: true });
    let weights = params.into_iter().map(|param| {
        let values = checkpoint.weights(&param.name, &param.shape)?;
        Ok((param, values))
    });
    Ok(Pretrained { weights: weights.collect::<Result<_>>()?, config })
}

/// What turns text into the tokens of the model in `dir` and back: what `named` says, else the
/// `tokenizer.json` in the folder, else what a vocabulary of this size tells. `None` if tokens are written as ids.
pub(super) fn tokenizer(
    named: Option<&str>,
    dir: &Path,
    vocab: usize,
) -> Result<Option<Tokenizer>> {
    let file = dir.join(TOKENIZER);
    let tokenizer = match named {
        Some("ids") => return Ok(None),
        Some(name) => Tokenizer::named(name)?,
        None if file.exists() => Tokenizer::read(&file)?,
        None => {
            match [Tokenizer::Bytes, Tokenizer::Gpt2].into_iter().find(|t| t.vocab() == vocab) {
                Some(tokenizer) => tokenizer,
                None => return Ok(None),
            }
        }
    };
    ensure!(
        tokenizer.vocab() <= vocab,
        "the tokenizer has {} ids, but the model knows {vocab}: name the one it was trained with",
        tokenizer.vocab()
    );
    Ok(Some(tokenizer))
}

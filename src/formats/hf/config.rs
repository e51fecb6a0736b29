//! `config.json`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::{Architecture, ModelConfig};
use serde::Deserialize;

use super::{CONFIG, bert, gpt2};
use crate::formats::checkpoint::{MANIFEST, Store};
use crate::formats::files::read_regular;

/// Larger files are refused before they are read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// At which rates a model drops elements while it is trained.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DropoutRates {
    /// Behind the embedding.
    pub embedding: f64,
    /// Of what attention and MLP add to a block; a BERT has one rate for these and the embedding.
    pub residual: f64,
    /// Of the attention's probabilities.
    pub attention: f64,
}

impl DropoutRates {
    /// What `transformers` takes where `config.json` says nothing.
    pub(super) const USUAL: f64 = 0.1;

    /// The same everywhere, as training here has it.
    pub fn all(rate: f64) -> DropoutRates {
        DropoutRates { embedding: rate, residual: rate, attention: rate }
    }

    /// The rate, if there is only one.
    pub fn one(&self) -> Option<f64> {
        (*self == DropoutRates::all(self.embedding)).then_some(self.embedding)
    }
}

/// The model in `dir`, and what is dropped when it is trained.
///
/// # Errors
/// What is neither a GPT-2 nor a BERT as this project computes them is refused with the key that says so.
pub fn read_config(dir: &Path) -> Result<(ModelConfig, DropoutRates)> {
    let path = dir.join(CONFIG);
    let has_checkpoints = dir.join(MANIFEST).exists() || Store::of(dir).folder().exists();
    ensure!(
        path.exists() || !has_checkpoints,
        "{} holds checkpoints, not a model: `chimera export` makes one of them",
        dir.display()
    );
    ensure!(
        path.exists(),
        "{} has no {CONFIG}: name the folder of a model, of `train --save` or of Hugging Face",
        dir.display()
    );
    let text = read_small(&path, MAX_CONFIG_BYTES)?;
    parse(&text).with_context(|| path.display().to_string())
}

/// The content of a file of at most `most` bytes.
pub(super) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let place = || format!("cannot read {}", path.display());
    let bytes = read_regular(path, most).with_context(place)?;
    bytes.with_context(|| format!("{} is larger than {most} bytes", path.display()))
}

fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    /// What every `config.json` has, but for old ones of GPT-2.
    #[derive(Deserialize)]
    struct Keys {
        model_type: Option<String>,
    }
    let Keys { model_type } = serde_json::from_slice(text)?;
    match model_type.as_deref() {
        None | Some("gpt2") => gpt2::parse(text),
        Some("bert") => bert::parse(text),
        Some(other) => {
            bail!("`model_type` is {other:?}, but the models here are \"gpt2\" and \"bert\"")
        }
    }
}

/// `config.json` of a model.
pub(crate) fn to_json(config: &ModelConfig, dropout: &DropoutRates) -> String {
    match config.architecture {
        Architecture::Gpt2 => gpt2::to_json(config, dropout),
        Architecture::Bert => bert::to_json(config, dropout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_is_refused() {
        let refusal = parse(br#"{"model_type": "llama"}"#).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "`model_type` is \"llama\", but the models here are \"gpt2\" and \"bert\""
        );
        assert!(parse("[".repeat(1 << 19).as_bytes()).is_err());
    }
}

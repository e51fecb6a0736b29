//! Reading and writing of `config.json`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::ModelConfig;
use serde::Deserialize;

use super::CONFIG;
use super::dropout::DropoutRates;
use super::folder::file_in;
use super::table::{FORMATS, format};
use crate::SpecialIds;
use crate::checkpoint::{MANIFEST, Store};
use crate::files::read_regular;

/// Larger files are refused before they are read.
pub(super) const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Returns the model in `dir`, and its rates of dropout.
///
/// # Errors
/// Refuses, naming the key, a model that this project does not compute.
pub fn read_config(dir: &Path) -> Result<(ModelConfig, DropoutRates)> {
    let has_checkpoints = dir.join(MANIFEST).exists() || Store::of(dir).folder().exists();
    let is_there = dir.try_exists().with_context(|| format!("cannot read {}", dir.display()))?;
    ensure!(is_there, "{} does not exist: name the folder of a model", dir.display());
    let Some(path) = file_in(dir, CONFIG)? else {
        ensure!(
            !has_checkpoints,
            "{} holds checkpoints, not a model: `chimera export` makes one of them",
            dir.display()
        );
        bail!(
            "{} has no {CONFIG}: name the folder of a model, of `train --save` or of Hugging Face",
            dir.display()
        );
    };
    let text = read_small(&path, MAX_CONFIG_BYTES)?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Returns the content of a file of at most `most` bytes.
pub(super) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let place = || format!("cannot read {}", path.display());
    let bytes = read_regular(path, most).with_context(place)?;
    bytes.with_context(|| format!("{} is larger than {most} bytes", path.display()))
}

fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    /// The key that every `config.json` has, except old ones of GPT-2.
    #[derive(Deserialize)]
    struct Keys {
        model_type: Option<String>,
    }
    let Keys { model_type } = serde_json::from_slice(text)?;
    let Some(name) = model_type else { return (FORMATS[0].parse)(text) };
    match FORMATS.iter().find(|format| format.model_types.contains(&name.as_str())) {
        Some(format) => (format.parse)(text),
        None => {
            let names = FORMATS.iter().flat_map(|format| format.model_types);
            let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
            bail!("`model_type` is {name:?}, but the models here are {}", names.join(", "))
        }
    }
}

/// Returns the `config.json` of a model.
pub(crate) fn to_json(config: &ModelConfig, dropout: &DropoutRates, ids: &SpecialIds) -> String {
    let mut keys = (format(config.architecture).to_json)(config, dropout);
    ids.put_into(&mut keys);
    format!("{keys:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_is_refused() {
        let refusal = parse(br#"{"model_type": "mamba"}"#).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "`model_type` is \"mamba\", but the models here are \"gpt2\", \"bert\", \"llama\", \"qwen2\", \
             \"mistral\""
        );
        assert!(parse("[".repeat(1 << 19).as_bytes()).is_err());
    }
}

//! The format of a kind of model in Hugging Face.

use anyhow::Result;
use chimera_core::model::ModelConfig;
use serde_json::Value;

use super::dropout::DropoutRates;

/// `config.json` and the names of tensors of one kind of model.
pub(super) struct HfFormat {
    /// The values that the key `model_type` of `config.json` may have, the name of the architecture first.
    pub(super) model_types: &'static [&'static str],
    /// Reads `config.json`. Refuses, naming the key, what the model here does not compute.
    pub(super) parse: fn(&[u8]) -> Result<(ModelConfig, DropoutRates)>,
    /// Writes `config.json`, with the usual ids of tokens that begin, end and pad a text.
    pub(super) to_json: fn(&ModelConfig, &DropoutRates) -> Value,
    /// Returns our name of a tensor, or `None` if it is not a weight.
    pub(super) from_hf: fn(&str) -> Option<String>,
    /// Returns the name of a tensor, or of a part of one, in a model with its head.
    pub(super) to_hf: fn(&str) -> String,
    /// Returns optional duplicate tensors, and the names of our tensors that they must be equal to.
    pub(super) copies: fn(&ModelConfig) -> Vec<(&'static str, &'static str)>,
    /// Returns a tensor that is read instead of one of ours if it exists, and written beside it.
    pub(super) twin: fn(&ModelConfig) -> Option<(&'static str, &'static str)>,
}

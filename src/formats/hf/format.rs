//! How Hugging Face writes a kind of model.

use anyhow::Result;
use chimera_core::model::ModelConfig;
use serde_json::Value;

use super::dropout::DropoutRates;

/// `config.json` and the names of tensors of one kind of model.
pub(super) struct HfFormat {
    /// The values that the key `model_type` of `config.json` may have, the name of the architecture first.
    pub(super) model_types: &'static [&'static str],
    /// Reads `config.json`. What the model here does not compute is refused with the key that says so.
    pub(super) parse: fn(&[u8]) -> Result<(ModelConfig, DropoutRates)>,
    /// Writes `config.json`, with the usual ids of tokens that begin, end and pad a text.
    pub(super) to_json: fn(&ModelConfig, &DropoutRates) -> Value,
    /// Our name of a tensor, or `None` if it is no weight.
    pub(super) from_hf: fn(&str) -> Option<String>,
    /// The name of a tensor, or of a part of one, in a model with its head.
    pub(super) to_hf: fn(&str) -> String,
    /// Tensors that may be there too, and which of ours they must be equal to.
    pub(super) copies: fn(&ModelConfig) -> Vec<(&'static str, &'static str)>,
    /// A tensor that is read for one of ours if it is there, and written beside it.
    pub(super) twin: fn(&ModelConfig) -> Option<(&'static str, &'static str)>,
}

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
    /// Prefix of the body's tensors, in a model with its head.
    pub(super) body: &'static str,
    /// Prefix of the tensors outside of the body.
    pub(super) head: &'static str,
    /// Ends of the names of constants that older versions saved beside the weights.
    pub(super) constants: &'static [&'static str],
    /// Ends of names that older models have, each with today's.
    pub(super) old_ends: &'static [(&'static str, &'static str)],
    /// Returns optional duplicate tensors, and the names of our tensors that they must be equal to.
    pub(super) copies: fn(&ModelConfig) -> Vec<(&'static str, &'static str)>,
    /// Returns a tensor that is read instead of one of ours if it exists, and written beside it.
    pub(super) twin: fn(&ModelConfig) -> Option<(&'static str, &'static str)>,
}

impl HfFormat {
    /// Returns our name of a tensor, or `None` if it is not a weight.
    pub(super) fn own_name(&self, name: &str) -> Option<String> {
        let name = name.strip_prefix(self.body).unwrap_or(name);
        if self.constants.iter().any(|end| name.ends_with(end)) {
            return None;
        }
        let today = |(old, new): &(&str, &str)| Some(format!("{}{new}", name.strip_suffix(old)?));
        Some(self.old_ends.iter().find_map(today).unwrap_or_else(|| name.to_owned()))
    }

    /// Returns the name of a tensor, or of a part of one, in a model with its head.
    pub(super) fn to_hf(&self, name: &str) -> String {
        if name.starts_with(self.head) { name.to_owned() } else { format!("{}{name}", self.body) }
    }
}

//! Names of tensors, here and there.

use std::ops::Range;

use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::stage::Param;

use super::table::format;

/// The name of a tensor, or of a part of one, in a model with its head.
pub(crate) fn to_hf(architecture: Architecture, name: &str) -> String {
    (format(architecture).to_hf)(name)
}

/// A tensor that is read for one of ours if it is there, and written beside it.
pub(crate) fn twin(config: &ModelConfig) -> Option<(&'static str, &'static str)> {
    (format(config.architecture).twin)(config)
}

/// The rows of a parameter by the names of the tensors that hold them there: BERT's queries, keys and values are
/// one matrix here and three there.
pub(crate) fn parts(param: &Param) -> Vec<(String, Range<usize>)> {
    let names = match param.name.split_once(".self.qkv.") {
        Some((before, after)) => {
            ["query", "key", "value"].map(|part| format!("{before}.self.{part}.{after}")).to_vec()
        }
        None => vec![param.name.clone()],
    };
    let rows = param.shape.first().map_or(0, |rows| rows / names.len());
    names.into_iter().enumerate().map(|(n, name)| (name, n * rows..(n + 1) * rows)).collect()
}

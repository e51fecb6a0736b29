//! Names of tensors, here and there.

use std::ops::Range;

use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::stage::Param;

use super::{bert, gpt2};

/// Our name of a tensor, or `None` if it is no weight.
pub(super) fn from_hf(architecture: Architecture, name: &str) -> Option<String> {
    match architecture {
        Architecture::Gpt2 => gpt2::from_hf(name),
        Architecture::Bert => bert::from_hf(name),
    }
}

/// The name of a tensor, or of a part of one, in a model with its head.
pub(crate) fn to_hf(architecture: Architecture, name: &str) -> String {
    match architecture {
        Architecture::Gpt2 => gpt2::to_hf(name),
        Architecture::Bert => bert::to_hf(name),
    }
}

/// Tensors that may be there too, and which of ours they must be equal to.
pub(super) fn copies(config: &ModelConfig) -> Vec<(&'static str, &'static str)> {
    match config.architecture {
        Architecture::Gpt2 => gpt2::copies(config),
        Architecture::Bert => bert::copies(config),
    }
}

/// A tensor that is read for one of ours if it is there, and written beside it.
pub(crate) fn twin(config: &ModelConfig) -> Option<(&'static str, &'static str)> {
    match config.architecture {
        Architecture::Gpt2 => None,
        Architecture::Bert => bert::twin(config),
    }
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

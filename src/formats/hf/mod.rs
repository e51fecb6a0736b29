//! GPT-2, BERT and Llama in the files of Hugging Face: a folder with `config.json` and the weights as safetensors, in one
//! file or in shards with their index.
//!
//! Reading is strict, since such folders come from anywhere: everything that the architecture decides is
//! compared with the one here, sizes are capped and names, shapes and types checked before anything is
//! allocated, and a tensor that is missing, unknown or there twice is named. Pickle is never read. f16
//! and bf16 become f32. Writing gives what `transformers` writes itself, byte for byte.

mod bert;
mod config;
mod dropout;
mod files;
mod folder;
mod format;
mod gpt2;
mod llama;
mod names;
mod read;
mod rope;
mod shard;
mod special_ids;
mod table;

pub use config::read_config;
pub use dropout::DropoutRates;
pub use read::{HfModel, Pretrained, read};

pub(crate) use config::to_json;
pub use folder::file_in;
pub(crate) use names::{parts, to_hf, twin};
pub(crate) use special_ids::GENERATION;

/// The sizes of the model.
pub(crate) const CONFIG: &str = "config.json";
/// The weights, if they are in one file.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// Which file holds which tensor, if they are in several.
const INDEX: &str = "model.safetensors.index.json";

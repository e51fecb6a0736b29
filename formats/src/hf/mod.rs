//! GPT-2, BERT and Llama in the files of Hugging Face: a folder with `config.json` and the weights as
//! safetensors, in one file or in shards with their index.
//!
//! Reading is strict, since such folders come from anywhere. All keys that the architecture determines
//! are compared with the one here. Sizes are capped, and names, shapes and types are checked, before
//! anything is allocated. Errors name a tensor that is missing, unknown or duplicated. Pickle is never
//! read. f16 and bf16 become f32. Writing produces what `transformers` writes itself, byte for byte.

mod bert;
mod config;
mod dropout;
mod files;
mod folder;
mod format;
mod gpt2;
mod index;
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
pub(crate) use index::Index;
pub(crate) use names::{parts, to_hf, twin};
pub(crate) use shard::ShardFile;
pub use special_ids::GENERATION;

/// The file of the model's sizes.
pub const CONFIG: &str = "config.json";
/// The file of the weights, if there is only one.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The index that maps tensors to files, if there are several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

//! Models, and their division into pipeline stages.
//!
//! A model is a configuration ([`ModelConfig`], or a row of [`PRESETS`]). [`cut`] divides its chain
//! `embedding, block, …, block, head` into contiguous pieces of equal cost, while a [`Partition`]
//! sets the pieces by hand. [`DecoderStage`] or [`BertStage`] runs one piece on any
//! [`Layers`](chimera_engine::layers::Layers). [`initial`](chimera_engine::stage::initial) draws
//! the weights per named tensor, so a model is the same for every cut.
//!
//! Models are written with whole layers and hand-written gradients, not on autograd. A pipeline
//! needs the input half and the weight half of each backward pass separately, saved activations
//! that can be moved, split and counted, and weights as arguments. A transformer has few layers, so
//! this takes one page.

mod adapted;
mod bert;
mod block;
mod bytes;
mod choices;
mod config;
mod cut;
mod decoder;
mod error;
mod form;
mod gpt2;
mod llama;
mod lora;
mod operands;
mod partition;
mod presets;
mod rope;
mod sizes;
mod table;
mod tuning;

pub use bert::{BertDeferred, BertSaved, BertSelected, BertStage};
pub use block::cache::KvCache;
pub use block::kept::Kept;
pub use bytes::{Memory, memory};
pub use choices::Llama;
pub use config::{Architecture, Cut, DropoutRate, ModelConfig, Objective, Selection};
pub use cut::cut;
pub use decoder::{DecoderDeferred, DecoderSaved, DecoderSelected, DecoderStage, decoder};
pub use error::ModelError;
pub use partition::{MegatronError, Partition, PartitionError, SplitError, UniformSplit};
pub use presets::{PRESETS, Preset};
pub use rope::RopeScaling;
pub use table::stage;
pub use tuning::{Lora, Tuning};

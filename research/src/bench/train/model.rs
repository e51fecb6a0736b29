//! The measured models, and their command-line options.

use chimera_core::model::{Architecture, Llama, ModelConfig};
use clap::ValueEnum;

/// The model to measure.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub(super) enum Kind {
    /// Layer norms, a position table, biases
    Gpt2,
    /// RMS norms, rotary positions, a gated MLP, two query heads for each key and value head, no
    /// biases
    Llama,
}

/// The batch, and the learning rate.
const BATCH: [&str; 6] = ["--micro-batches", "8", "--micro-batch-size", "4", "--lr", "3e-4"];

/// Six million parameters: a step on two cores takes some seconds.
pub(super) fn model(kind: Kind) -> ModelConfig {
    let (hidden, heads) = (256, 8);
    let (architecture, llama) = match kind {
        Kind::Gpt2 => (Architecture::GPT2, None),
        Kind::Llama => {
            let llama = Llama { kv_heads: 4, ..Llama::usual(hidden, heads) };
            (Architecture::LLAMA, Some(llama))
        }
    };
    ModelConfig {
        architecture,
        layers: 8,
        hidden,
        heads,
        context: 256,
        vocab: 256,
        tied: false,
        llama,
        end_of_text: None,
    }
}

/// Options of model and batch for `chimera train` and the peers.
pub(super) fn words_of(model: &ModelConfig) -> Vec<String> {
    let mut words = vec!["--model".to_owned(), model.architecture.name().to_owned()];
    let mut sizes = vec![
        ("--layers", model.layers),
        ("--hidden", model.hidden),
        ("--heads", model.heads),
        ("--context", model.context),
        ("--vocab", model.vocab),
    ];
    if let Some(llama) = &model.llama {
        sizes.extend([("--kv-heads", llama.kv_heads), ("--mlp-hidden", llama.mlp_hidden)]);
    }
    words.extend(sizes.into_iter().flat_map(|(name, size)| [name.to_owned(), size.to_string()]));
    words.extend(BATCH.map(str::to_owned));
    words
}

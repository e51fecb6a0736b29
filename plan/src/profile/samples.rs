//! The sizes of models that are measured.

use chimera_core::model::{Architecture, Llama, ModelConfig};

/// Blocks that are measured one after the other. So the tensors that a backward needs have left the
/// nearest cache, as in a model of several blocks.
pub(super) const N_BLOCKS: usize = 2;

/// Default widths to measure.
const WIDTHS: [usize; 5] = [64, 128, 256, 512, 768];
/// Tokens of a micro-batch to measure.
const TOKENS: [usize; 5] = [64, 256, 1024, 4096, 16];
/// Products of a block that take more operations than this are left out.
const MOST_FLOPS: f64 = 4e9;
/// Larger matrices of logits are left out.
const MOST_LOGITS: usize = 1 << 20;

/// A model to measure, with the samples of a micro-batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The model; its number of layers does not matter.
    pub model: ModelConfig,
    /// Tokens per sample.
    pub sequence: usize,
    /// Samples of a micro-batch.
    pub samples: usize,
}

/// Returns sizes that span most small models: a grid of widths and tokens, along which sample
/// lengths, head sizes and vocabularies vary too.
pub fn samples(architecture: Architecture) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (w, hidden) in WIDTHS.into_iter().enumerate() {
        for (t, tokens) in TOKENS.into_iter().enumerate() {
            let flops = 24.0 * (hidden * hidden * tokens) as f64;
            if flops > MOST_FLOPS {
                continue;
            }
            let sequence = [64, 256, 512, 128][(w + t) % 4].min(tokens);
            let head_dim = [32, 64, 16, 128][(w + 2 * t) % 4].min(hidden);
            let vocab = [256, 4096, 1024][(w + t) % 3].min(MOST_LOGITS / tokens);
            let heads = hidden / head_dim;
            let llama = (architecture == Architecture::LLAMA).then(|| Llama::usual(hidden, heads));
            let context = sequence;
            let tied = false;
            let model = ModelConfig {
                architecture,
                layers: 1,
                hidden,
                heads,
                context,
                vocab,
                tied,
                llama,
                end_of_text: None,
            };
            samples.push(Sample { model, sequence, samples: tokens / sequence });
        }
    }
    samples
}

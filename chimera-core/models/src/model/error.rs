//! Errors in a model's configuration.

use chimera_engine::device::DeviceError;

/// The reason why a model cannot be made as requested.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ModelError {
    /// A size is zero.
    #[error("{what} is 0: choose at least 1")]
    Zero {
        /// The name of the size.
        what: &'static str,
    },
    /// A size is beyond anything that could run.
    #[error("{what} is {value}: choose at most {most}")]
    TooLarge {
        /// The name of the size.
        what: &'static str,
        /// The requested value.
        value: usize,
        /// The limit.
        most: usize,
    },
    /// The heads do not divide the hidden size.
    #[error("hidden {hidden} is not divisible by heads {heads}: choose heads from {}", divisors(*.hidden, *.heads))]
    Heads {
        /// The hidden size.
        hidden: usize,
        /// The number of attention heads.
        heads: usize,
    },
    /// The heads of keys and values do not divide those of queries.
    #[error("heads {heads} is not divisible by kv-heads {kv_heads}: choose kv-heads from {}", divisors(*.heads, *.kv_heads))]
    KvHeads {
        /// Heads of queries.
        heads: usize,
        /// Heads of keys and values.
        kv_heads: usize,
    },
    /// A head with an odd number of features cannot be rotated in pairs.
    #[error(
        "heads of {dim} features have no pairs to rotate: choose an even head-dim, or heads so \
         that hidden / heads is even"
    )]
    OddHeads {
        /// Features of a head.
        dim: usize,
    },
    /// A number is not above zero.
    #[error("{what} is {value}: choose a number above 0")]
    NotPositive {
        /// The name of the number.
        what: &'static str,
        /// The requested value.
        value: f64,
    },
    /// A number of the scaling of rotary positions is not above zero.
    #[error("`{name}` of rope-scaling is {value}: choose a number above 0")]
    RopeScaling {
        /// The name of the number.
        name: &'static str,
        /// The requested value.
        value: f64,
    },
    /// The `original` of rope-scaling, a number of tokens, is not whole.
    #[error("`original` of rope-scaling is {original}, but counts tokens: choose a whole number")]
    RopeOriginal {
        /// The requested value.
        original: f64,
    },
    /// The limit for kept frequencies is not above that for divided ones.
    #[error(
        "rope-scaling keeps frequencies above {high} turns and divides those below {low}: choose a larger first one"
    )]
    RopeOrder {
        /// Turns above which a frequency stays.
        high: f64,
        /// Turns below which it is divided.
        low: f64,
    },
    /// YaRN's frequencies do not fall from pair to pair.
    #[error(
        "rope-theta is {theta}, but yarn rope-scaling distinguishes frequencies by their decrease: \
         choose a rope-theta above 1"
    )]
    YarnTheta {
        /// The base of the frequencies.
        theta: f64,
    },
    /// Dynamic scaling has numbers for another context.
    #[error(
        "dynamic rope-scaling by these numbers is for a context of factor x original, {longest} tokens, not {context}: choose \
         that context, or other numbers"
    )]
    DynamicContext {
        /// Tokens of the model's context.
        context: usize,
        /// The context for which the numbers are.
        longest: usize,
    },
    /// Parameters that only a Llama has.
    #[error(
        "a {model} has no kv-heads, mlp-hidden, rotary positions or sliding window: leave them out or choose llama"
    )]
    NotLlama {
        /// Name of the model for messages.
        model: &'static str,
    },
    /// A model that is not a decoder cannot have samples of several documents.
    #[error("a {model}'s samples do not consist of documents: leave document-mask out")]
    Documents {
        /// Name of the model for messages.
        model: &'static str,
    },
    /// Dynamic scaling cannot have documents in samples that change its frequencies.
    #[error(
        "dynamic rope-scaling takes frequencies from the length of a whole sample, so in samples of {sequence} \
         tokens, more than its original {original}, a document would differ from the same document by itself: choose \
         a sequence of at most {original}, or leave document-mask out"
    )]
    DynamicDocuments {
        /// Tokens per sample.
        sequence: usize,
        /// Tokens of the samples of the first training.
        original: f64,
    },
    /// A decoder's stage was requested for a model that is not a decoder.
    #[error("a {model} is not a decoder: make its stages with `model::stage`")]
    NoDecoder {
        /// Name of the model for messages.
        model: &'static str,
    },
    /// A device lacks the layers of a model.
    #[error("{device} has no kernels for a {model}: choose another device, such as cpu")]
    Device {
        /// The device's name for messages.
        device: String,
        /// Name of the model for messages.
        model: &'static str,
    },
    /// A device failed while a stage was made.
    #[error(transparent)]
    Failed(#[from] DeviceError),
    /// A sequence does not fit into the position table.
    #[error(
        "a sequence of {sequence} tokens is longer than the context of {context}: \
         shorten the sequence or choose context {sequence}"
    )]
    Sequence {
        /// Tokens per sample.
        sequence: usize,
        /// Rows of the position table.
        context: usize,
    },
    /// There are not enough layers for the stages.
    #[error(
        "{stages} stages are more than the model's {layers} layer(s), and each holds at least one: choose at least \
         {stages} layers, or fewer stages: a smaller depth, fewer chunks or waves"
    )]
    Stages {
        /// Stages asked for.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A partition has another number of stages.
    #[error(
        "layout {partition} has {held} stage(s), but depth and schedule make {stages}: write the layers of each"
    )]
    PartitionStages {
        /// The partition.
        partition: String,
        /// The number of its stages.
        held: usize,
        /// The required number of stages.
        stages: usize,
    },
    /// A partition has layers of multi-token prediction.
    #[error(
        "layout {partition} has layers of multi-token prediction (`m`), which no model here has: leave them out to train"
    )]
    PartitionPredictors {
        /// The partition.
        partition: String,
    },
    /// A partition has another number of blocks.
    #[error(
        "layout {partition} holds {held} block(s), but the model has {layers} layers: choose counts whose sum is {layers}"
    )]
    PartitionBlocks {
        /// The partition.
        partition: String,
        /// The number of its blocks.
        held: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// Lists the divisors of `n` nearest to `wanted`.
fn divisors(n: usize, wanted: usize) -> String {
    let mut divisors: Vec<usize> = (1..=n).filter(|&d| n.is_multiple_of(d)).collect();
    divisors.sort_by_key(|d| d.abs_diff(wanted));
    divisors.truncate(8);
    divisors.sort();
    let words: Vec<String> = divisors.iter().map(usize::to_string).collect();
    words.join(", ")
}

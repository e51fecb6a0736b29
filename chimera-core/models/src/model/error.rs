//! Why there is no such model.

use chimera_engine::device::DeviceError;

/// Why a model cannot be made as asked.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ModelError {
    /// A size is zero.
    #[error("{what} is 0: choose at least 1")]
    Zero {
        /// The size.
        what: &'static str,
    },
    /// A size is beyond anything that could run.
    #[error("{what} is {value}: choose at most {most}")]
    TooLarge {
        /// The size.
        what: &'static str,
        /// What was asked for.
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
    /// A head of an odd number of features cannot be turned in pairs.
    #[error(
        "heads of {dim} features have no pairs to turn: choose an even head-dim, or heads so that hidden / heads is even"
    )]
    OddHeads {
        /// Features of a head.
        dim: usize,
    },
    /// A number is not above zero.
    #[error("{what} is {value}: choose a number above 0")]
    NotPositive {
        /// The number.
        what: &'static str,
        /// What was asked for.
        value: f64,
    },
    /// A number of the scaling of rotary positions is not above zero.
    #[error("`{name}` of rope-scaling is {value}: choose a number above 0")]
    RopeScaling {
        /// The number.
        name: &'static str,
        /// What was asked for.
        value: f64,
    },
    /// The tokens of the samples before are no whole number.
    #[error("`original` of rope-scaling is {original}, but counts tokens: choose a whole number")]
    RopeOriginal {
        /// What was asked for.
        original: f64,
    },
    /// Frequencies that stay are to be above those that are divided.
    #[error(
        "rope-scaling keeps frequencies above {high} turns and divides those below {low}: choose a larger first one"
    )]
    RopeOrder {
        /// Turns above which a frequency stays.
        high: f64,
        /// Turns below which it is divided.
        low: f64,
    },
    /// YaRN's frequencies are to fall from pair to pair.
    #[error(
        "rope-theta is {theta}, but yarn rope-scaling tells frequencies apart by how they fall: choose a rope-theta above 1"
    )]
    YarnTheta {
        /// The base of the frequencies.
        theta: f64,
    },
    /// Dynamic scaling is of one context.
    #[error(
        "dynamic rope-scaling by these numbers is for a context of factor x original, {longest} tokens, not {context}: choose \
         that context, or other numbers"
    )]
    DynamicContext {
        /// Tokens of the model's context.
        context: usize,
        /// What its numbers say.
        longest: usize,
    },
    /// Choices that only a Llama has.
    #[error(
        "a {model} has no kv-heads, mlp-hidden, rotary positions or sliding window: leave them out or choose llama"
    )]
    NotLlama {
        /// The model, in texts.
        model: &'static str,
    },
    /// Samples of several documents.
    #[error("a {model}'s samples are no documents side by side: leave document-mask out")]
    Documents {
        /// The model, in texts.
        model: &'static str,
    },
    /// Documents of a sample whose length changes what each is.
    #[error(
        "dynamic rope-scaling takes frequencies from the length of a whole sample, so in samples of {sequence} tokens, more \
         than its original {original}, a document would not be what it is alone: choose a sequence of at most {original}, \
         or leave document-mask out"
    )]
    DynamicDocuments {
        /// Tokens per sample.
        sequence: usize,
        /// Tokens of the samples before.
        original: f64,
    },
    /// A stage of a decoder was asked for of a model that is none.
    #[error("a {model} is no decoder: make its stages with `model::stage`")]
    NoDecoder {
        /// The model, in texts.
        model: &'static str,
    },
    /// A device lacks the layers of a model.
    #[error("{device} has no kernels for a {model}: choose another device, such as cpu")]
    Device {
        /// The device, in words.
        device: String,
        /// The model, in texts.
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
        "layout {partition} has {held} stage(s), but depth and schedule make {stages}: say what each of these holds"
    )]
    PartitionStages {
        /// The partition.
        partition: String,
        /// Its stages.
        held: usize,
        /// Stages that there are.
        stages: usize,
    },
    /// A partition has another number of blocks.
    #[error(
        "layout {partition} holds {held} block(s), but the model has {layers} layers: choose counts whose sum is {layers}"
    )]
    PartitionBlocks {
        /// The partition.
        partition: String,
        /// Its blocks.
        held: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// The divisors of `n` nearest to `wanted`, as a list in words.
fn divisors(n: usize, wanted: usize) -> String {
    let mut divisors: Vec<usize> = (1..=n).filter(|&d| n.is_multiple_of(d)).collect();
    divisors.sort_by_key(|d| d.abs_diff(wanted));
    divisors.truncate(8);
    divisors.sort();
    let words: Vec<String> = divisors.iter().map(usize::to_string).collect();
    words.join(", ")
}

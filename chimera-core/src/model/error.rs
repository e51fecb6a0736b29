//! Why there is no such model.

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

//! What a model is made of: its layers and their sizes, and the pieces it can be cut into.

use std::ops::Range;

use super::{Architecture, Objective};
use crate::stage::{Init, Param};

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

/// A model: its layers and their sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// What the layers are.
    pub architecture: Architecture,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Features per token.
    pub hidden: usize,
    /// Attention heads per block; divides `hidden`.
    pub heads: usize,
    /// Rows of the position table: the most tokens a sample may have.
    pub context: usize,
    /// Number of distinct token ids.
    pub vocab: usize,
    /// Whether the output head is the token table again.
    pub tied: bool,
}

impl ModelConfig {
    /// Checks that such a model can be made.
    ///
    /// The limits keep every count and cost within `u64`, so nothing after this can overflow.
    pub fn validate(&self) -> Result<(), ModelError> {
        for (what, value, most) in [
            ("layers", self.layers, 1 << 14),
            ("hidden", self.hidden, 1 << 20),
            ("heads", self.heads, 1 << 20),
            ("context", self.context, 1 << 24),
            ("vocab", self.vocab, 1 << 24),
        ] {
            if value == 0 {
                return Err(ModelError::Zero { what });
            }
            if value > most {
                return Err(ModelError::TooLarge { what, value, most });
            }
        }
        if !self.hidden.is_multiple_of(self.heads) {
            return Err(ModelError::Heads { hidden: self.hidden, heads: self.heads });
        }
        Ok(())
    }

    /// Checks that samples of so many tokens can be trained on.
    pub fn check_sequence(&self, sequence: usize) -> Result<(), ModelError> {
        self.validate()?;
        if sequence == 0 {
            return Err(ModelError::Zero { what: "sequence" });
        }
        if sequence > self.context {
            return Err(ModelError::Sequence { sequence, context: self.context });
        }
        Ok(())
    }

    /// What the model is trained to predict.
    pub fn objective(&self) -> Objective {
        self.architecture.family().objective()
    }

    /// How many tokens of a sample of `sequence` are predicted: all by a GPT-2, 15 % by a BERT.
    pub fn predictions(&self, sequence: usize) -> usize {
        self.architecture.family().predictions(sequence)
    }

    /// A sample of these tokens without padding, and its targets: `next` is what follows the last token.
    pub fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        self.architecture.family().sample(tokens, next)
    }

    /// Whether `cut` is one of two stages that share the token table.
    pub(super) fn shares_table(&self, cut: &Cut) -> bool {
        self.tied && !(cut.first && cut.last)
    }
}

/// One contiguous piece of the chain `embedding, block 0, …, block layers-1, head`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The transformer blocks of the piece.
    pub blocks: Range<usize>,
    /// Whether the embedding is part of it.
    pub first: bool,
    /// Whether the final norm and the head are part of it.
    pub last: bool,
}

impl Cut {
    /// All of a model.
    pub fn whole(config: &ModelConfig) -> Cut {
        Cut { blocks: 0..config.layers, first: true, last: true }
    }
}

/// Standard deviation of initial weights.
pub(super) const DEVIATION: f64 = 0.02;

pub(super) fn param(name: String, shape: &[usize], init: Init) -> Param {
    Param { name, shape: shape.to_vec(), init, decay: shape.len() >= 2, tied: false }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let architecture = Architecture::Gpt2;
        ModelConfig {
            architecture,
            layers: 3,
            hidden: 100,
            heads: 5,
            context: 7,
            vocab: 11,
            tied: false,
        }
    }

    #[test]
    fn fifteen_of_a_hundred_tokens_are_predicted() {
        let bert = ModelConfig { architecture: Architecture::Bert, ..config() };
        let predictions = [1, 3, 10, 20, 100, 128, 512].map(|sequence| bert.predictions(sequence));
        assert_eq!(predictions, [1, 1, 2, 3, 15, 19, 77]);
    }

    #[test]
    fn refusals_say_what_to_do() {
        let refusal = |config: ModelConfig| config.validate().unwrap_err().to_string();
        assert_eq!(
            refusal(ModelConfig { heads: 3, ..config() }),
            "hidden 100 is not divisible by heads 3: choose heads from 1, 2, 4, 5, 10, 20, 25, 50"
        );
        assert_eq!(refusal(ModelConfig { vocab: 0, ..config() }), "vocab is 0: choose at least 1");
        assert_eq!(
            refusal(ModelConfig { layers: usize::MAX, ..config() }),
            format!("layers is {}: choose at most 16384", usize::MAX)
        );
    }
}

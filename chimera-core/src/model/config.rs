//! What a model is made of: its layers, their sizes, its work.

use std::fmt;
use std::str::FromStr;

use super::Cut;
use super::bert::tensors as bert;
use super::gpt2::tensors as gpt2;
use crate::names::by_name;
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

/// What the layers of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Pre-norm blocks that see what was before, predicting the next token (Radford et al., 2019).
    Gpt2,
    /// Post-norm blocks that see both ways, predicting masked tokens and whether the second of two
    /// segments follows the first (Devlin et al., 2018).
    Bert,
}

impl Architecture {
    /// All, by the name that users type.
    pub const ALL: [(&'static str, Architecture); 2] =
        [("gpt2", Architecture::Gpt2), ("bert", Architecture::Bert)];
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Architecture::Gpt2 => "GPT-2",
            Architecture::Bert => "BERT",
        })
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(name: &str) -> Result<Architecture, String> {
        by_name("model", name, &Architecture::ALL)
    }
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

    /// Number of parameters; a tied table counts once.
    pub fn n_params(&self) -> u64 {
        match self.architecture {
            Architecture::Gpt2 => gpt2::n_params(self),
            Architecture::Bert => bert::n_params(self),
        }
    }

    /// The tensors of the stage `cut`, in the order in which it holds them.
    pub fn params(&self, cut: &Cut) -> Vec<Param> {
        match self.architecture {
            Architecture::Gpt2 => gpt2::params(self, cut),
            Architecture::Bert => bert::params(self, cut),
        }
    }

    /// How many tokens of a sample of `sequence` are predicted: all by a GPT-2, 15 % by a BERT.
    pub fn predictions(&self, sequence: usize) -> usize {
        match self.architecture {
            Architecture::Gpt2 => sequence,
            Architecture::Bert => ((3 * sequence + 10) / 20).max(1),
        }
    }

    /// Floating-point operations of one sample's forward pass through `cut`: matrix products and
    /// attention, a multiply-add counted as two, attention without the saving of causality.
    pub fn forward_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let head = if cut.last { self.head_flops(sequence) } else { 0.0 };
        cut.blocks.len() as f64 * self.block_flops(sequence) + head
    }

    /// What selective recomputation computes again of them: of each block the product into the MLP, and of
    /// a BERT's heads pooler and transform.
    pub fn selective_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let square = 2.0 * (self.hidden as f64).powi(2);
        let heads = match self.architecture {
            Architecture::Bert if cut.last => square * (1 + self.predictions(sequence)) as f64,
            _ => 0.0,
        };
        cut.blocks.len() as f64 * sequence as f64 * 4.0 * square + heads
    }

    /// Forward work of one block on a sample of `sequence` tokens.
    pub(super) fn block_flops(&self, sequence: usize) -> f64 {
        let (hidden, sequence) = (self.hidden as f64, sequence as f64);
        sequence * (24.0 * hidden * hidden + 4.0 * sequence * hidden)
    }

    /// Forward work of the head on a sample of `sequence` tokens.
    pub(super) fn head_flops(&self, sequence: usize) -> f64 {
        match self.architecture {
            Architecture::Gpt2 => gpt2::head_flops(self, sequence),
            Architecture::Bert => bert::head_flops(self, sequence),
        }
    }

    /// Whether `cut` is one of two stages that share the token table.
    pub(super) fn shares_table(&self, cut: &Cut) -> bool {
        self.tied && !(cut.first && cut.last)
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
    use super::super::cut;
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
    fn the_count_is_the_sum_of_the_tensors() {
        for (_, architecture) in Architecture::ALL {
            for tied in [false, true] {
                let config = ModelConfig { architecture, tied, ..config() };
                let cut = cut(&config, 1).unwrap();
                let params = config.params(&cut[0]);
                let sum: usize = params.iter().map(Param::n_elements).sum();
                assert_eq!(sum as u64, config.n_params());
                assert!(params.iter().all(|p| !p.tied));
            }
        }
    }

    #[test]
    fn a_tied_table_is_on_the_first_and_the_last_stage() {
        let names = ["wte.weight", "embeddings.word_embeddings.weight"];
        for ((_, architecture), name) in Architecture::ALL.into_iter().zip(names) {
            let config = ModelConfig { architecture, tied: true, ..config() };
            let stages: Vec<_> =
                cut(&config, 3).unwrap().iter().map(|cut| config.params(cut)).collect();
            let table = |stage: usize| stages[stage].iter().find(|p| p.tied);
            assert_eq!(table(0), stages[0].first());
            assert_eq!(table(1), None);
            assert_eq!(table(2), table(0));
            assert_eq!(table(0).unwrap().name, name);
        }
    }

    #[test]
    fn work_is_counted_per_sample() {
        let config = config();
        let whole = Cut::whole(&config);
        let per_token = 3.0 * (24.0 * 1e4 + 4.0 * 5.0 * 100.0) + 2.0 * 100.0 * 11.0;
        assert_eq!(config.forward_flops(&whole, 5), 5.0 * per_token);
        // One of five tokens is predicted, through a transform; the pooler and its classes are one row.
        let bert = ModelConfig { architecture: Architecture::Bert, ..config };
        assert_eq!(bert.predictions(5), 1);
        let blocks = 5.0 * 3.0 * (24.0 * 1e4 + 4.0 * 5.0 * 100.0);
        let heads = 2.0 * 100.0 * (100.0 + 11.0) + 2.0 * 100.0 * 102.0;
        assert_eq!(bert.forward_flops(&whole, 5), blocks + heads);
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

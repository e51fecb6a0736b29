//! What a GPT-2 is made of: its sizes, its tensors, its work.

use super::Cut;
use super::block;
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
        "{stages} stages are more than {layers} layers, and each stage holds at least one: \
         choose at most {layers} stages or at least {stages} layers"
    )]
    Stages {
        /// Stages asked for.
        stages: usize,
        /// Layers of the model.
        layers: usize,
    },
}

/// The sizes of a GPT-2 (Radford et al., 2019).
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
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

impl Gpt2Config {
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

    /// Number of parameters; a tied table counts once.
    pub fn n_params(&self) -> u64 {
        let [layers, hidden, context, vocab] =
            [self.layers, self.hidden, self.context, self.vocab].map(|n| n as u64);
        let tables = if self.tied { 1 } else { 2 };
        layers * (12 * hidden * hidden + 13 * hidden)
            + (tables * vocab + context) * hidden
            + 2 * hidden
    }

    /// The tensors of the stage `cut`, in the order in which it holds them, named as in Hugging Face's
    /// GPT-2.
    ///
    /// Initial values as published: normal 0.02, and `0.02 / √(2 layers)` for the projections that end
    /// on the residual path. Weight decay on matrices alone.
    pub fn params(&self, cut: &Cut) -> Vec<Param> {
        let (hidden, normal) = (self.hidden, Init::Normal(DEVIATION));
        let shared = self.tied && !(cut.first && cut.last);
        let tokens =
            Param { tied: shared, ..param("wte.weight".into(), &[self.vocab, hidden], normal) };
        let mut params = Vec::new();
        if cut.first {
            params.push(tokens.clone());
            params.push(param("wpe.weight".into(), &[self.context, hidden], normal));
        }
        for block in cut.blocks.clone() {
            params.extend(self.block_params(block));
        }
        if cut.last {
            params.push(param("ln_f.weight".into(), &[hidden], Init::Ones));
            params.push(param("ln_f.bias".into(), &[hidden], Init::Zeros));
            if !self.tied {
                let head = param("lm_head.weight".into(), &[self.vocab, hidden], normal);
                params.push(head);
            } else if shared {
                params.push(tokens);
            }
        }
        params
    }

    /// Floating-point operations of one sample's forward pass through `cut`: matrix products and
    /// attention, a multiply-add counted as two, attention without the saving of causality.
    pub fn forward_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let blocks = cut.blocks.len() as f64 * self.block_flops(sequence) as f64;
        let head = if cut.last { self.head_flops() } else { 0 };
        sequence as f64 * (blocks + head as f64)
    }

    /// Elements that a forward pass through `cut` keeps for its backward, per token.
    pub fn residual_elements(&self, cut: &Cut) -> usize {
        // A block: its input, two norms with their statistics, three projections, the attention's
        // output and scores' sums, the stream between its halves, and four times as much in the MLP.
        let block = 12 * self.hidden + 4 + self.heads;
        let head = if cut.last { 2 * self.hidden + 2 } else { 0 };
        cut.blocks.len() * block + head
    }

    /// The part of them that selective recomputation keeps.
    pub fn selected_elements(&self, cut: &Cut) -> usize {
        // A block: its input, three projections, the attention's output and scores' sums, and the stream
        // between its halves.
        let block = 6 * self.hidden + self.heads;
        let head = if cut.last { self.hidden } else { 0 };
        cut.blocks.len() * block + head
    }

    /// Elements that the input half of a backward pass through `cut` leaves for its weight half, per
    /// token.
    pub fn deferred_elements(&self, cut: &Cut) -> usize {
        // A block: input and gradient of two norms with their statistics, and of four projections.
        let block = 20 * self.hidden + 4;
        let head = if cut.last { 3 * self.hidden + 2 + self.vocab } else { 0 };
        let embedding = if cut.first { self.hidden } else { 0 };
        cut.blocks.len() * block + head + embedding
    }

    /// Forward work of one block per token of a sample of `sequence` tokens.
    pub(super) fn block_flops(&self, sequence: usize) -> u64 {
        let (hidden, sequence) = (self.hidden as u64, sequence as u64);
        24 * hidden * hidden + 4 * sequence * hidden
    }

    /// Forward work of the head per token.
    pub(super) fn head_flops(&self) -> u64 {
        2 * self.hidden as u64 * self.vocab as u64
    }

    fn block_params(&self, block: usize) -> [Param; block::TENSORS] {
        let h = self.hidden;
        let normal = Init::Normal(DEVIATION);
        let residual = Init::Normal(DEVIATION / (2.0 * self.layers as f64).sqrt());
        let tensor = |name, shape: &[usize], init| param(format!("h.{block}.{name}"), shape, init);
        [
            tensor("ln_1.weight", &[h], Init::Ones),
            tensor("ln_1.bias", &[h], Init::Zeros),
            tensor("attn.c_attn.weight", &[h, 3 * h], normal),
            tensor("attn.c_attn.bias", &[3 * h], Init::Zeros),
            tensor("attn.c_proj.weight", &[h, h], residual),
            tensor("attn.c_proj.bias", &[h], Init::Zeros),
            tensor("ln_2.weight", &[h], Init::Ones),
            tensor("ln_2.bias", &[h], Init::Zeros),
            tensor("mlp.c_fc.weight", &[h, 4 * h], normal),
            tensor("mlp.c_fc.bias", &[4 * h], Init::Zeros),
            tensor("mlp.c_proj.weight", &[4 * h, h], residual),
            tensor("mlp.c_proj.bias", &[h], Init::Zeros),
        ]
    }
}

/// Standard deviation of GPT-2's initial weights.
const DEVIATION: f64 = 0.02;

fn param(name: String, shape: &[usize], init: Init) -> Param {
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

    fn config() -> Gpt2Config {
        Gpt2Config { layers: 3, hidden: 100, heads: 5, context: 7, vocab: 11, tied: false }
    }

    #[test]
    fn the_count_is_the_sum_of_the_tensors() {
        for tied in [false, true] {
            let config = Gpt2Config { tied, ..config() };
            let cut = cut(&config, 1).unwrap();
            let params = config.params(&cut[0]);
            let sum: usize = params.iter().map(Param::n_elements).sum();
            assert_eq!(sum as u64, config.n_params());
            assert!(params.iter().all(|p| !p.tied));
        }
    }

    #[test]
    fn a_tied_table_is_on_the_first_and_the_last_stage() {
        let config = Gpt2Config { tied: true, ..config() };
        let stages: Vec<_> =
            cut(&config, 3).unwrap().iter().map(|cut| config.params(cut)).collect();
        let table = |stage: usize| stages[stage].iter().find(|p| p.tied);
        assert_eq!(table(0), stages[0].first());
        assert_eq!(table(1), None);
        assert_eq!(table(2), table(0));
        assert_eq!(table(0).unwrap().name, "wte.weight");
    }

    #[test]
    fn work_is_counted_per_sample() {
        let config = config();
        let whole = cut(&config, 1).unwrap().remove(0);
        let per_token = 3.0 * (24.0 * 1e4 + 4.0 * 5.0 * 100.0) + 2.0 * 100.0 * 11.0;
        assert_eq!(config.forward_flops(&whole, 5), 5.0 * per_token);
    }

    #[test]
    fn refusals_say_what_to_do() {
        let refusal = |config: Gpt2Config| config.validate().unwrap_err().to_string();
        assert_eq!(
            refusal(Gpt2Config { heads: 3, ..config() }),
            "hidden 100 is not divisible by heads 3: choose heads from 1, 2, 4, 5, 10, 20, 25, 50"
        );
        assert_eq!(refusal(Gpt2Config { vocab: 0, ..config() }), "vocab is 0: choose at least 1");
        assert_eq!(
            refusal(Gpt2Config { layers: usize::MAX, ..config() }),
            format!("layers is {}: choose at most 16384", usize::MAX)
        );
    }
}

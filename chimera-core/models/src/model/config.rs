//! The configuration of a model: its layers and their sizes, and the pieces it can be cut into.

use std::fmt;
use std::ops::Range;

use chimera_engine::stage::{Init, Param};

use super::choices::{Llama, NONE};
use super::error::ModelError;
use super::form::DecoderForm;
use super::rope::RopeScaling;
use super::tuning::Tuning;

/// A model: its layers and their sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The kind of its layers.
    pub architecture: Architecture,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Features per token.
    pub hidden: usize,
    /// Attention heads per block; divides `hidden`, unless a Llama has its own `head_dim`.
    pub heads: usize,
    /// The most tokens of a sample: the rows of the position table, if there is one.
    pub context: usize,
    /// Number of distinct token ids.
    pub vocab: usize,
    /// Whether the output head is the token table again.
    pub tied: bool,
    /// Parameters of a Llama; `None` for other models.
    pub llama: Option<Llama>,
    /// The token that ends each document of a sample. Tokens then only see their own document, and
    /// positions of a table are counted within it. `None` if a sample is one text. For decoders.
    pub end_of_text: Option<u32>,
}

impl ModelConfig {
    /// Returns true if tokens only see those before them, which training by slices needs.
    pub fn is_causal(&self) -> bool {
        self.architecture.0.decoder(self).is_some()
    }

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
        if self.choices().head_dim.is_none() && !self.hidden.is_multiple_of(self.heads) {
            return Err(ModelError::Heads { hidden: self.hidden, heads: self.heads });
        }
        if self.end_of_text.is_some() && self.architecture.0.decoder(self).is_none() {
            return Err(ModelError::Documents { model: self.architecture.0.title() });
        }
        if self.architecture == Architecture::LLAMA {
            self.choices().validate(self.hidden, self.heads, self.context)
        } else if self.llama.is_some() {
            Err(ModelError::NotLlama { model: self.architecture.0.title() })
        } else {
            Ok(())
        }
    }

    /// Returns the Llama parameters.
    pub(super) fn choices(&self) -> &Llama {
        self.llama.as_ref().unwrap_or(&NONE)
    }

    /// Returns the features per attention head.
    pub fn head_dim(&self) -> usize {
        self.choices().head_dim.unwrap_or(self.hidden / self.heads.max(1))
    }

    /// Returns the features of all query heads together: `hidden` in most models.
    pub(super) fn mixed(&self) -> usize {
        self.heads * self.head_dim()
    }

    /// Checks that samples of `sequence` tokens can be trained on.
    pub fn check_sequence(&self, sequence: usize) -> Result<(), ModelError> {
        self.validate()?;
        if sequence == 0 {
            return Err(ModelError::Zero { what: "sequence" });
        }
        if sequence > self.context {
            return Err(ModelError::Sequence { sequence, context: self.context });
        }
        match self.choices().rope_scaling {
            // Their frequencies follow from the length of the whole sample.
            RopeScaling::Dynamic { original, .. }
                if self.end_of_text.is_some() && sequence as f64 > original =>
            {
                Err(ModelError::DynamicDocuments { sequence, original })
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the weights also fit a longer context: positions are rotary and not dynamic.
    pub fn has_open_context(&self) -> bool {
        let is_dynamic = matches!(self.choices().rope_scaling, RopeScaling::Dynamic { .. });
        self.architecture.0.n_positions(self) == 0 && !is_dynamic
    }

    /// Returns the training objective.
    pub fn objective(&self) -> Objective {
        self.architecture.0.objective()
    }

    /// Returns the number of predicted tokens of `sequence`: all by a GPT-2, 15 % by a BERT.
    pub fn predictions(&self, sequence: usize) -> usize {
        self.architecture.0.predictions(sequence)
    }

    /// Returns an unpadded sample of these tokens and its targets; `next` follows the last token.
    pub fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        self.architecture.0.sample(tokens, next)
    }

    /// Returns true if `cut` is one of two stages that share the token table.
    pub(super) fn shares_table(&self, cut: &Cut) -> bool {
        self.tied && !(cut.first && cut.last)
    }
}

/// One contiguous piece of the chain `embedding, block 0, …, block layers-1, head`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cut {
    /// The transformer blocks of the piece.
    pub blocks: Range<usize>,
    /// Whether the embedding is part of it.
    pub first: bool,
    /// Whether the final norm and the head are part of it.
    pub last: bool,
    /// The part of its blocks that selective recomputation keeps.
    pub selection: Selection,
    /// The part of it that is trained.
    pub tuning: Tuning,
}

/// The part of a stage's blocks that selective recomputation keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Keeps of each block the results of attention and the inputs of its halves.
    #[default]
    Dear,
    /// Keeps only the input of the first `n` blocks, and everything of the others. A stage that has
    /// fewer blocks keeps the inputs of all.
    InputsOf(usize),
}

impl Selection {
    /// Returns the number of blocks, of `n_blocks`, of which only the input is kept.
    pub fn n_inputs(self, n_blocks: usize) -> usize {
        match self {
            Selection::Dear => 0,
            Selection::InputsOf(n) => n.min(n_blocks),
        }
    }
}

impl Cut {
    /// Returns the whole model as one piece.
    pub fn whole(config: &ModelConfig) -> Cut {
        Cut { blocks: 0..config.layers, first: true, last: true, ..Cut::default() }
    }
}

/// The architecture of a model: one of the table of models.
#[derive(Clone, Copy)]
pub struct Architecture(pub(super) &'static dyn Family);

/// The properties that the models of an architecture share, apart from their stages.
pub(super) trait Family: Sync {
    /// Returns the name that users type.
    fn name(&self) -> &'static str;

    /// Returns the name in texts.
    fn title(&self) -> &'static str;

    /// Returns the form of a decoder-only transformer; `None` for other models.
    fn decoder(&self, _config: &ModelConfig) -> Option<DecoderForm> {
        None
    }

    fn objective(&self) -> Objective {
        Objective::NextToken
    }

    /// Returns the number of parameters; a tied table counts once.
    fn n_params(&self, config: &ModelConfig) -> u64;

    /// Returns the tensors of a stage, in the order in which it holds them.
    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param>;

    /// Returns the names of the linear maps that lie side by side in the matrix of a layer, as
    /// adapters know them.
    fn linear_maps<'l>(&self, layer: &'l str) -> Vec<&'l str> {
        vec![layer]
    }

    /// Returns the multiplications per token in a block, and those in its product into the MLP.
    fn block_products(&self, config: &ModelConfig) -> [f64; 2] {
        [12.0, 4.0].map(|squares| squares * (config.hidden as f64).powi(2))
    }

    /// Returns the most tokens of a sample of `sequence` that a token sees.
    fn visible(&self, _config: &ModelConfig, sequence: usize) -> usize {
        sequence
    }

    /// Returns the rows of the position table.
    fn n_positions(&self, config: &ModelConfig) -> usize {
        config.context
    }

    /// Returns the forward FLOPs of the head for a sample of `sequence` tokens.
    fn head_flops(&self, config: &ModelConfig, sequence: usize) -> f64 {
        2.0 * config.hidden as f64 * config.vocab as f64 * sequence as f64
    }

    /// Returns the forward FLOPs of the head that selective recomputation repeats.
    fn selective_head_flops(&self, _config: &ModelConfig, _sequence: usize) -> f64 {
        0.0
    }

    /// Returns the number of tokens of a sample of `sequence` that are predicted.
    fn predictions(&self, sequence: usize) -> usize {
        sequence
    }

    /// Returns a sample of these tokens, and its targets: `next` is the token after the last.
    fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        let follow = tokens.iter().skip(1).copied();
        (tokens.to_vec(), follow.chain([next]).take(tokens.len()).collect())
    }
}

/// The training objective, which decides the form of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// The next token, from those before it.
    NextToken,
    /// Masked tokens, and whether the second of two segments follows the first.
    MaskedTokens,
}

/// The dropout of a model during training. The default drops nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DropoutRate {
    /// Probability that an element is dropped.
    pub rate: f64,
    /// Seed that decides, with step, layer and sample, which elements are dropped.
    pub seed: u64,
}

impl Architecture {
    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        self.0.name()
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Architecture) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Architecture {}

impl fmt::Debug for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.title())
    }
}

/// Standard deviation of initial weights.
pub(super) const DEVIATION: f64 = 0.02;

pub(super) fn param(name: String, shape: &[usize], init: Init) -> Param {
    Param::new(name, shape, init)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let architecture = Architecture::GPT2;
        ModelConfig {
            architecture,
            layers: 3,
            hidden: 100,
            heads: 5,
            context: 7,
            vocab: 11,
            tied: false,
            llama: None,
            end_of_text: None,
        }
    }

    #[test]
    fn fifteen_of_a_hundred_tokens_are_predicted() {
        let bert = ModelConfig { architecture: Architecture::BERT, ..config() };
        let predictions = [1, 3, 10, 20, 100, 128, 512].map(|sequence| bert.predictions(sequence));
        assert_eq!(predictions, [1, 1, 2, 3, 15, 19, 77]);
    }

    fn llama(scaling: &str, context: usize) -> ModelConfig {
        let choices = Llama { rope_scaling: scaling.parse().unwrap(), ..Llama::usual(100, 5) };
        ModelConfig { architecture: Architecture::LLAMA, llama: Some(choices), context, ..config() }
    }

    #[test]
    fn documents_are_of_samples_that_are_not_scaled_by_their_length() {
        let documents = |scaling: &str, sequence: usize| {
            let model = ModelConfig { end_of_text: Some(0), ..llama(scaling, 64) };
            model.check_sequence(sequence).map_err(|refusal| refusal.to_string())
        };
        let dynamic = "dynamic:factor=2,original=32";
        assert_eq!(documents(dynamic, 32), Ok(()));
        assert_eq!(documents("linear:factor=2", 64), Ok(()));
        assert_eq!(llama(dynamic, 64).check_sequence(64), Ok(()));
        let refusal = documents(dynamic, 33).unwrap_err();
        assert!(
            refusal.contains("in samples of 33 tokens, more than its original 32"),
            "{refusal}"
        );
    }

    #[test]
    fn a_context_is_open_where_no_number_says_it() {
        assert!(!config().has_open_context());
        let open = |scaling: &str| llama(scaling, 64).has_open_context();
        assert!(open("none") && open("yarn:factor=4,original=16"));
        assert!(!open("dynamic:factor=2,original=32"));
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

    #[test]
    fn frequencies_that_do_not_fall_have_no_ramp() {
        let with = |rope_theta: f64, scaling: &str| {
            let llama = Llama {
                rope_theta,
                rope_scaling: scaling.parse().unwrap(),
                ..Llama::usual(100, 5)
            };
            let architecture = Architecture::LLAMA;
            ModelConfig { architecture, llama: Some(llama), ..config() }.validate()
        };
        let yarn = "yarn:factor=4,original=100";
        for theta in [0.5, 1.0] {
            assert_eq!(with(theta, yarn), Err(ModelError::YarnTheta { theta }));
            assert_eq!(with(theta, "none"), Ok(()));
        }
        assert_eq!(with(1.5, yarn), Ok(()));
    }
}

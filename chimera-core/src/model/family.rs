//! The table of models: each is a folder of stages and a line here.

use std::fmt;
use std::str::FromStr;

use super::{Cut, ModelConfig, ModelError, bert, gpt2};
use crate::layers::Layers;
use crate::notation::by_name;
use crate::stage::{AnyStage, Param, erase};

/// What the models of an architecture have in common, beside their stages.
pub(super) trait Family: Sync {
    /// Name in texts.
    fn title(&self) -> &'static str;

    /// What the model is trained to predict.
    fn objective(&self) -> Objective;

    /// Number of parameters; a tied table counts once.
    fn n_params(&self, config: &ModelConfig) -> u64;

    /// The tensors of a stage, in the order in which it holds them.
    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param>;

    /// Forward work of the head on a sample of `sequence` tokens.
    fn head_flops(&self, config: &ModelConfig, sequence: usize) -> f64;

    /// Forward work of the head that selective recomputation does again.
    fn selective_head_flops(&self, _config: &ModelConfig, _sequence: usize) -> f64 {
        0.0
    }

    /// How many tokens of a sample of `sequence` are predicted.
    fn predictions(&self, sequence: usize) -> usize;

    /// A sample of these tokens, and its targets: `next` is what follows the last one.
    fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>);
}

/// What a model is trained to predict, which decides what its samples are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// The next token, from those before it.
    NextToken,
    /// Masked tokens from those around them, and whether the second of two segments follows the first.
    MaskedTokens,
}

macro_rules! models {
    ($($(#[$about:meta])+ $variant:ident = $name:literal in $folder:ident;)+) => {
        /// What the layers of a model are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Architecture {
            $($(#[$about])+ $variant,)+
        }

        impl Architecture {
            /// All architectures, by the name that users type.
            pub const ALL: [(&'static str, Architecture); [$($name),+].len()] =
                [$(($name, Architecture::$variant)),+];

            pub(super) fn family(self) -> &'static dyn Family {
                match self {
                    $(Architecture::$variant => &$folder::Family,)+
                }
            }
        }

        /// The stage `cut` of a model, for samples of `sequence` tokens: usually `config.context`, or fewer.
        ///
        /// # Errors
        /// If there is no such model, or there are no such samples.
        pub fn stage<D: Layers>(
            device: D,
            config: &ModelConfig,
            sequence: usize,
            dropout: DropoutRate,
            cut: Cut,
        ) -> Result<AnyStage<D::Tensor>, ModelError> {
            Ok(match config.architecture {
                $(Architecture::$variant => {
                    erase($folder::stage(device, config, sequence, dropout, cut)?)
                })+
            })
        }
    };
}

models! {
    /// Pre-norm blocks that see what was before, predicting the next token (Radford et al., 2019).
    Gpt2 = "gpt2" in gpt2;
    /// Post-norm blocks that see both ways, predicting masked tokens and whether the second of two
    /// segments follows the first (Devlin et al., 2018).
    Bert = "bert" in bert;
}

/// The dropout of a model while it is trained. The default drops nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DropoutRate {
    /// Probability of an element to be dropped.
    pub rate: f64,
    /// Decides, with step, layer and sample, which elements are dropped.
    pub seed: u64,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family().title())
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(name: &str) -> Result<Architecture, String> {
        by_name("model", name, &Architecture::ALL)
    }
}

//! The table of models: each has a folder of stages and a line here.

use std::str::FromStr;

use chimera_engine::layers::Layers;
use chimera_engine::stage::{AnyStage, erase};
use chimera_schedule::notation::by_name;

use super::config::{Architecture, Cut, DropoutRate, ModelConfig};
use super::error::ModelError;
use super::{bert, gpt2, llama};

macro_rules! models {
    ($($(#[$about:meta])+ $NAME:ident in $folder:ident;)+) => {
        impl Architecture {
            $($(#[$about])+ pub const $NAME: Architecture = Architecture(&$folder::Family);)+

            /// All architectures.
            pub const ALL: [Architecture; [$(stringify!($NAME)),+].len()] =
                [$(Architecture::$NAME),+];
        }

        /// Makes the stage `cut` of a model, for samples of `sequence` tokens, at most `context`.
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
            $(if config.architecture == Architecture::$NAME {
                return Ok(erase($folder::stage(device, config, sequence, dropout, cut)?));
            })+
            unreachable!("every architecture is in the table")
        }
    };
}

models! {
    /// GPT-2 (Radford et al., 2019): pre-norm causal blocks that predict the next token.
    GPT2 in gpt2;
    /// BERT (Devlin et al., 2018): post-norm bidirectional blocks that predict masked tokens, and
    /// whether the second of two segments follows the first.
    BERT in bert;
    /// Llama (Touvron et al., 2023): pre-norm causal blocks with rotary positions and gated MLPs
    /// that predict the next token.
    LLAMA in llama;
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(name: &str) -> Result<Architecture, String> {
        let named = Architecture::ALL.map(|architecture| (architecture.name(), architecture));
        by_name("model", name, &named)
    }
}

//! Models by name.

use chimera_engine::layers::Activation;

use super::choices::Llama;
use super::config::{Architecture, ModelConfig};
use super::rope::RopeScaling;

/// A model with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// The name that users type.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The model's sizes.
    pub config: ModelConfig,
}

impl Preset {
    /// Returns the preset called `name`.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// Defines the presets from their names, descriptions and configurations.
macro_rules! presets {
    ($($name:literal: $about:literal, $config:expr;)+) => {
        /// All presets, the default first.
        pub const PRESETS: &[Preset] =
            &[$(Preset { name: $name, about: $about, config: $config },)+];
    };
}

presets! {
    // Eight small blocks rather than four larger ones, for up to eight stages.
    "tiny": "956,352 parameters on bytes: trains in two minutes on two CPU cores",
        gpt2([8, 96, 6, 128, 256], false);
    "gpt2-124m": "GPT-2 small, 124,439,808 parameters (Radford et al., 2019)",
        gpt2([12, 768, 12, 1024, 50257], true);
    "gpt2-355m": "GPT-2 medium, 354,823,168 parameters (Radford et al., 2019)",
        gpt2([24, 1024, 16, 1024, 50257], true);
    "gpt2-774m": "GPT-2 large, 774,030,080 parameters (Radford et al., 2019)",
        gpt2([36, 1280, 20, 1024, 50257], true);
    "gpt2-1558m": "GPT-2 XL, 1,557,611,200 parameters (Radford et al., 2019)",
        gpt2([48, 1600, 25, 1024, 50257], true);
    "gpt2-64": "64 layers, 1,389,327,360 parameters, untied: the workload of the Chimera paper (SC'21)",
        gpt2([64, 1280, 20, 1024, 50257], false);
    "bert-tiny": "BERT of 951,622 parameters on bytes and four special tokens, as small as tiny",
        bert([8, 96, 6, 128, 260], true);
    "bert-base": "BERT base with both heads, 110,106,428 parameters (Devlin et al., 2018)",
        bert([12, 768, 12, 512, 30522], true);
    "bert-large": "BERT large with both heads, 336,226,108 parameters (Devlin et al., 2018)",
        bert([24, 1024, 16, 512, 30522], true);
    "bert-48": "48 layers, 669,790,012 parameters, untied: the workload of the Chimera paper (SC'21)",
        bert([48, 1024, 16, 512, 30522], false);
    "llama-tiny": "Llama of 837,216 parameters on bytes with grouped heads, as small as tiny",
        llama([8, 96, 6, 128, 256], false, LLAMA_TINY);
    "smollm-135m": "SmolLM, 134,515,008 parameters: a Llama of 30 thin layers (Allal et al., 2024)",
        llama([30, 576, 9, 2048, 49152], true, SMOLLM);
    "qwen2.5-0.5b": "Qwen2.5, 494,032,768 parameters: a Llama with biases of queries, keys and values (Yang et al., 2024)",
        llama([24, 896, 14, 32768, 151_936], true, QWEN);
    "mistral-7b": "Mistral, 7,241,732,096 parameters: a Llama with a sliding window (Jiang et al., 2023)",
        llama([32, 4096, 32, 32768, 32000], false, MISTRAL);
    "llama3-8b": "Llama 3, 8,030,261,248 parameters (Grattafiori et al., 2024)",
        llama([32, 4096, 32, 8192, 128_256], false, LLAMA_3);
}

const LLAMA_TINY: Llama = Llama {
    kv_heads: 2,
    head_dim: None,
    mlp_hidden: 256,
    activation: Activation::Silu,
    norm_epsilon: 1e-5,
    qkv_bias: false,
    window: None,
    rope_theta: 1e4,
    rope_scaling: RopeScaling::None,
};
const SMOLLM: Llama = Llama { kv_heads: 3, mlp_hidden: 1536, ..LLAMA_TINY };
const QWEN: Llama = Llama {
    kv_heads: 2,
    mlp_hidden: 4864,
    norm_epsilon: 1e-6,
    qkv_bias: true,
    rope_theta: 1e6,
    ..LLAMA_TINY
};
const LLAMA_3: Llama = Llama { kv_heads: 8, mlp_hidden: 14336, rope_theta: 5e5, ..LLAMA_TINY };
const MISTRAL: Llama = Llama { rope_theta: 1e4, window: Some(4096), ..LLAMA_3 };

const fn llama(sizes: [usize; 5], tied: bool, llama: Llama) -> ModelConfig {
    config(Architecture::LLAMA, sizes, tied, Some(llama))
}

const fn gpt2(sizes: [usize; 5], tied: bool) -> ModelConfig {
    config(Architecture::GPT2, sizes, tied, None)
}

const fn bert(sizes: [usize; 5], tied: bool) -> ModelConfig {
    config(Architecture::BERT, sizes, tied, None)
}

const fn config(
    architecture: Architecture,
    [layers, hidden, heads, context, vocab]: [usize; 5],
    tied: bool,
    llama: Option<Llama>,
) -> ModelConfig {
    let end_of_text = None;
    ModelConfig { architecture, layers, hidden, heads, context, vocab, tied, llama, end_of_text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_sizes() {
        let counts: Vec<_> =
            PRESETS.iter().map(|preset| (preset.name, preset.config.n_params())).collect();
        assert_eq!(
            counts,
            [
                ("tiny", 956_352),
                ("gpt2-124m", 124_439_808),
                ("gpt2-355m", 354_823_168),
                ("gpt2-774m", 774_030_080),
                ("gpt2-1558m", 1_557_611_200),
                ("gpt2-64", 1_389_327_360),
                ("bert-tiny", 951_622),
                ("bert-base", 110_106_428),
                ("bert-large", 336_226_108),
                ("bert-48", 669_790_012),
                ("llama-tiny", 837_216),
                ("smollm-135m", 134_515_008),
                ("qwen2.5-0.5b", 494_032_768),
                ("mistral-7b", 7_241_732_096),
                ("llama3-8b", 8_030_261_248),
            ]
        );
    }

    #[test]
    fn a_layer_of_the_paper_has_its_size() {
        let all = &Preset::named("gpt2-64").unwrap().config;
        let fewer = ModelConfig { layers: 63, ..all.clone() };
        assert_eq!(all.n_params() - fewer.n_params(), 19_677_440);
    }

    #[test]
    fn presets_are_valid_and_found_by_name() {
        for preset in PRESETS {
            assert_eq!(preset.config.validate(), Ok(()));
            assert_eq!(Preset::named(preset.name), Some(preset));
        }
        assert_eq!(Preset::named("gpt5"), None);
    }
}

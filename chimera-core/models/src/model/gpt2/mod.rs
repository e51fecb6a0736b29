//! GPT-2: learned positions, layer norms, biases everywhere except in the head, GELU.

mod tensors;

use super::config::{self, Cut, ModelConfig};
pub(super) use super::decoder::stage;
use chimera_engine::layers::{Activation, Layout, Mask};
use chimera_engine::stage::Param;

use super::form::{DecoderForm, NormForm};

/// The properties that all GPT-2s share.
pub(super) struct Family;

impl config::Family for Family {
    fn name(&self) -> &'static str {
        "gpt2"
    }

    fn title(&self) -> &'static str {
        "GPT-2"
    }

    fn decoder(&self, config: &ModelConfig) -> Option<DecoderForm> {
        Some(DecoderForm {
            kv_heads: config.heads,
            mask: Mask::Causal,
            norm: NormForm::Layer(1e-5),
            layout: Layout::InOut,
            qkv_bias: true,
            bias: true,
            activation: Activation::GeluTanh,
            is_gated: false,
            rotary: None,
            adapters: Default::default(),
        })
    }

    fn n_params(&self, config: &ModelConfig) -> u64 {
        tensors::n_params(config)
    }

    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param> {
        tensors::params(config, cut)
    }
}

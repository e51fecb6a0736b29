//! Llama: rotary positions, RMS norms, gated MLPs. With grouped heads, biases of queries, keys and
//! values, and a sliding window it also covers Llama 3, Qwen2 and Mistral.

mod tensors;

use super::config::{self, Cut, ModelConfig};
pub(super) use super::decoder::stage;
use chimera_engine::layers::{Layout, Mask};
use chimera_engine::stage::Param;

use super::form::{DecoderForm, NormForm};

/// The properties that all Llamas share.
pub(super) struct Family;

impl config::Family for Family {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn title(&self) -> &'static str {
        "Llama"
    }

    fn decoder(&self, config: &ModelConfig) -> Option<DecoderForm> {
        let llama = config.choices();
        Some(DecoderForm {
            kv_heads: llama.kv_heads,
            mask: llama.window.map_or(Mask::Causal, Mask::Window),
            norm: NormForm::Rms(llama.norm_epsilon),
            layout: Layout::OutIn,
            qkv_bias: llama.qkv_bias,
            bias: false,
            activation: llama.activation,
            is_gated: true,
            rotary: Some((llama.rope_theta, llama.rope_scaling)),
            adapters: Default::default(),
        })
    }

    fn n_params(&self, config: &ModelConfig) -> u64 {
        tensors::n_params(config)
    }

    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param> {
        tensors::params(config, cut)
    }

    fn block_products(&self, config: &ModelConfig) -> [f64; 2] {
        tensors::block_products(config)
    }

    fn linear_maps<'l>(&self, layer: &'l str) -> Vec<&'l str> {
        match layer {
            "self_attn.qkv_proj" => {
                vec!["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
            }
            "mlp.gate_up_proj" => vec!["mlp.gate_proj", "mlp.up_proj"],
            layer => vec![layer],
        }
    }

    fn visible(&self, config: &ModelConfig, sequence: usize) -> usize {
        config.choices().window.map_or(sequence, |window| window.min(sequence))
    }

    fn n_positions(&self, _: &ModelConfig) -> usize {
        0
    }
}

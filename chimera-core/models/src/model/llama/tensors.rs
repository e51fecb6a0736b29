//! The tensors of a Llama, and its FLOPs.

use chimera_engine::stage::{Init, LinearLayer, Param};

use crate::model::choices::Llama;
use crate::model::config::{Cut, DEVIATION, ModelConfig, param};
use crate::model::decoder;

/// Returns the features of one token's keys, which are as many as those of its values.
fn keys(config: &ModelConfig) -> usize {
    config.choices().kv_heads * config.head_dim()
}

/// Returns the features of one token's queries, keys and values.
fn qkv(config: &ModelConfig) -> usize {
    config.mixed() + 2 * keys(config)
}

/// Returns the number of parameters; a tied table counts once.
pub(super) fn n_params(config: &ModelConfig) -> u64 {
    let llama = config.choices();
    let [layers, hidden, vocab] = [config.layers, config.hidden, config.vocab].map(|n| n as u64);
    let [mixed, mlp, qkv] = [config.mixed(), llama.mlp_hidden, qkv(config)].map(|n| n as u64);
    let tables = if config.tied { 1 } else { 2 };
    let bias = if llama.qkv_bias { qkv } else { 0 };
    let block = hidden * (qkv + mixed + 3 * mlp + 2) + bias;
    layers * block + tables * vocab * hidden + hidden
}

/// Returns the multiplications per token in a block, and those in its product into the MLP.
pub(super) fn block_products(config: &ModelConfig) -> [f64; 2] {
    let mlp = config.choices().mlp_hidden as f64;
    let [hidden, mixed, qkv] = [config.hidden, config.mixed(), qkv(config)].map(|n| n as f64);
    [hidden * (qkv + mixed + 3.0 * mlp), 2.0 * hidden * mlp]
}

/// Returns the tensors of a stage, in the order in which it holds them. They are named as in
/// Hugging Face's Llama, but queries, keys and values are one matrix, and so are gate and up.
///
/// Initial values: normal 0.02, and `0.02 / √(2 layers)` for the projections that end on the
/// residual path. Weight decay only on matrices.
pub(super) fn params(config: &ModelConfig, cut: &Cut) -> Vec<Param> {
    let norm = param("norm.weight".into(), &[config.hidden], Init::Ones);
    let block = |block| block_params(config, block);
    decoder::params(config, cut, "embed_tokens.weight", None, block, vec![norm])
}

fn block_params(config: &ModelConfig, block: usize) -> Vec<Param> {
    let Llama { mlp_hidden: mlp, qkv_bias, .. } = *config.choices();
    let (h, mixed, kv, qkv) = (config.hidden, config.mixed(), keys(config), qkv(config));
    let normal = || Init::Normal(DEVIATION);
    let residual = || Init::Normal(DEVIATION / (2.0 * config.layers as f64).sqrt());
    let tensor = |name, shape: &[usize], init| param(format!("layers.{block}.{name}"), shape, init);
    let matrix = |name, shape: &[usize], init, bias: Option<&Param>| {
        let bias = bias.map(|bias| bias.name.clone());
        tensor(name, shape, init).shown(LinearLayer { bias, inputs_first: false })
    };
    let bias = qkv_bias.then(|| tensor("self_attn.qkv_proj.bias", &[qkv], Init::Zeros));
    let mut params = vec![
        tensor("input_layernorm.weight", &[h], Init::Ones),
        matrix("self_attn.qkv_proj.weight", &[qkv, h], normal(), bias.as_ref())
            .fused([mixed, kv, kv]),
        matrix("self_attn.o_proj.weight", &[h, mixed], residual(), None),
        tensor("post_attention_layernorm.weight", &[h], Init::Ones),
        matrix("mlp.gate_up_proj.weight", &[2 * mlp, h], normal(), None).fused([mlp; 2]),
        matrix("mlp.down_proj.weight", &[h, mlp], residual(), None),
    ];
    let behind_matrix = 2;
    params.splice(behind_matrix..behind_matrix, bias);
    params
}

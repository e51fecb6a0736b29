//! The tensors of a GPT-2.

use chimera_engine::stage::{Init, LinearLayer, Param};

use crate::model::config::{Cut, DEVIATION, ModelConfig, param};
use crate::model::decoder;

/// Returns the number of parameters; a tied table counts once.
pub(super) fn n_params(config: &ModelConfig) -> u64 {
    let [layers, hidden, context, vocab] =
        [config.layers, config.hidden, config.context, config.vocab].map(|n| n as u64);
    let tables = if config.tied { 1 } else { 2 };
    layers * (12 * hidden * hidden + 13 * hidden) + (tables * vocab + context) * hidden + 2 * hidden
}

/// Returns the tensors of a stage, in its order, named as in Hugging Face's GPT-2.
///
/// Initial values as published: normal 0.02, and `0.02 / √(2 layers)` for the projections that end
/// on the residual path. Weight decay only on matrices.
pub(super) fn params(config: &ModelConfig, cut: &Cut) -> Vec<Param> {
    let table = &[config.context, config.hidden];
    let positions = param("wpe.weight".into(), table, Init::Normal(DEVIATION)).fused([]);
    let norm = [("ln_f.weight", Init::Ones), ("ln_f.bias", Init::Zeros)];
    let norm = norm.map(|(name, init)| param(name.into(), &[config.hidden], init));
    let block = |block| block_params(config, block);
    decoder::params(config, cut, "wte.weight", Some(positions), block, norm.into())
}

fn block_params(config: &ModelConfig, block: usize) -> Vec<Param> {
    let h = config.hidden;
    let normal = || Init::Normal(DEVIATION);
    let residual = || Init::Normal(DEVIATION / (2.0 * config.layers as f64).sqrt());
    let linear = |name: &str, shape: &[usize], init| {
        let at = |what: &str| format!("h.{block}.{name}.{what}");
        let layer = LinearLayer { bias: Some(at("bias")), inputs_first: true };
        let bias = param(at("bias"), &shape[1..], Init::Zeros);
        [param(at("weight"), shape, init).shown(layer), bias]
    };
    let norm = |name: &str| {
        [("weight", Init::Ones), ("bias", Init::Zeros)]
            .map(|(what, init)| param(format!("h.{block}.{name}.{what}"), &[h], init))
    };
    let [qkv, qkv_bias] = linear("attn.c_attn", &[h, 3 * h], normal());
    let layers = [
        norm("ln_1"),
        [qkv.fused([h; 3]), qkv_bias],
        linear("attn.c_proj", &[h, h], residual()),
        norm("ln_2"),
        linear("mlp.c_fc", &[h, 4 * h], normal()),
        linear("mlp.c_proj", &[4 * h, h], residual()),
    ];
    layers.into_iter().flatten().collect()
}

//! The tensors of a BERT, and the FLOPs of its heads.

use chimera_engine::stage::{Init, LinearLayer, Param};

use super::super::config::{Cut, DEVIATION, ModelConfig, param};
use super::block;
use super::head;

/// Returns the number of parameters; a tied table counts once.
pub(super) fn n_params(config: &ModelConfig) -> u64 {
    let [layers, hidden, context, vocab] =
        [config.layers, config.hidden, config.context, config.vocab].map(|n| n as u64);
    let tables = if config.tied { 1 } else { 2 };
    let embedding = (tables * vocab + context + 2) * hidden + 2 * hidden;
    let blocks = layers * (12 * hidden * hidden + 13 * hidden);
    // Pooler and transform, the transform's norm, the decoder's bias, two classes.
    let head = 2 * (hidden * hidden + hidden) + 2 * hidden + vocab + 2 * hidden + 2;
    embedding + blocks + head
}

/// Returns the tensors of a stage, in the order in which it holds them. They are named as in
/// Hugging Face's BERT without its prefix, but queries, keys and values are one matrix, `qkv`.
///
/// Initial values as published: normal 0.02. Weight decay only on matrices.
pub(super) fn params(config: &ModelConfig, cut: &Cut) -> Vec<Param> {
    let shared = config.shares_table(cut);
    let table = |name: &str, rows| {
        let name = format!("embeddings.{name}.weight");
        param(name, &[rows, config.hidden], Init::Normal(DEVIATION)).fused([])
    };
    let words = Param { tied: shared, ..table("word_embeddings", config.vocab) };
    let mut params = Vec::new();
    if cut.first {
        params.push(words.clone());
        params.push(table("position_embeddings", config.context));
        params.push(table("token_type_embeddings", 2));
        params.extend(norm("embeddings", config.hidden));
    }
    for block in cut.blocks.clone() {
        params.extend(block_params(config, block));
    }
    if cut.last {
        params.extend(head_params(config));
        let decoder = "cls.predictions.decoder.weight";
        if !config.tied {
            params.push(Param { name: decoder.into(), ..words });
        } else if shared {
            params.push(words);
        }
    }
    params
}

/// Returns the forward FLOPs of the heads for a sample of `sequence` tokens.
pub(super) fn head_flops(config: &ModelConfig, sequence: usize) -> f64 {
    let (hidden, vocab) = (config.hidden as f64, config.vocab as f64);
    let per_prediction = 2.0 * hidden * (hidden + vocab);
    config.predictions(sequence) as f64 * per_prediction + 2.0 * hidden * (hidden + 2.0)
}

fn block_params(config: &ModelConfig, block: usize) -> [Param; block::TENSORS] {
    let h = config.hidden;
    let at = |name: &str| format!("encoder.layer.{block}.{name}");
    let [qkv, qkv_bias] = shown(dense(&at("attention.self.qkv"), 3 * h, h));
    let qkv = qkv.fused([h; 3]);
    let [out, out_bias] = shown(dense(&at("attention.output.dense"), h, h));
    let [norm_1, norm_1_bias] = norm(&at("attention.output"), h);
    let [fc, fc_bias] = shown(dense(&at("intermediate.dense"), 4 * h, h));
    let [proj, proj_bias] = shown(dense(&at("output.dense"), h, 4 * h));
    let [norm_2, norm_2_bias] = norm(&at("output"), h);
    [
        qkv,
        qkv_bias,
        out,
        out_bias,
        norm_1,
        norm_1_bias,
        fc,
        fc_bias,
        proj,
        proj_bias,
        norm_2,
        norm_2_bias,
    ]
}

/// Returns the tensors of the heads, except the decoder's matrix.
fn head_params(config: &ModelConfig) -> [Param; head::TENSORS] {
    let h = config.hidden;
    let [pooler, pooler_bias] = dense("pooler.dense", h, h);
    let [next, next_bias] = dense("cls.seq_relationship", 2, h);
    let next = next.fused([]); // a head
    let [transform, transform_bias] = dense("cls.predictions.transform.dense", h, h);
    let [gain, bias] = norm("cls.predictions.transform", h);
    let decoder_bias = param("cls.predictions.bias".into(), &[config.vocab], Init::Zeros);
    [pooler, pooler_bias, next, next_bias, transform, transform_bias, gain, bias, decoder_bias]
}

fn dense(name: &str, outputs: usize, inputs: usize) -> [Param; 2] {
    [
        param(format!("{name}.weight"), &[outputs, inputs], Init::Normal(DEVIATION)),
        param(format!("{name}.bias"), &[outputs], Init::Zeros),
    ]
}

/// Marks a layer whose operands the stage shows.
fn shown([matrix, bias]: [Param; 2]) -> [Param; 2] {
    let layer = LinearLayer { bias: Some(bias.name.clone()), inputs_first: false };
    [matrix.shown(layer), bias]
}

fn norm(name: &str, features: usize) -> [Param; 2] {
    [
        param(format!("{name}.LayerNorm.weight"), &[features], Init::Ones),
        param(format!("{name}.LayerNorm.bias"), &[features], Init::Zeros),
    ]
}

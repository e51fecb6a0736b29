//! What all Llamas have in common.

use super::super::config::{self, Cut, ModelConfig, Objective};
use super::tensors;
use crate::stage::Param;

/// What all Llamas have in common.
pub(in crate::model) struct Family;

impl config::Family for Family {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn title(&self) -> &'static str {
        "Llama"
    }

    fn objective(&self) -> Objective {
        Objective::NextToken
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

    fn visible(&self, config: &ModelConfig, sequence: usize) -> usize {
        config.choices().window.map_or(sequence, |window| window.min(sequence))
    }

    fn n_positions(&self, _: &ModelConfig) -> usize {
        0
    }

    fn head_flops(&self, config: &ModelConfig, sequence: usize) -> f64 {
        2.0 * config.hidden as f64 * config.vocab as f64 * sequence as f64
    }

    fn predictions(&self, sequence: usize) -> usize {
        sequence
    }

    fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        let follow = tokens.iter().skip(1).copied();
        (tokens.to_vec(), follow.chain([next]).take(tokens.len()).collect())
    }
}

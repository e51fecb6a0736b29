//! The tensors of all decoders, in a common order.

use chimera_engine::stage::{Init, Param};

use crate::model::config::{Cut, DEVIATION, ModelConfig, param};

/// Returns the tensors of a stage, in the order in which it holds them: the token table `tokens`
/// and the rest of the embedding, those of each block, the final norm, and the head.
///
/// Initial values of the tables and of the head: normal 0.02.
pub(in crate::model) fn params(
    config: &ModelConfig,
    cut: &Cut,
    tokens: &str,
    positions: Option<Param>,
    block: impl Fn(usize) -> Vec<Param>,
    norm: Vec<Param>,
) -> Vec<Param> {
    let table = |name: &str| {
        let shape = &[config.vocab, config.hidden];
        param(name.into(), shape, Init::Normal(DEVIATION)).fused([])
    };
    let shared = config.shares_table(cut);
    let tokens = Param { tied: shared, ..table(tokens) };
    let mut params = Vec::new();
    if cut.first {
        params.push(tokens.clone());
        params.extend(positions);
    }
    params.extend(cut.blocks.clone().flat_map(block));
    if cut.last {
        params.extend(norm);
        if !config.tied {
            params.push(table("lm_head.weight"));
        } else if shared {
            params.push(tokens);
        }
    }
    params
}

//! Names of tensors, here and in Hugging Face.

use std::ops::Range;

use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::stage::Param;

use super::table::format;

/// Returns the name of a tensor, or of a part of one, in a model with its head.
pub(crate) fn to_hf(architecture: Architecture, name: &str) -> String {
    format(architecture).to_hf(name)
}

/// Returns a tensor that is read instead of one of ours if it exists, and written beside it.
pub(crate) fn twin(config: &ModelConfig) -> Option<(&'static str, &'static str)> {
    (format(config.architecture).twin)(config)
}

/// Returns the rows of a parameter by the names of the tensors that hold them in Hugging Face: queries,
/// keys and values are one matrix here and three there, and Llama's gate and up one here and two there.
pub(crate) fn parts(config: &ModelConfig, param: &Param) -> Vec<(String, Range<usize>)> {
    let kv_heads = config.llama.map_or(config.heads, |llama| llama.kv_heads);
    let grouped = [config.heads, kv_heads, kv_heads];
    let fused: [(&str, &[(&str, usize)]); 3] = [
        ("self.qkv.", &[("self.query.", 1), ("self.key.", 1), ("self.value.", 1)]),
        (
            "self_attn.qkv_proj.",
            &[
                ("self_attn.q_proj.", grouped[0]),
                ("self_attn.k_proj.", grouped[1]),
                ("self_attn.v_proj.", grouped[2]),
            ],
        ),
        ("mlp.gate_up_proj.", &[("mlp.gate_proj.", 1), ("mlp.up_proj.", 1)]),
    ];
    let rows = param.shape.first().copied().unwrap_or_default();
    let Some((name, parts)) = fused.into_iter().find(|(name, _)| param.name.contains(name)) else {
        return vec![(param.name.clone(), 0..rows)];
    };
    let share = rows / parts.iter().map(|(_, shares)| shares).sum::<usize>().max(1);
    let mut start = 0;
    let part = |(part, shares): &(&str, usize)| {
        let rows = start..start + shares * share;
        start = rows.end;
        (param.name.replace(name, part), rows)
    };
    parts.iter().map(part).collect()
}

//! How Hugging Face writes the scaling of rotary frequencies.

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::RopeScaling;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// How rotary frequencies are scaled, and since version 5 of `transformers` their base too.
#[derive(Deserialize)]
pub(super) struct RopeKeys {
    rope_type: Option<String>,
    r#type: Option<String>,
    pub(super) rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The scaling of rotary frequencies.
pub(super) fn scaling(rope: &RopeKeys, context: usize) -> Result<RopeScaling> {
    let kind = rope.rope_type.as_deref().or(rope.r#type.as_deref()).unwrap_or("default");
    let need = |value: Option<f64>, key: &str| {
        value.with_context(|| format!("`rope_scaling` of type {kind:?} lacks `{key}`"))
    };
    let whole = rope.partial_rotary_factor.is_none_or(|part| part == 1.0);
    for (fits, key) in [
        (whole, "partial_rotary_factor"),
        (rope.mscale.is_none(), "mscale"),
        (rope.mscale_all_dim.is_none(), "mscale_all_dim"),
        (rope.truncate.unwrap_or(true), "truncate"),
    ] {
        ensure!(fits, "`rope_scaling` has `{key}`, which the models here do not compute");
    }
    let nested = rope.others.iter().find(|(_, value)| value.is_object());
    if let Some((key, _)) = nested {
        bail!(
            "`rope_scaling` has the object `{key}`, but all layers of the models here are scaled alike"
        );
    }
    ensure!(
        kind != "default" || rope.factor.is_none(),
        "`rope_scaling` has a `factor`, but its `rope_type` is {}: name the type that the factor is for",
        if rope.rope_type.is_none() && rope.r#type.is_none() { "missing" } else { "\"default\"" }
    );
    let factor = || need(rope.factor, "factor");
    let original = rope.original_max_position_embeddings;
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "dynamic" => RopeScaling::Dynamic { factor: factor()?, original: context as f64 },
        "yarn" => RopeScaling::Yarn {
            factor: factor()?,
            original: original.unwrap_or(context as f64),
            fast: rope.beta_fast.unwrap_or(32.0),
            slow: rope.beta_slow.unwrap_or(1.0),
            attention: match rope.attention_factor {
                Some(attention) => attention,
                None => RopeScaling::yarn_attention(factor()?),
            },
        },
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            original: need(original, "original_max_position_embeddings")?,
            low: need(rope.low_freq_factor, "low_freq_factor")?,
            high: need(rope.high_freq_factor, "high_freq_factor")?,
        },
        _ => bail!(
            "`rope_scaling` is of type {kind:?}, but those here are \"default\", \"linear\", \"dynamic\", \"yarn\" and \
             \"llama3\""
        ),
    })
}

/// `rope_scaling` of a model.
pub(super) fn rope_to_json(scaling: &RopeScaling) -> Value {
    match *scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Dynamic { factor, .. } => json!({ "rope_type": "dynamic", "factor": factor }),
        RopeScaling::Yarn { factor, original, fast, slow, attention } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "beta_fast": fast,
            "beta_slow": slow,
            "attention_factor": attention,
        }),
        RopeScaling::Llama3 { factor, original, low, high } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "low_freq_factor": low,
            "high_freq_factor": high,
        }),
    }
}

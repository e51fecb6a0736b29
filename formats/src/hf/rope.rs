//! The scaling of rotary frequencies in Hugging Face's files.

use anyhow::{Context, Result, bail, ensure};
use chimera_core::model::RopeScaling;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The scaling of rotary frequencies, and since version 5 of `transformers` their base too.
#[derive(Deserialize)]
pub(super) struct RopeKeys {
    rope_type: Option<String>,
    r#type: Option<String>,
    pub(super) rope_theta: Option<f64>,
    pub(super) partial_rotary_factor: Option<f64>,
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
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Returns the scaling of rotary frequencies in a model of at most `longest` tokens. The number of
/// tokens `before` scaling, given outside of `rope`, overrides the one within.
pub(super) fn scaling(rope: &RopeKeys, longest: usize, before: Option<f64>) -> Result<RopeScaling> {
    let kind = rope.rope_type.as_deref().or(rope.r#type.as_deref()).unwrap_or("default");
    let need = |value: Option<f64>, key: &str| {
        value.with_context(|| format!("`rope_scaling` of type {kind:?} lacks `{key}`"))
    };
    ensure!(
        rope.truncate.unwrap_or(true),
        "`rope_scaling` has `truncate`, which the models here do not compute"
    );
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
    let original = before.or(rope.original_max_position_embeddings).unwrap_or(longest as f64);
    Ok(match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: factor()? },
        "dynamic" => RopeScaling::Dynamic { factor: factor()?, original: longest as f64 },
        "yarn" => {
            let factor = rope.factor.unwrap_or(longest as f64 / original);
            RopeScaling::Yarn {
                factor,
                original,
                fast: said(rope.beta_fast).unwrap_or(32.0),
                slow: said(rope.beta_slow).unwrap_or(1.0),
                attention: rope.attention_factor.unwrap_or_else(|| attention(rope, factor)),
            }
        }
        "llama3" => RopeScaling::Llama3 {
            factor: factor()?,
            original,
            low: need(rope.low_freq_factor, "low_freq_factor")?,
            high: need(rope.high_freq_factor, "high_freq_factor")?,
        },
        _ => bail!(
            "`rope_scaling` is of type {kind:?}, but those here are \"default\", \"linear\", \"dynamic\", \"yarn\" and \
             \"llama3\""
        ),
    })
}

/// Returns a number, or `None` for 0, which means absent.
fn said(number: Option<f64>) -> Option<f64> {
    number.filter(|number| *number != 0.0)
}

/// Returns YaRN's default factor of cosines and sines.
fn attention(rope: &RopeKeys, factor: f64) -> f64 {
    let of = |weight: f64| 1.0 + weight * (RopeScaling::yarn_attention(factor) - 1.0);
    match said(rope.mscale).zip(said(rope.mscale_all_dim)) {
        Some((above, below)) => of(above) / of(below),
        None => RopeScaling::yarn_attention(factor),
    }
}

/// Returns the `rope_scaling` of a model.
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

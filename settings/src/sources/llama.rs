//! The options that only a llama has.

use chimera_core::model::{Architecture, Llama, ModelConfig};
use toml::Value;

use super::origin::{Entries, text};
use crate::{Config, MlpGate, Origin, SettingsError};

/// Keys of the options that only a llama has.
const KEYS: [&str; 9] = [
    "kv-heads",
    "head-dim",
    "mlp-hidden",
    "activation",
    "qkv-bias",
    "sliding-window",
    "rope-theta",
    "rope-scaling",
    "norm-eps",
];

/// The choices of a llama, by key.
pub(crate) fn choices(llama: &Llama) -> [(&'static str, Value); 9] {
    let whole = |n: usize| Value::Integer(n as i64);
    let gate = MlpGate::ALL.iter().find(|(_, gate)| gate.0 == llama.activation);
    let gate = gate.map_or("silu", |(name, _)| *name);
    let values = [
        whole(llama.kv_heads),
        whole(llama.head_dim.unwrap_or(0)),
        whole(llama.mlp_hidden),
        Value::String(gate.into()),
        Value::Boolean(llama.qkv_bias),
        whole(llama.window.unwrap_or(0)),
        Value::Float(llama.rope_theta),
        Value::String(llama.rope_scaling.to_string()),
        Value::Float(llama.norm_epsilon),
    ];
    let mut values = values.into_iter();
    KEYS.map(|key| (key, values.next().expect("a value for each key")))
}

/// Adds the usual choices for those of a llama that were not given. For another model, removes
/// those of the preset and refuses those that were given.
pub(crate) fn complete(merged: &mut Entries) -> Result<(), SettingsError> {
    let model = text(merged, "model").unwrap_or_default().to_owned();
    if model == Architecture::LLAMA.name() {
        let whole = |key| merged.get(key).and_then(|(value, _)| value.as_integer()).unwrap_or(1);
        let [hidden, heads] = [whole("hidden"), whole("heads")].map(|n| n as usize);
        for (key, value) in choices(&Llama::usual(hidden, heads)) {
            merged.entry(key).or_insert((value, Origin::Default));
        }
        return Ok(());
    }
    for key in KEYS {
        match merged.remove(key) {
            None | Some((_, Origin::Preset(_))) => {}
            Some((_, place)) => {
                let message =
                    format!("a {model} has no `{key}`: leave it out, or choose model llama");
                return Err(SettingsError { place: place.to_string(), message });
            }
        }
    }
    Ok(())
}

impl Config {
    /// Returns the choices of the model if it is a llama.
    pub(crate) fn llama(&self) -> Option<Llama> {
        let usual = Llama::usual(self.model.hidden, self.model.heads);
        let llama = Llama {
            kv_heads: self.model.kv_heads.unwrap_or(usual.kv_heads),
            head_dim: self.model.head_dim.filter(|dim| *dim > 0),
            mlp_hidden: self.model.mlp_hidden.unwrap_or(usual.mlp_hidden),
            activation: self.model.activation.map_or(usual.activation, |gate| gate.0),
            norm_epsilon: self.model.norm_eps.unwrap_or(usual.norm_epsilon),
            qkv_bias: self.model.qkv_bias.unwrap_or(usual.qkv_bias),
            window: self.model.sliding_window.filter(|window| *window > 0),
            rope_theta: self.model.rope_theta.unwrap_or(usual.rope_theta),
            rope_scaling: self.model.rope_scaling.unwrap_or(usual.rope_scaling),
        };
        (self.model.architecture == Architecture::LLAMA).then_some(llama)
    }
}

/// Returns the choices of a llama, for which `setting` returns the value of a key, as checkpoints
/// store them; `None` for another model.
///
/// # Errors
/// If a value is missing or invalid.
pub fn llama_of(
    model: &ModelConfig,
    setting: impl Fn(&str) -> anyhow::Result<Value>,
) -> anyhow::Result<Option<Llama>> {
    if model.architecture != Architecture::LLAMA {
        return Ok(None);
    }
    let whole = |key| Ok::<_, anyhow::Error>(setting(key)?.try_into::<usize>()?);
    let number = |key| Ok::<_, anyhow::Error>(setting(key)?.try_into::<f64>()?);
    let word = |key| Ok::<_, anyhow::Error>(setting(key)?.try_into::<String>()?);
    Ok(Some(Llama {
        kv_heads: whole("kv-heads")?,
        // Earlier checkpoints do not have this key.
        head_dim: whole("head-dim").ok().filter(|dim| *dim > 0),
        mlp_hidden: whole("mlp-hidden")?,
        activation: word("activation")?.parse::<MlpGate>().map_err(anyhow::Error::msg)?.0,
        norm_epsilon: number("norm-eps")?,
        qkv_bias: setting("qkv-bias")?.try_into()?,
        window: Some(whole("sliding-window")?).filter(|window| *window > 0),
        rope_theta: number("rope-theta")?,
        rope_scaling: word("rope-scaling")?.parse().map_err(anyhow::Error::msg)?,
    }))
}

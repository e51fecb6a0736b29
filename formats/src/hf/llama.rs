//! Llama's, Qwen2's and Mistral's `config.json` and names. Queries, keys and values are one matrix
//! here and three there; gate and up are one here and two there.

use anyhow::{Context, Result, bail, ensure};
use chimera_core::layers::Activation;
use chimera_core::model::{Architecture, Llama, ModelConfig, RopeScaling};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dropout::DropoutRates;
use super::format::HfFormat;
use super::rope::{RopeKeys, rope_to_json, scaling};

/// The format of the models in Hugging Face.
pub(super) const FORMAT: HfFormat = HfFormat {
    model_types: &["llama", "qwen2", "mistral"],
    parse,
    to_json,
    body: "model.",
    head: HEAD,
    constants: &["rotary_emb.inv_freq"], // the rotary frequencies
    old_ends: &[],
    copies,
    twin: |_| None,
};

/// Keys that determine sizes and architecture. Keys that may be absent have their defaults from `transformers`.
#[derive(Deserialize)]
struct Keys {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    num_attention_heads: usize,
    #[serde(default, deserialize_with = "present")]
    num_key_value_heads: Option<Option<usize>>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    max_position_embeddings: usize,
    vocab_size: usize,
    tie_word_embeddings: Option<bool>,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default = "epsilon")]
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    attention_dropout: Option<f64>,
    embd_pdrop: Option<f64>,
    resid_pdrop: Option<f64>,
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    #[serde(default)]
    use_sliding_window: bool,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

/// Deserializes a key that is present, even if it is null.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(d).map(Some)
}

fn silu() -> String {
    "silu".into()
}

fn epsilon() -> f64 {
    1e-6
}

/// The default base of the rotary frequencies.
const THETA: f64 = 1e4;

/// Returns the model that a `config.json` describes.
///
/// # Errors
/// Refuses, naming the key, a model that is not one as this project computes it.
fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    let keys: Keys = serde_json::from_slice(text)?;
    let (hidden, heads) = (keys.hidden_size, keys.num_attention_heads);
    let is_qwen = keys.model_type == "qwen2";
    let rope = rope(&keys)?;
    // The value given with the frequencies overrides the general one.
    let turned = rope.as_ref().and_then(|rope| rope.partial_rotary_factor);
    let turned = turned.or(keys.partial_rotary_factor).unwrap_or(1.0);
    for (fits, key, found, wanted) in [
        (keys.attention_bias != Some(true), "attention_bias", json!(true), "false"),
        (keys.mlp_bias != Some(true), "mlp_bias", json!(true), "false"),
        (turned == 1.0, "partial_rotary_factor", json!(turned), "1"),
    ] {
        ensure!(fits, "`{key}` is {found}, but the model here is a Llama with {wanted}");
    }
    let kv_heads = match (keys.num_key_value_heads, keys.model_type.as_str()) {
        (Some(heads), _) => heads,
        (None, "qwen2") => Some(32),
        (None, "mistral") => Some(8),
        (None, _) => None,
    };
    let theta = rope.as_ref().and_then(|rope| rope.rope_theta).or(keys.rope_theta);
    let (longest, original) = (keys.max_position_embeddings, keys.original_max_position_embeddings);
    let scaling = rope.map(|rope| scaling(&rope, longest, original)).transpose()?;
    let rope_scaling = scaling.unwrap_or(RopeScaling::None);
    let context = match rope_scaling {
        RopeScaling::Dynamic { factor, original } => RopeScaling::dynamic_context(factor, original),
        _ => keys.max_position_embeddings,
    };
    let llama = Llama {
        kv_heads: kv_heads.unwrap_or(heads),
        head_dim: keys.head_dim.filter(|dim| dim.checked_mul(heads) != Some(hidden)),
        mlp_hidden: keys.intermediate_size,
        activation: activation(&keys.hidden_act)?,
        norm_epsilon: keys.rms_norm_eps,
        qkv_bias: is_qwen,
        window: window(&keys)?,
        rope_theta: theta.unwrap_or(THETA),
        rope_scaling,
    };
    let config = ModelConfig {
        architecture: Architecture::LLAMA,
        layers: keys.num_hidden_layers,
        hidden,
        heads,
        context,
        vocab: keys.vocab_size,
        tied: keys.tie_word_embeddings.unwrap_or(false),
        llama: Some(llama),
        end_of_text: None,
    };
    config.validate()?;
    let dropout = DropoutRates {
        embedding: keys.embd_pdrop.unwrap_or(0.0),
        residual: keys.resid_pdrop.unwrap_or(0.0),
        attention: keys.attention_dropout.unwrap_or(0.0),
    };
    Ok((config, dropout))
}

/// Returns the keys of rotary frequencies. As in `transformers`, all of them come from `rope_scaling` if that has any.
fn rope(keys: &Keys) -> Result<Option<RopeKeys>> {
    let said = [("rope_scaling", &keys.rope_scaling), ("rope_parameters", &keys.rope_parameters)];
    let said = said.into_iter().filter_map(|(key, said)| Some((key, said.as_ref()?)));
    let Some((key, said)) = said.into_iter().find(|(_, said)| !said.is_empty()) else {
        return Ok(None);
    };
    let rope = serde_json::from_value(Value::Object(said.clone()));
    rope.map(Some).with_context(|| format!("`{key}`"))
}

/// Names of the activation functions of a gate.
const ACTIVATIONS: [(&str, Activation); 5] = [
    ("silu", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("swish", Activation::Silu),
];

fn activation(name: &str) -> Result<Activation> {
    let found = ACTIVATIONS.iter().find(|(other, _)| *other == name);
    let names = ACTIVATIONS.map(|(name, _)| name).join(", ");
    let found =
        found.with_context(|| format!("`hidden_act` is {name:?}, but must be one of {names}"))?;
    Ok(found.1)
}

/// Returns the sliding window: how many tokens back all layers see.
fn window(keys: &Keys) -> Result<Option<usize>> {
    let (of_all, none) = ("sliding_attention", "full_attention");
    let window = match keys.model_type.as_str() {
        "mistral" => keys.sliding_window.unwrap_or(Some(4096)),
        "qwen2" if keys.use_sliding_window => keys.sliding_window.unwrap_or(Some(4096)),
        _ => None,
    };
    if let Some(kind) =
        keys.layer_types.iter().flatten().find(|kind| ![of_all, none].contains(&kind.as_str()))
    {
        bail!("`layer_types` has {kind:?}, but layers here are {of_all:?} or {none:?}");
    }
    if keys.model_type == "mistral" {
        // `transformers` only reads `sliding_window`.
        let wanted = if window.is_some() { of_all } else { none };
        let other = keys.layer_types.iter().flatten().find(|kind| *kind != wanted);
        let said = json!(window);
        return match other {
            None => Ok(window),
            Some(kind) => bail!(
                "`layer_types` has {kind:?}, but `sliding_window` is {said}, and all layers of a mistral follow that: make \
                 them agree"
            ),
        };
    }
    let is_windowed = |layer: usize| match &keys.layer_types {
        Some(types) => types.get(layer).is_some_and(|kind| kind == of_all),
        None => keys.model_type != "qwen2" || layer >= keys.max_window_layers.unwrap_or(28),
    };
    let n_windowed = (0..keys.num_hidden_layers.min(1 << 14)).filter(|n| is_windowed(*n)).count();
    match window {
        None => Ok(None),
        Some(_) if n_windowed == 0 => Ok(None),
        Some(window) if n_windowed == keys.num_hidden_layers => Ok(Some(window)),
        Some(_) => {
            let key = if keys.layer_types.is_some() { "layer_types" } else { "max_window_layers" };
            bail!(
                "`{key}` gives {n_windowed} of {} layers a sliding window, but here all have it or none",
                keys.num_hidden_layers
            )
        }
    }
}

/// Ids that begin and end a text in well-known vocabularies of these sizes: Llama 1 and 2, SmolLM, Llama 3 and Qwen2.
const ENDS: [(usize, [Option<u32>; 2]); 4] = [
    (32_000, [Some(1), Some(2)]),
    (49_152, [Some(0), Some(0)]),
    (128_256, [Some(128_000), Some(128_001)]),
    (151_936, [None, Some(151_643)]),
];

/// Returns the `config.json` of a model, as the first kind of model that has its biases, its window and its heads.
fn to_json(config: &ModelConfig, dropout: &DropoutRates) -> Value {
    let llama = config.llama.unwrap_or_else(|| Llama::usual(config.hidden, config.heads));
    let (architecture, model_type) = match (llama.qkv_bias, llama.window) {
        (true, _) => ("Qwen2ForCausalLM", "qwen2"),
        (false, Some(_)) => ("MistralForCausalLM", "mistral"),
        // `transformers` opens no other llama.
        (false, None) if config.hidden.is_multiple_of(config.heads.max(1)) => {
            ("LlamaForCausalLM", "llama")
        }
        (false, None) => ("MistralForCausalLM", "mistral"),
    };
    let ends = ENDS.iter().find(|(vocab, _)| *vocab == config.vocab);
    let [begin, end] = ends.map_or([None; 2], |(_, ends)| *ends);
    let name = ACTIVATIONS.iter().find(|(_, f)| *f == llama.activation).map(|(name, _)| *name);
    let context = match llama.rope_scaling {
        RopeScaling::Dynamic { original, .. } => original as usize,
        _ => config.context,
    };
    let mut keys = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": llama.kv_heads,
        "intermediate_size": llama.mlp_hidden,
        "max_position_embeddings": context,
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tied,
        "hidden_act": name,
        "rms_norm_eps": llama.norm_epsilon,
        "rope_theta": llama.rope_theta,
        "rope_scaling": rope_to_json(&llama.rope_scaling),
        "attention_dropout": dropout.attention,
        "bos_token_id": begin,
        "eos_token_id": end,
        "dtype": "float32",
        "torch_dtype": "float32",
    });
    if let Some(dim) = llama.head_dim {
        keys["head_dim"] = json!(dim);
    }
    // `transformers` has no such rates for these models, and drops nothing there.
    for (key, rate) in [("embd_pdrop", dropout.embedding), ("resid_pdrop", dropout.residual)] {
        if rate != 0.0 {
            keys[key] = json!(rate);
        }
    }
    match model_type {
        "qwen2" => {
            keys["use_sliding_window"] = json!(llama.window.is_some());
            keys["sliding_window"] = json!(llama.window);
            keys["max_window_layers"] = json!(0);
        }
        "mistral" => keys["sliding_window"] = json!(llama.window),
        _ => {
            keys["attention_bias"] = json!(false);
            keys["mlp_bias"] = json!(false);
        }
    }
    keys
}

/// The only tensor outside of the body.
const HEAD: &str = "lm_head.weight";

/// Returns optional duplicate tensors, and our names of the originals.
fn copies(config: &ModelConfig) -> Vec<(&'static str, &'static str)> {
    if config.tied { vec![(HEAD, "embed_tokens.weight")] } else { Vec::new() }
}

#[cfg(test)]
mod tests;

//! GPT-2's `config.json` and names. Layouts are equal: its own projections (`Conv1D`) are `[in,
//! out]`, as ours are.

use anyhow::{Result, ensure};
use chimera_core::model::{Architecture, ModelConfig};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dropout::DropoutRates;
use super::format::HfFormat;

/// The format of the model in Hugging Face.
pub(super) const FORMAT: HfFormat = HfFormat {
    model_types: &["gpt2"],
    parse,
    to_json,
    body: "transformer.",
    head: HEAD,
    constants: &[".attn.bias", ".attn.masked_bias"], // the causal mask, and its fill value
    old_ends: &[],
    copies,
    twin: |_| None,
};

/// Keys that determine sizes and architecture, also under the names that all models of
/// `transformers` share. Keys that may be absent have their defaults from there.
#[derive(Deserialize)]
struct Keys {
    #[serde(alias = "num_hidden_layers")]
    n_layer: usize,
    #[serde(alias = "hidden_size")]
    n_embd: usize,
    #[serde(alias = "num_attention_heads")]
    n_head: usize,
    #[serde(alias = "max_position_embeddings")]
    n_positions: usize,
    vocab_size: usize,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
    n_inner: Option<usize>,
    #[serde(default = "gelu")]
    activation_function: String,
    #[serde(default = "epsilon")]
    layer_norm_epsilon: f64,
    #[serde(default = "yes")]
    scale_attn_weights: bool,
    #[serde(default)]
    scale_attn_by_inverse_layer_idx: bool,
    #[serde(default)]
    add_cross_attention: bool,
    #[serde(default = "usual")]
    embd_pdrop: f64,
    #[serde(default = "usual")]
    resid_pdrop: f64,
    #[serde(default = "usual")]
    attn_pdrop: f64,
}

fn gelu() -> String {
    "gelu_new".into()
}

fn epsilon() -> f64 {
    1e-5
}

fn yes() -> bool {
    true
}

fn usual() -> f64 {
    DropoutRates::USUAL
}

/// Returns the model that a `config.json` describes.
///
/// # Errors
/// Refuses, naming the key, a model that is not a GPT-2 as this project computes it.
fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    let keys: Keys = serde_json::from_slice(text)?;
    let gelu = ["gelu_new", "gelu_pytorch_tanh"].contains(&keys.activation_function.as_str());
    let inner = keys.n_inner.is_none_or(|inner| Some(inner) == keys.n_embd.checked_mul(4));
    for (fits, key, found, wanted) in [
        (gelu, "activation_function", json!(keys.activation_function), "\"gelu_new\""),
        (inner, "n_inner", json!(keys.n_inner), "null or 4 n_embd"),
        (
            keys.layer_norm_epsilon == epsilon(),
            "layer_norm_epsilon",
            json!(keys.layer_norm_epsilon),
            "1e-5",
        ),
        (keys.scale_attn_weights, "scale_attn_weights", json!(false), "true"),
        (
            !keys.scale_attn_by_inverse_layer_idx,
            "scale_attn_by_inverse_layer_idx",
            json!(true),
            "false",
        ),
        (!keys.add_cross_attention, "add_cross_attention", json!(true), "false"),
    ] {
        ensure!(fits, "`{key}` is {found}, but the model here is a GPT-2 with {wanted}");
    }
    let config = ModelConfig {
        architecture: Architecture::GPT2,
        layers: keys.n_layer,
        hidden: keys.n_embd,
        heads: keys.n_head,
        context: keys.n_positions,
        vocab: keys.vocab_size,
        tied: keys.tie_word_embeddings,
        llama: None,
        end_of_text: None,
    };
    config.validate()?;
    let dropout = DropoutRates {
        embedding: keys.embd_pdrop,
        residual: keys.resid_pdrop,
        attention: keys.attn_pdrop,
    };
    Ok((config, dropout))
}

/// Returns the `config.json` of a model. It has the ids that begin and end a text only if the
/// vocabulary is GPT-2's.
fn to_json(config: &ModelConfig, dropout: &DropoutRates) -> Value {
    let end = if config.vocab == 50257 { json!(50256) } else { Value::Null };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_embd": config.hidden,
        "n_head": config.heads,
        "n_positions": config.context,
        "n_inner": null,
        "vocab_size": config.vocab,
        "tie_word_embeddings": config.tied,
        "activation_function": gelu(),
        "layer_norm_epsilon": epsilon(),
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "attn_pdrop": dropout.attention,
        "embd_pdrop": dropout.embedding,
        "resid_pdrop": dropout.residual,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "float32",
        "torch_dtype": "float32",
    })
}

/// The only tensor outside of the body.
const HEAD: &str = "lm_head.weight";

/// Returns optional duplicate tensors, and our names of the originals.
fn copies(config: &ModelConfig) -> Vec<(&'static str, &'static str)> {
    if config.tied { vec![(HEAD, "wte.weight")] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use chimera_core::model::Cut;

    use super::*;

    const RATES: DropoutRates = DropoutRates { embedding: 0.0, residual: 0.25, attention: 0.5 };

    fn sizes() -> ModelConfig {
        let architecture = Architecture::GPT2;
        ModelConfig {
            architecture,
            layers: 2,
            hidden: 12,
            heads: 3,
            context: 8,
            vocab: 50,
            tied: false,
            llama: None,
            end_of_text: None,
        }
    }

    /// Returns the refusal of a configuration in which `key` has another value.
    fn refusal(key: &str, value: Value) -> String {
        let mut keys = to_json(&sizes(), &RATES);
        keys[key] = value;
        format!("{:#}", parse(keys.to_string().as_bytes()).unwrap_err())
    }

    #[test]
    fn sizes_may_have_the_names_that_all_models_share() {
        let mut text = to_json(&sizes(), &RATES).to_string();
        for (own, shared) in [
            ("n_layer", "num_hidden_layers"),
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_positions", "max_position_embeddings"),
        ] {
            text = text.replace(&format!("\"{own}\""), &format!("\"{shared}\""));
        }
        assert_eq!(parse(text.as_bytes()).unwrap(), (sizes(), RATES));
    }

    #[test]
    fn what_is_written_reads_back() {
        for tied in [false, true] {
            let config = ModelConfig { tied, ..sizes() };
            assert_eq!(
                parse(to_json(&config, &RATES).to_string().as_bytes()).unwrap(),
                (config, RATES)
            );
        }
    }

    #[test]
    fn another_architecture_is_refused_by_its_key() {
        for (key, value, wanted) in [
            ("activation_function", json!("relu"), "`activation_function` is \"relu\""),
            ("n_inner", json!(47), "`n_inner` is 47"),
            ("layer_norm_epsilon", json!(1e-6), "`layer_norm_epsilon` is 1e-6"),
            ("scale_attn_weights", json!(false), "`scale_attn_weights` is false"),
            ("scale_attn_by_inverse_layer_idx", json!(true), "`scale_attn_by_inverse_layer_idx`"),
            ("add_cross_attention", json!(true), "`add_cross_attention` is true"),
            ("n_head", json!(5), "hidden 12 is not divisible by heads 5"),
            ("n_layer", json!(0), "layers is 0"),
            ("n_embd", json!(u64::MAX), "hidden is"),
            ("vocab_size", json!(-1), "invalid value: integer `-1`"),
            ("n_layer", json!("two"), "invalid type: string \"two\""),
            ("resid_pdrop", json!("none"), "invalid type: string \"none\""),
        ] {
            let refusal = refusal(key, value);
            assert!(refusal.contains(wanted), "{refusal}");
        }
        assert!(parse(b"{}").unwrap_err().to_string().contains("missing field `n_layer`"));
        assert!(parse("[".repeat(1 << 19).as_bytes()).is_err());
    }

    #[test]
    fn rates_that_are_absent_are_the_usual() {
        let mut keys = to_json(&sizes(), &RATES);
        for key in ["attn_pdrop", "embd_pdrop", "resid_pdrop"] {
            keys.as_object_mut().unwrap().remove(key);
        }
        let (_, dropout) = parse(keys.to_string().as_bytes()).unwrap();
        assert_eq!((dropout.one(), RATES.one()), (Some(0.1), None));
    }

    #[test]
    fn every_name_comes_back() {
        let config = ModelConfig { layers: 11, ..sizes() };
        let params =
            config.params(&Cut { blocks: 0..11, first: true, last: true, ..Cut::default() });
        for param in params {
            assert_eq!(FORMAT.own_name(&FORMAT.to_hf(&param.name)), Some(param.name.clone()));
            assert_eq!(FORMAT.own_name(&param.name), Some(param.name.clone()));
        }
        assert_eq!(FORMAT.to_hf("h.10.attn.c_attn.bias"), "transformer.h.10.attn.c_attn.bias");
        assert_eq!(FORMAT.to_hf(HEAD), HEAD);
    }

    #[test]
    fn masks_are_no_weights() {
        assert_eq!(FORMAT.own_name("h.0.attn.bias"), None);
        assert_eq!(FORMAT.own_name("transformer.h.0.attn.masked_bias"), None);
    }
}

//! BERT's `config.json` and names. Matrices have the same layout here and there, `[out, in]`.

use anyhow::{Result, ensure};
use chimera_core::model::{Architecture, ModelConfig};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dropout::DropoutRates;
use super::format::HfFormat;

/// The format of the model in Hugging Face.
pub(super) const FORMAT: HfFormat = HfFormat {
    model_types: &["bert"],
    parse,
    to_json,
    body: "bert.",
    head: "cls.",
    constants: &["embeddings.position_ids"], // 0, 1, 2 and so on
    // Google's own names of a norm's weights.
    old_ends: &[("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")],
    copies,
    twin,
};

/// Keys that determine sizes and architecture. Keys that may be absent have their defaults from `transformers`.
#[derive(Deserialize)]
struct Keys {
    num_hidden_layers: usize,
    hidden_size: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    vocab_size: usize,
    intermediate_size: Option<usize>,
    #[serde(default = "two")]
    type_vocab_size: usize,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default = "epsilon")]
    layer_norm_eps: f64,
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
    #[serde(default)]
    add_cross_attention: bool,
    #[serde(default = "usual")]
    hidden_dropout_prob: f64,
    #[serde(default = "usual")]
    attention_probs_dropout_prob: f64,
}

fn two() -> usize {
    2
}

fn yes() -> bool {
    true
}

fn gelu() -> String {
    "gelu".into()
}

fn epsilon() -> f64 {
    1e-12
}

fn usual() -> f64 {
    DropoutRates::USUAL
}

fn absolute() -> String {
    "absolute".into()
}

/// Returns the model that a `config.json` describes.
///
/// # Errors
/// Refuses, naming the key, a model that is not a BERT as this project computes it.
fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    let keys: Keys = serde_json::from_slice(text)?;
    // If it is absent, `transformers` takes 3072, whatever the other sizes.
    let inner = keys.intermediate_size.unwrap_or(3072);
    for (fits, key, found, wanted) in [
        (
            Some(inner) == keys.hidden_size.checked_mul(4),
            "intermediate_size",
            json!(inner),
            "4 hidden_size",
        ),
        (keys.type_vocab_size == 2, "type_vocab_size", json!(keys.type_vocab_size), "2"),
        (keys.hidden_act == gelu(), "hidden_act", json!(keys.hidden_act), "\"gelu\""),
        (keys.layer_norm_eps == epsilon(), "layer_norm_eps", json!(keys.layer_norm_eps), "1e-12"),
        (
            keys.position_embedding_type == absolute(),
            "position_embedding_type",
            json!(keys.position_embedding_type),
            "\"absolute\"",
        ),
        (!keys.is_decoder, "is_decoder", json!(true), "false"),
        (!keys.add_cross_attention, "add_cross_attention", json!(true), "false"),
    ] {
        ensure!(fits, "`{key}` is {found}, but the model here is a BERT with {wanted}");
    }
    let config = ModelConfig {
        architecture: Architecture::BERT,
        layers: keys.num_hidden_layers,
        hidden: keys.hidden_size,
        heads: keys.num_attention_heads,
        context: keys.max_position_embeddings,
        vocab: keys.vocab_size,
        tied: keys.tie_word_embeddings,
        llama: None,
        end_of_text: None,
    };
    config.validate()?;
    let (hidden, attention) = (keys.hidden_dropout_prob, keys.attention_probs_dropout_prob);
    Ok((config, DropoutRates { embedding: hidden, residual: hidden, attention }))
}

/// Returns the `config.json` of a model. It has the id of padding only if the vocabulary is BERT's.
fn to_json(config: &ModelConfig, dropout: &DropoutRates) -> Value {
    let pad = if config.vocab == 30522 { json!(0) } else { Value::Null };
    json!({
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "intermediate_size": 4 * config.hidden,
        "max_position_embeddings": config.context,
        "vocab_size": config.vocab,
        "type_vocab_size": two(),
        "tie_word_embeddings": config.tied,
        "hidden_act": gelu(),
        "layer_norm_eps": epsilon(),
        "position_embedding_type": absolute(),
        "hidden_dropout_prob": dropout.residual,
        "attention_probs_dropout_prob": dropout.attention,
        "classifier_dropout": null,
        "is_decoder": false,
        "add_cross_attention": false,
        "pad_token_id": pad,
        "dtype": "float32",
        "torch_dtype": "float32",
    })
}

/// The decoder's bias, there and here. If the decoder is not tied, `transformers` keeps both and adds the first.
const BIAS: (&str, &str) = ("cls.predictions.decoder.bias", "cls.predictions.bias");

/// Returns optional duplicate tensors, and our names of the originals.
fn copies(config: &ModelConfig) -> Vec<(&'static str, &'static str)> {
    let decoder = ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight");
    if config.tied { vec![BIAS, decoder] } else { Vec::new() }
}

/// Returns a tensor that is read instead of one of ours if it exists, and written beside it.
fn twin(config: &ModelConfig) -> Option<(&'static str, &'static str)> {
    (!config.tied).then_some(BIAS)
}

#[cfg(test)]
mod tests {
    use chimera_core::model::Cut;

    use super::super::names::parts;
    use super::*;

    const RATES: DropoutRates = DropoutRates { embedding: 0.25, residual: 0.25, attention: 0.5 };

    fn sizes() -> ModelConfig {
        let architecture = Architecture::BERT;
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
            ("intermediate_size", json!(47), "`intermediate_size` is 47"),
            ("intermediate_size", Value::Null, "`intermediate_size` is 3072"),
            ("type_vocab_size", json!(1), "`type_vocab_size` is 1"),
            ("hidden_act", json!("relu"), "`hidden_act` is \"relu\""),
            ("layer_norm_eps", json!(1e-5), "`layer_norm_eps` is 0.00001"),
            ("position_embedding_type", json!("relative_key"), "with \"absolute\""),
            ("is_decoder", json!(true), "`is_decoder` is true"),
            ("add_cross_attention", json!(true), "`add_cross_attention` is true"),
            ("num_attention_heads", json!(5), "hidden 12 is not divisible by heads 5"),
            ("num_hidden_layers", json!(0), "layers is 0"),
            ("hidden_size", json!(u64::MAX), "`intermediate_size` is 48"),
            ("vocab_size", json!(-1), "invalid value: integer `-1`"),
        ] {
            let refusal = refusal(key, value);
            assert!(refusal.contains(wanted), "{refusal}");
        }
        assert!(
            parse(b"{}").unwrap_err().to_string().contains("missing field `num_hidden_layers`")
        );
    }

    #[test]
    fn every_name_comes_back() {
        let config = sizes();
        for param in config.params(&Cut { blocks: 0..2, first: true, last: true, ..Cut::default() })
        {
            for (name, _) in parts(&config, &param) {
                assert_eq!(FORMAT.own_name(&FORMAT.to_hf(&name)), Some(name.clone()));
                assert_eq!(FORMAT.own_name(&name), Some(name));
            }
        }
        assert_eq!(FORMAT.to_hf("pooler.dense.bias"), "bert.pooler.dense.bias");
        assert_eq!(FORMAT.to_hf("cls.predictions.bias"), "cls.predictions.bias");
    }

    #[test]
    fn old_names_are_known() {
        let ours = Some("embeddings.LayerNorm.weight".to_owned());
        assert_eq!(FORMAT.own_name("bert.embeddings.LayerNorm.gamma"), ours);
        let ours = Some("cls.predictions.transform.LayerNorm.bias".to_owned());
        assert_eq!(FORMAT.own_name("cls.predictions.transform.LayerNorm.beta"), ours);
        assert_eq!(FORMAT.own_name("bert.embeddings.position_ids"), None);
    }

    #[test]
    fn queries_keys_and_values_are_rows_of_one_matrix() {
        let params =
            sizes().params(&Cut { blocks: 1..2, first: false, last: false, ..Cut::default() });
        let [query, key, value] = ["query", "key", "value"]
            .map(|part| format!("encoder.layer.1.attention.self.{part}.weight"));
        assert_eq!(parts(&sizes(), &params[0]), [(query, 0..12), (key, 12..24), (value, 24..36)]);
    }
}

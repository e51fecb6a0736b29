//! Llama's, Qwen2's and Mistral's `config.json` and names. Queries, keys and values are one matrix here and three there;
//! gate and up are one here and two there.

use anyhow::{Context, Result, bail, ensure};
use chimera_core::layers::Activation;
use chimera_core::model::{Architecture, Llama, ModelConfig, RopeScaling};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dropout::DropoutRates;
use super::format::HfFormat;
use super::rope::{RopeKeys, rope_to_json, scaling};

/// How Hugging Face writes the model.
pub(super) const FORMAT: HfFormat = HfFormat {
    model_types: &["llama", "qwen2", "mistral"],
    parse,
    to_json,
    from_hf,
    to_hf,
    copies,
    twin: |_| None,
};

/// What decides sizes and architecture; where a key may be absent, its default in `transformers`.
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

/// A key that is there, be it null.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(d).map(Some)
}

fn silu() -> String {
    "silu".into()
}

fn epsilon() -> f64 {
    1e-6
}

/// Base of the rotary frequencies where none is said.
const THETA: f64 = 1e4;

/// The model that a `config.json` describes.
///
/// # Errors
/// What is not a model as this project computes it is refused with the key that says so.
fn parse(text: &[u8]) -> Result<(ModelConfig, DropoutRates)> {
    let keys: Keys = serde_json::from_slice(text)?;
    let (hidden, heads) = (keys.hidden_size, keys.num_attention_heads);
    let is_qwen = keys.model_type == "qwen2";
    let rope = rope(&keys)?;
    // What is said with the frequencies goes before what is said of all.
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

/// What is said of rotary frequencies: as in `transformers`, all of it by `rope_scaling` where that says anything.
fn rope(keys: &Keys) -> Result<Option<RopeKeys>> {
    let said = [("rope_scaling", &keys.rope_scaling), ("rope_parameters", &keys.rope_parameters)];
    let said = said.into_iter().filter_map(|(key, said)| Some((key, said.as_ref()?)));
    let Some((key, said)) = said.into_iter().find(|(_, said)| !said.is_empty()) else {
        return Ok(None);
    };
    let rope = serde_json::from_value(Value::Object(said.clone()));
    rope.map(Some).with_context(|| format!("`{key}`"))
}

/// The names of the functions of a gate.
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
        found.with_context(|| format!("`hidden_act` is {name:?}, but is one of {names}"))?;
    Ok(found.1)
}

/// How many tokens back all layers see.
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
        // `transformers` asks `sliding_window` alone.
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

/// `config.json` of a model: of the first kind that has its biases, its window and its heads.
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
    // `transformers` has no such rates, and drops nothing there.
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

/// What precedes the name of a tensor of the body, in a model with a head.
const BODY: &str = "model.";
/// The only tensor outside of the body.
const HEAD: &str = "lm_head.weight";
/// A constant that older versions saved beside the weights: the rotary frequencies.
const FREQUENCIES: &str = "rotary_emb.inv_freq";

/// Our name of a tensor or of a part of one, or `None` if it is no weight.
fn from_hf(name: &str) -> Option<String> {
    let name = name.strip_prefix(BODY).unwrap_or(name);
    (!name.ends_with(FREQUENCIES)).then(|| name.to_owned())
}

/// The name of a tensor in a model with a head.
fn to_hf(name: &str) -> String {
    if name == HEAD { name.to_owned() } else { format!("{BODY}{name}") }
}

/// Tensors that may be there too, and which of ours they are.
fn copies(config: &ModelConfig) -> Vec<(&'static str, &'static str)> {
    if config.tied { vec![(HEAD, "embed_tokens.weight")] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use chimera_core::model::{Cut, Preset};

    use super::super::names::parts;
    use super::*;

    const RATES: DropoutRates = DropoutRates { embedding: 0.0, residual: 0.0, attention: 0.25 };

    /// Of each kind, and with each scaling.
    fn models() -> Vec<ModelConfig> {
        let plain = Preset::named("llama-tiny").unwrap().config.clone();
        let plain_llama = plain.llama.unwrap();
        let with = |llama| ModelConfig { llama: Some(llama), ..plain.clone() };
        let scaled =
            |text: &str| with(Llama { rope_scaling: text.parse().unwrap(), ..plain_llama });
        let dynamic = scaled("dynamic:factor=2,original=64");
        let mut all: Vec<_> = ["smollm-135m", "qwen2.5-0.5b", "mistral-7b", "llama3-8b"]
            .map(|name| Preset::named(name).unwrap().config.clone())
            .into();
        all.extend([
            with(Llama { qkv_bias: true, window: Some(7), ..plain_llama }),
            with(Llama { activation: Activation::GeluTanh, ..plain_llama }),
            with(Llama { head_dim: Some(32), window: Some(7), ..plain_llama }),
            scaled("linear:factor=2"),
            scaled("llama3:factor=8,original=64,low=1,high=4"),
            scaled("yarn:factor=4,original=32"),
            ModelConfig { context: 128, ..dynamic },
            ModelConfig { hidden: 100, ..with(Llama { head_dim: Some(16), ..plain_llama }) },
        ]);
        all
    }

    /// What a configuration with other keys is read as.
    fn changed(of: &ModelConfig, others: Value) -> Result<(ModelConfig, DropoutRates)> {
        let mut keys = to_json(of, &RATES);
        keys.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
        parse(keys.to_string().as_bytes())
    }

    /// The scaling of a Llama of at most 128 tokens with these keys, and the base.
    fn rope_of(others: Value) -> (String, f64) {
        let llama = &Preset::named("llama-tiny").unwrap().config;
        let mut keys = json!({"max_position_embeddings": 128, "rope_theta": 77.0});
        keys.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
        let llama = changed(llama, keys).unwrap().0.llama.unwrap();
        (llama.rope_scaling.to_string(), llama.rope_theta)
    }

    fn refusal(of: &ModelConfig, key: &str, value: Value) -> String {
        let mut keys = to_json(of, &RATES);
        keys[key] = value;
        format!("{:#}", parse(keys.to_string().as_bytes()).unwrap_err())
    }

    #[test]
    fn what_is_written_reads_back() {
        for config in models() {
            let text = to_json(&config, &RATES).to_string();
            assert_eq!(parse(text.as_bytes()).unwrap(), (config, RATES), "{text}");
        }
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_key() {
        let [llama, qwen] = ["llama-tiny", "qwen2.5-0.5b"].map(|name| Preset::named(name).unwrap());
        let layers = json!(vec!["sliding_attention", "full_attention"]);
        for (of, key, value, wanted) in [
            (llama, "hidden_act", json!("relu"), "`hidden_act` is \"relu\""),
            (llama, "attention_bias", json!(true), "`attention_bias` is true"),
            (llama, "mlp_bias", json!(true), "`mlp_bias` is true"),
            (llama, "head_dim", json!(0), "head-dim is 0"),
            (llama, "head_dim", json!(15), "heads of 15 features have no pairs to turn"),
            (llama, "num_key_value_heads", json!(4), "heads 6 is not divisible by kv-heads 4"),
            (llama, "num_key_value_heads", json!(0), "kv-heads is 0"),
            (llama, "intermediate_size", json!(0), "mlp-hidden is 0"),
            (llama, "rms_norm_eps", json!(-1.0), "norm-eps is -1"),
            (llama, "num_hidden_layers", json!("two"), "invalid type: string \"two\""),
            (llama, "num_attention_heads", json!(32), "no pairs to turn"),
            (llama, "rope_scaling", json!({"rope_type": "longrope"}), "\"longrope\""),
            (llama, "rope_scaling", json!({"type": "linear"}), "lacks `factor`"),
            (
                llama,
                "rope_scaling",
                json!({"rope_typ": "linear", "factor": 4}),
                "has a `factor`, but its `rope_type` is missing",
            ),
            (
                llama,
                "rope_scaling",
                json!({"rope_type": "default", "factor": 4}),
                "has a `factor`, but its `rope_type` is \"default\"",
            ),
            (
                llama,
                "rope_parameters",
                json!({"full_attention": {"rope_type": "linear", "factor": 4}}),
                "`rope_scaling` has the object `full_attention`",
            ),
            (llama, "rope_scaling", json!({"type": "linear", "factor": 0}), "`factor` of rope"),
            (llama, "rope_scaling", json!({"type": "yarn", "truncate": false}), "`truncate`"),
            (llama, "partial_rotary_factor", json!(0.5), "`partial_rotary_factor` is 0.5"),
            (
                llama,
                "rope_parameters",
                json!({"partial_rotary_factor": 0.25}),
                "`partial_rotary_factor` is 0.25",
            ),
            (llama, "rope_scaling", json!({"factor": "two"}), "`rope_scaling`: invalid type"),
            (qwen, "layer_types", json!(["chunked"]), "`layer_types` has \"chunked\""),
        ] {
            let refusal = refusal(&of.config, key, value);
            assert!(refusal.contains(wanted), "{refusal}");
        }
        let mixed = &models()[4];
        let found = refusal(mixed, "max_window_layers", json!(3));
        assert!(found.contains("`max_window_layers` gives 5 of 8 layers"), "{found}");
        let found = refusal(mixed, "layer_types", layers);
        assert!(found.contains("`layer_types` gives 1 of 8 layers"), "{found}");
        assert!(parse(b"{}").unwrap_err().to_string().contains("missing field `model_type`"));
        assert!(parse("[".repeat(1 << 19).as_bytes()).is_err());
    }

    #[test]
    fn the_older_key_says_all_of_the_frequencies() {
        let linear = json!({"rope_type": "linear", "factor": 2});
        let other = json!({"rope_type": "default", "rope_theta": 5e5});
        for nothing in [Value::Null, json!({})] {
            let keys = json!({"rope_scaling": nothing, "rope_parameters": other});
            assert_eq!(rope_of(keys), ("none".into(), 5e5));
        }
        let both = json!({"rope_scaling": linear, "rope_parameters": other});
        assert_eq!(rope_of(both), ("linear:factor=2".into(), 77.0));
    }

    #[test]
    fn the_length_before_is_said_beside_the_scaling_or_is_the_longest() {
        let yarn = |more: Value| {
            let mut keys = json!({"rope_type": "yarn", "factor": 2, "attention_factor": 1});
            keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            keys
        };
        let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
        let within = yarn(json!({"original_max_position_embeddings": 16}));
        let beside =
            |rope: &Value| json!({"rope_scaling": rope, "original_max_position_embeddings": 32});
        let of_yarn = |factor: u32, original: u32| {
            format!("yarn:factor={factor},original={original},fast=32,slow=1,attention=1")
        };
        assert_eq!(rope_of(json!({"rope_scaling": within})).0, of_yarn(2, 16));
        assert_eq!(rope_of(beside(&within)).0, of_yarn(2, 32));
        assert_eq!(rope_of(json!({"rope_scaling": yarn(json!({}))})).0, of_yarn(2, 128));
        let ratio = yarn(json!({"factor": null, "beta_fast": 0, "beta_slow": 0}));
        assert_eq!(rope_of(beside(&ratio)).0, of_yarn(4, 32));
        let of_llama3 = |original: u32| format!("llama3:factor=8,original={original},low=1,high=4");
        assert_eq!(rope_of(json!({"rope_scaling": llama3})).0, of_llama3(128));
        assert_eq!(rope_of(beside(&llama3)).0, of_llama3(32));
    }

    #[test]
    fn both_scales_of_yarn_say_its_attention() {
        let attention = |above: f64, below: f64| {
            let yarn =
                json!({"type": "yarn", "factor": 4, "mscale": above, "mscale_all_dim": below});
            let (scaling, _) = rope_of(json!({"rope_scaling": yarn}));
            scaling.rsplit_once('=').unwrap().1.parse::<f64>().unwrap()
        };
        let usual = RopeScaling::yarn_attention(4.0);
        assert_eq!([attention(0.0, 0.0), attention(1.0, 0.0)], [usual; 2]);
        assert_eq!(attention(0.7, 0.7), 1.0);
        let scale = |weight: f64| 0.1 * weight * 4f64.ln() + 1.0;
        assert!((attention(2.0, 0.5) - scale(2.0) / scale(0.5)).abs() < 1e-12);
    }

    #[test]
    fn keys_of_no_value_have_their_defaults() {
        let llama = &Preset::named("llama-tiny").unwrap().config;
        let keys = ["attention_dropout", "tie_word_embeddings", "attention_bias", "mlp_bias"];
        let nulls: Map<_, _> = keys.map(|key| (key.to_owned(), Value::Null)).into_iter().collect();
        let (config, dropout) = changed(llama, Value::Object(nulls)).unwrap();
        assert_eq!((config.tied, dropout), (false, DropoutRates::all(0.0)));
    }

    #[test]
    fn one_rate_of_dropout_comes_back() {
        let llama = &Preset::named("llama-tiny").unwrap().config;
        let text = to_json(llama, &DropoutRates::all(0.125)).to_string();
        assert_eq!(parse(text.as_bytes()).unwrap().1.one(), Some(0.125));
        assert_eq!(to_json(llama, &RATES).get("resid_pdrop"), None);
    }

    #[test]
    fn all_layers_of_a_mistral_have_its_window() {
        let mistral = &models()[5];
        let types = |kind: &str, window: Value| {
            let keys = json!({"model_type": "mistral", "layer_types": vec![kind; 8], "sliding_window": window});
            let config = changed(mistral, keys).map_err(|refusal| format!("{refusal:#}"))?.0;
            Ok::<_, String>(config.llama.unwrap().window)
        };
        assert_eq!(types("sliding_attention", json!(7)), Ok(Some(7)));
        assert_eq!(types("full_attention", Value::Null), Ok(None));
        let refusal = types("full_attention", json!(7)).unwrap_err();
        assert!(
            refusal.contains("`layer_types` has \"full_attention\", but `sliding_window` is 7")
        );
        let refusal = types("sliding_attention", Value::Null).unwrap_err();
        assert!(refusal.contains("but `sliding_window` is null"), "{refusal}");
    }

    /// `transformers` refuses a llama whose heads do not divide its features, and nothing of a mistral.
    #[test]
    fn heads_that_do_not_divide_the_features_are_of_a_mistral() {
        let models = models();
        let keys = to_json(models.last().unwrap(), &RATES);
        assert_eq!(
            (&keys["model_type"], &keys["sliding_window"]),
            (&json!("mistral"), &Value::Null)
        );
    }

    /// As the files of the models have them.
    #[test]
    fn keys_of_published_models_are_read() {
        let read = |text: &str| parse(text.as_bytes()).unwrap().0;
        let smol = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
            "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.02,
            "intermediate_size": 1536, "max_position_embeddings": 2048, "model_type": "llama",
            "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
            "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": true,
            "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49152}"#;
        assert_eq!(read(smol), Preset::named("smollm-135m").unwrap().config);
        let qwen = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
            "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
            "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
            "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}"#;
        assert_eq!(read(qwen), Preset::named("qwen2.5-0.5b").unwrap().config);
        let llama = r#"{"hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
            "vocab_size": 128256}"#;
        let with_dim =
            |dim| read(&llama.replace("128256", &format!("128256, \"head_dim\": {dim}")));
        assert_eq!([64, 128].map(|dim| with_dim(dim).llama.unwrap().head_dim), [Some(64), None]);
        let Llama { rope_scaling, rope_theta, .. } = read(llama).llama.unwrap();
        assert_eq!(rope_theta, 5e5);
        assert_eq!(rope_scaling.to_string(), "llama3:factor=8,original=8192,low=1,high=4");
        let five =
            llama.replace("\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 3.0, ");
        assert_eq!(read(&five).llama.unwrap().rope_theta, 3.0);
    }

    #[test]
    fn every_name_comes_back() {
        let qwen = &models()[4];
        for param in qwen.params(&Cut::whole(qwen)) {
            for (name, _) in parts(qwen, &param) {
                assert_eq!(from_hf(&to_hf(&name)), Some(name.clone()));
                assert_eq!(from_hf(&name), Some(name.clone()));
            }
        }
        let block = qwen.params(&Cut { blocks: 1..2, first: false, last: false, ..Cut::default() });
        let names = |n: usize| parts(qwen, &block[n]);
        let [q, k, v] = ["q", "k", "v"].map(|x| format!("layers.1.self_attn.{x}_proj.weight"));
        assert_eq!(names(1), [(q, 0..96), (k, 96..128), (v, 128..160)]);
        let [gate, up] = ["gate", "up"].map(|x| format!("layers.1.mlp.{x}_proj.weight"));
        assert_eq!(names(5), [(gate, 0..256), (up, 256..512)]);
        assert_eq!(to_hf("layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight");
        assert_eq!(to_hf(HEAD), HEAD);
        for constant in ["layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"] {
            assert_eq!(from_hf(&format!("model.{constant}")), None);
        }
    }
}

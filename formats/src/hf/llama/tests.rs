use chimera_core::model::{Cut, Preset};

use super::super::names::parts;
use super::*;

const RATES: DropoutRates = DropoutRates { embedding: 0.0, residual: 0.0, attention: 0.25 };

/// Returns models of each kind, and with each scaling.
fn models() -> Vec<ModelConfig> {
    let plain = Preset::named("llama-tiny").unwrap().config.clone();
    let plain_llama = plain.llama.unwrap();
    let with = |llama| ModelConfig { llama: Some(llama), ..plain.clone() };
    let scaled = |text: &str| with(Llama { rope_scaling: text.parse().unwrap(), ..plain_llama });
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

/// Parses a configuration in which other keys replace its own.
fn changed(of: &ModelConfig, others: Value) -> Result<(ModelConfig, DropoutRates)> {
    let mut keys = to_json(of, &RATES);
    keys.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    parse(keys.to_string().as_bytes())
}

/// Returns the scaling of a Llama of at most 128 tokens with these keys, and the base.
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
        (llama, "head_dim", json!(15), "heads of 15 features have no pairs to rotate"),
        (llama, "num_key_value_heads", json!(4), "heads 6 is not divisible by kv-heads 4"),
        (llama, "num_key_value_heads", json!(0), "kv-heads is 0"),
        (llama, "intermediate_size", json!(0), "mlp-hidden is 0"),
        (llama, "rms_norm_eps", json!(-1.0), "norm-eps is -1"),
        (llama, "num_hidden_layers", json!("two"), "invalid type: string \"two\""),
        (llama, "num_attention_heads", json!(32), "no pairs to rotate"),
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
    let llama3 =
        json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
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
        let yarn = json!({"type": "yarn", "factor": 4, "mscale": above, "mscale_all_dim": below});
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
    assert!(refusal.contains("`layer_types` has \"full_attention\", but `sliding_window` is 7"));
    let refusal = types("sliding_attention", Value::Null).unwrap_err();
    assert!(refusal.contains("but `sliding_window` is null"), "{refusal}");
}

/// `transformers` refuses a llama whose heads do not divide its features, but accepts a mistral.
#[test]
fn heads_that_do_not_divide_the_features_are_of_a_mistral() {
    let models = models();
    let keys = to_json(models.last().unwrap(), &RATES);
    assert_eq!((&keys["model_type"], &keys["sliding_window"]), (&json!("mistral"), &Value::Null));
}

/// These are the files of the published models.
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
    let with_dim = |dim| read(&llama.replace("128256", &format!("128256, \"head_dim\": {dim}")));
    assert_eq!([64, 128].map(|dim| with_dim(dim).llama.unwrap().head_dim), [Some(64), None]);
    let Llama { rope_scaling, rope_theta, .. } = read(llama).llama.unwrap();
    assert_eq!(rope_theta, 5e5);
    assert_eq!(rope_scaling.to_string(), "llama3:factor=8,original=8192,low=1,high=4");
    let five = llama.replace("\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 3.0, ");
    assert_eq!(read(&five).llama.unwrap().rope_theta, 3.0);
}

#[test]
fn every_name_comes_back() {
    let qwen = &models()[4];
    for param in qwen.params(&Cut::whole(qwen)) {
        for (name, _) in parts(qwen, &param) {
            assert_eq!(FORMAT.own_name(&FORMAT.to_hf(&name)), Some(name.clone()));
            assert_eq!(FORMAT.own_name(&name), Some(name.clone()));
        }
    }
    let block = qwen.params(&Cut { blocks: 1..2, first: false, last: false, ..Cut::default() });
    let names = |n: usize| parts(qwen, &block[n]);
    let [q, k, v] = ["q", "k", "v"].map(|x| format!("layers.1.self_attn.{x}_proj.weight"));
    assert_eq!(names(1), [(q, 0..96), (k, 96..128), (v, 128..160)]);
    let [gate, up] = ["gate", "up"].map(|x| format!("layers.1.mlp.{x}_proj.weight"));
    assert_eq!(names(5), [(gate, 0..256), (up, 256..512)]);
    assert_eq!(FORMAT.to_hf("layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight");
    assert_eq!(FORMAT.to_hf(HEAD), HEAD);
    for constant in ["layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"] {
        assert_eq!(FORMAT.own_name(&format!("model.{constant}")), None);
    }
}

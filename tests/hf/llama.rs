//! Llama, Qwen2 and Mistral from Hugging Face. `cargo xtask transformers --write` makes the models
//! of `fixtures/llama`.

use std::path::{Path, PathBuf};

use chimera::candle::Candle;
use chimera::core::layers::Activation;
use chimera::core::model::{Architecture, Llama, ModelConfig};
use chimera::formats::hf::read;
use chimera::formats::save::save;
use chimera::run::evaluate::{CausalLm, Sampling};

use super::{Expected, expected_in};
use crate::command::{chimera, folder};

/// All kinds of folders: f32 with a tied head, f16 without shared keys, bf16 in shards; Qwen2 with
/// and without a window; Mistral; each scaling of frequencies; and heads of a size of their own.
const KINDS: [&str; 10] = [
    "tied",
    "f16",
    "bf16-sharded",
    "qwen2",
    "qwen2-window",
    "mistral",
    "linear",
    "yarn",
    "llama3",
    "head-dim",
];

fn fixture(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama").join(kind)
}

fn config(kind: &str) -> ModelConfig {
    let theta = if ["qwen2", "linear", "yarn", "llama3"].contains(&kind) { 100.0 } else { 1e4 };
    let scaling = match kind {
        "linear" => "linear:factor=2",
        "yarn" => "yarn:factor=4,original=6,fast=2",
        "llama3" => "llama3:factor=8,original=12,low=1,high=4",
        _ => "none",
    };
    let llama = Llama {
        kv_heads: if kind == "f16" { 4 } else { 2 },
        head_dim: (kind == "head-dim").then_some(6),
        mlp_hidden: 12,
        activation: match kind {
            "bf16-sharded" => Activation::GeluTanh,
            _ => Activation::Silu,
        },
        norm_epsilon: 1e-6,
        qkv_bias: kind.starts_with("qwen2"),
        window: [("qwen2-window", 5), ("mistral", 3)]
            .into_iter()
            .find(|w| w.0 == kind)
            .map(|w| w.1),
        rope_theta: theta,
        rope_scaling: scaling.parse().expect("a scaling"),
    };
    ModelConfig {
        architecture: Architecture::LLAMA,
        layers: 2,
        hidden: 8,
        heads: 4,
        context: 16,
        vocab: 20,
        tied: ["tied", "qwen2"].contains(&kind),
        llama: Some(llama),
        end_of_text: None,
    }
}

#[test]
fn logits_are_those_of_transformers() {
    for kind in KINDS {
        let Expected { ids, logits } = expected_in(&fixture(kind));
        let llama = read(&fixture(kind)).expect(kind);
        assert_eq!(llama.config, config(kind));
        let model = CausalLm::new(Candle::cpu(), &llama.config, &llama.weights).expect("a model");
        let ours = model.logits(&ids, ids.len()).expect("logits");
        assert_eq!(ours.len(), ids.len() * 20);
        let differences = ours.iter().zip(&logits).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        assert!(largest < 1e-4, "{kind}: logits differ by {largest:e}");
        assert!(logits.iter().any(|logit| logit.abs() > 1.0), "{kind}: all logits are small");
    }
}

#[test]
fn a_round_trip_gives_the_same_bytes() {
    let folder = folder();
    for kind in KINDS {
        let llama = read(&fixture(kind)).expect(kind);
        let at = folder.path().join(kind);
        let path =
            save(&at, &llama.config, &llama.dropout, &llama.ids, &llama.weights).expect("saved");
        assert_eq!(read(&at).expect("what was saved"), llama, "{kind}");
        if kind == "tied" {
            let bytes = |path: &Path| std::fs::read(path).expect("a file");
            let theirs = bytes(&fixture(kind).join("model.safetensors"));
            assert!(bytes(&path) == theirs, "transformers writes other bytes");
        }
    }
}

/// The KV cache changes no token, within the window and beyond.
#[test]
fn tokens_are_those_of_a_pass_over_all_before() {
    let gpt2 = super::fixture("tied");
    for folder in KINDS.map(fixture).into_iter().chain([gpt2]) {
        let read = read(&folder).expect("a fixture");
        let model = CausalLm::new(Candle::cpu(), &read.config, &read.weights).expect("a model");
        for window in [16, 7] {
            let how = Sampling { temperature: 0.0, window: Some(window), ..Sampling::default() };
            let mut expected = vec![3, 1, 4];
            for _ in 0..20 {
                let seen = &expected[expected.len().saturating_sub(window)..];
                let logits = model.logits(seen, 1).expect("logits");
                let ids = 0..logits.len();
                let likeliest = ids.max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
                expected.push(likeliest.expect("some ids") as u32);
            }
            let ids = model.sample(&[3, 1, 4], 20, &how, |_| Ok(true)).expect("a text");
            assert_eq!(ids, expected, "{} in a window of {window}", folder.display());
        }
    }
}

/// Texts that are generated side by side, by a model cut into stages, equal those of the whole
/// model one by one: with unequal lengths, within the window and beyond, and if one ends before the
/// others.
#[test]
fn texts_side_by_side_and_stages_change_no_token() {
    let gpt2 = super::fixture("tied");
    for folder in KINDS.map(fixture).into_iter().chain([gpt2]) {
        let read = read(&folder).expect("a fixture");
        let on = |n_stages| {
            let devices = vec![Candle::cpu(); n_stages];
            CausalLm::over(&devices, &read.config, &read.weights).expect("a model")
        };
        let (whole, how) = (on(1), Sampling { temperature: 0.0, ..Sampling::default() });
        let prompts: [&[u32]; 3] = [&[3, 1, 4], &[1, 5, 9, 2, 6, 5], &[7]];
        // The second text ends after five tokens.
        let count = |place| if place == 1 { 5 } else { 20 };
        let alone = prompts.iter().enumerate().map(|(place, prompt)| {
            whole.sample(prompt, count(place), &how, |_| Ok(true)).expect("a text")
        });
        let alone: Vec<_> = alone.collect();
        for n_stages in 1..=read.config.layers {
            let mut n_drawn = [0; 3];
            let texts = on(n_stages).sample_all(&prompts, 20, &how, |place, _| {
                n_drawn[place] += 1;
                Ok(n_drawn[place] < count(place))
            });
            assert_eq!(texts.expect("texts"), alone, "{} in {n_stages}", folder.display());
        }
        let drawn = Sampling { seed: 5, ..Sampling::default() };
        let twice = whole.sample_all(&[&[3, 1], &[3, 1]], 12, &drawn, |_, _| Ok(true));
        let twice = twice.expect("texts");
        assert_ne!(twice[0], twice[1], "each text has draws of its own");
        assert_eq!(twice[0], whole.sample(&[3, 1], 12, &drawn, |_| Ok(true)).expect("a text"));
    }
}

/// Training starts from a Hugging Face model. The saved model can be trained further and generates
/// text.
#[test]
fn a_model_is_trained_on_and_continued() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (data, run, again) = (at("ids.u32.bin"), at("run"), at("again"));
    let ids: Vec<u8> = (0..4000u32).flat_map(|i| (i * i % 20).to_le_bytes()).collect();
    std::fs::write(&data, ids).expect("a file");
    let train = |init: &str, out: &str| {
        let options = "--schedule 1f1b --depth 2 --steps 2 --threads 1 --save-every 1";
        let ran = chimera(&format!("train --init {init} --data {data} --out {out} {options}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    for kind in ["qwen2-window", "mistral", "llama3", "head-dim"] {
        let [run, again] = [&run, &again].map(|out| format!("{out}-{kind}"));
        train(&fixture(kind).display().to_string(), &run);
        train(&format!("{run}/model"), &again);
        let generated = |model: &str| {
            let ran = chimera(&format!(
                "generate --model {model} --prompt 3,1,4 --tokenizer ids --tokens 20 --temperature 0 --json"
            ));
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
            ran.stdout
        };
        let checkpoint = format!("{again}/checkpoints/step-00000002");
        assert_eq!(generated(&checkpoint), generated(&format!("{again}/model")));
    }
}

/// Rotary positions exist for every token, so a text may be longer than the context of the model.
#[test]
fn a_longer_context_needs_no_other_weights() {
    let folder = folder();
    let place = folder.path().display();
    let data = format!("{place}/ids.u32.bin");
    let ids: Vec<u8> = (0..2000u32).flat_map(|i| (i * i % 20).to_le_bytes()).collect();
    std::fs::write(&data, ids).expect("a file");
    let json = |line: &str| {
        let ran = chimera(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        serde_json::from_str::<serde_json::Value>(&ran.stdout).expect("JSON")
    };
    for kind in ["yarn", "linear", "mistral"] {
        let dir = fixture(kind);
        let mut read = read(&dir).expect(kind);
        read.config.context = 40;
        let model = CausalLm::new(Candle::cpu(), &read.config, &read.weights).expect("a model");
        let how = Sampling { temperature: 0.0, ..Sampling::default() };
        let wanted = model.sample(&[3, 1], 30, &how, |_| Ok(true)).expect("a text");
        let dir = dir.display();
        let generate = "--context 40 --prompt 3,1 --tokens 30 --temperature 0 --ignore-end";
        let ran = json(&format!("generate --json --model {dir} {generate}"));
        assert_eq!(ran["ids"], serde_json::json!(wanted[2..]), "{kind}");
        let eval = json(&format!("eval --json --model {dir} --data {data} --context 40"));
        assert_eq!(eval["context"], 40);
    }
    let yarn = fixture("yarn");
    let train = format!("train --init {} --data {data} --context 32 --depth 1", yarn.display());
    let ran =
        chimera(&format!("{train} --steps 1 --threads 1 --save {place}/model --out {place}/run"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let longer = read(&folder.path().join("model")).expect("a model").config;
    assert_eq!(longer, ModelConfig { context: 32, ..config("yarn") });

    let gpt2 = super::fixture("tied");
    for (line, hint) in [
        (format!("eval --data {data} --context 17"), "choose 1 to the model's context of 16"),
        ("generate --prompt 3 --context 17".into(), "has positions for 16"),
    ] {
        let ran = chimera(&format!("{line} --model {}", gpt2.display()));
        assert_eq!(ran.code, Some(2), "{line}");
        assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    }
}

//! GPT-2 from Hugging Face: imported models compute what `transformers` computes, exported files
//! are its own, and hostile folders are refused. `cargo xtask transformers --write` makes the
//! models of `fixtures/gpt2`.

#[path = "hf/bert.rs"]
mod bert;
#[path = "hf/commands.rs"]
mod commands;
#[path = "hf/hostile.rs"]
mod hostile;
#[cfg(feature = "hub")]
#[path = "hf/hub.rs"]
mod hub;
#[cfg(feature = "hub")]
#[path = "hf/hub_server.rs"]
mod hub_server;
#[path = "hf/links.rs"]
mod links;
#[path = "hf/llama.rs"]
mod llama;
#[path = "hf/train.rs"]
mod train;

mod command;

use std::path::{Path, PathBuf};

use chimera::candle::Candle;
use chimera::core::model::{Architecture, ModelConfig};
use chimera::formats::hf::{Pretrained, read};
use chimera::formats::save::save;
use chimera::run::evaluate::CausalLm;
use serde::Deserialize;

use command::folder;

/// All kinds of folders: f32 with a tied head, as saved today; f16; bf16 with an untied head, in
/// shards; a body without head and prefix, as OpenAI's own.
const KINDS: [&str; 4] = ["tied", "f16", "bf16-sharded", "without-prefix"];

/// The output of `transformers` for a model.
#[derive(Deserialize)]
struct Expected {
    ids: Vec<u32>,
    /// `[ids, vocab]`; for a BERT one more number, of the second segment.
    logits: Vec<f32>,
}

fn fixture(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2").join(kind)
}

fn expected(kind: &str) -> Expected {
    expected_in(&fixture(kind))
}

fn expected_in(folder: &Path) -> Expected {
    let text = std::fs::read(folder.join("expected.json")).expect("a fixture");
    serde_json::from_slice(&text).expect("a fixture")
}

fn model(gpt2: &Pretrained) -> CausalLm<Candle> {
    CausalLm::new(Candle::cpu(), &gpt2.config, &gpt2.weights).expect("a model")
}

#[test]
fn logits_are_those_of_transformers() {
    for kind in KINDS {
        let Expected { ids, logits } = expected(kind);
        let gpt2 = read(&fixture(kind)).expect(kind);
        let tied = kind != "bf16-sharded";
        let sizes = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 2,
            hidden: 8,
            heads: 2,
            context: 16,
            vocab: 20,
            tied,
            llama: None,
            end_of_text: None,
        };
        assert_eq!(gpt2.config, sizes);
        let ours = model(&gpt2).logits(&ids, ids.len()).expect("logits");
        assert_eq!(ours.len(), ids.len() * 20);
        let differences = ours.iter().zip(&logits).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        assert!(largest < 1e-4, "{kind}: logits differ by {largest:e}");
        assert!(logits.iter().any(|logit| logit.abs() > 1.0), "{kind}: all logits are small");
    }
}

#[test]
fn the_last_rows_are_those_of_all() {
    let Expected { ids, .. } = expected("tied");
    let model = model(&read(&fixture("tied")).expect("a model"));
    let all = model.logits(&ids, ids.len()).expect("logits");
    let last = model.logits(&ids, 3).expect("logits");
    assert_eq!(last, all[all.len() - 3 * 20..]);
}

#[test]
fn a_round_trip_gives_the_same_bytes() {
    let folder = folder();
    for kind in KINDS {
        let once = folder.path().join(format!("{kind}-once"));
        let twice = folder.path().join(format!("{kind}-twice"));
        let gpt2 = read(&fixture(kind)).expect(kind);
        let first =
            save(&once, &gpt2.config, &gpt2.dropout, &gpt2.ids, &gpt2.weights).expect("saved");
        let again = read(&once).expect("what was saved");
        assert_eq!(again, gpt2);
        let second =
            save(&twice, &again.config, &again.dropout, &again.ids, &again.weights).expect("saved");
        let bytes = |path: &Path| std::fs::read(path).expect("a file");
        assert!(bytes(&first) == bytes(&second), "{kind}");
        if kind == "tied" {
            let theirs = bytes(&fixture(kind).join("model.safetensors"));
            assert!(bytes(&first) == theirs, "transformers writes other bytes");
        }
    }
}

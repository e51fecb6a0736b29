//! BERT of Hugging Face. The models of `fixtures/bert` come from `cargo xtask transformers --write`.

use std::path::{Path, PathBuf};

use chimera::candle::Candle;
use chimera::core::model::{Architecture, ModelConfig};
use chimera::evaluate::{Bert, Model};
use chimera::hf::read;
use chimera::save::save;

use super::{Expected, expected_in};
use crate::command::{chimera, folder};

/// Every kind of folder: f32 with a tied decoder, as saved today; f16; bf16 with an untied decoder, in shards; and
/// with the names of early files.
const KINDS: [&str; 4] = ["tied", "f16", "bf16-sharded", "old-names"];

fn fixture(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert").join(kind)
}

#[test]
fn both_heads_are_those_of_transformers() {
    for kind in KINDS {
        let Expected { ids, logits } = expected_in(&fixture(kind));
        let bert = read(&fixture(kind)).expect(kind);
        let sizes = ModelConfig {
            architecture: Architecture::Bert,
            layers: 2,
            hidden: 8,
            heads: 2,
            context: 16,
            vocab: 20,
            tied: kind != "bf16-sharded",
        };
        assert_eq!(bert.config, sizes);
        let model = Bert::new(Candle::cpu(), &bert.config, &bert.weights).expect("a model");
        let second = ids.len() / 2;
        let mut ours = model.logits(&ids, second).expect("logits");
        ours.push(model.strangeness(&ids, second).expect("odds") as f32);
        assert_eq!(ours.len(), ids.len() * 20 + 1);
        assert_eq!(ours.len(), logits.len());
        let differences = ours.iter().zip(&logits).map(|(a, b)| (a - b).abs());
        let largest = differences.fold(0.0, f32::max);
        assert!(largest < 1e-4, "{kind}: logits differ by {largest:e}");
        assert!(logits.iter().any(|logit| logit.abs() > 1.0), "{kind}: all logits are small");
        let refusal =
            Model::new(Candle::cpu(), &bert.config, &bert.weights).err().expect("refused");
        assert!(refusal.to_string().contains("predicts masked tokens"), "{refusal}");
    }
}

#[test]
fn a_round_trip_gives_the_same_bytes() {
    let folder = folder();
    for kind in KINDS {
        let once = folder.path().join(format!("{kind}-once"));
        let twice = folder.path().join(format!("{kind}-twice"));
        let bert = read(&fixture(kind)).expect(kind);
        let first = save(&once, &bert.config, &bert.weights).expect("saved");
        let again = read(&once).expect("what was saved");
        assert_eq!(again, bert);
        let second = save(&twice, &again.config, &again.weights).expect("saved");
        let bytes = |path: &Path| std::fs::read(path).expect("a file");
        assert!(bytes(&first) == bytes(&second), "{kind}");
        if kind == "tied" {
            let theirs = bytes(&fixture(kind).join("model.safetensors"));
            assert!(bytes(&first) == theirs, "transformers writes other bytes");
        }
    }
}

#[test]
fn the_command_exports_and_refuses_to_generate() {
    let folder = folder();
    let (model, out) = (fixture("old-names"), folder.path().join("out"));
    let ran = chimera(&format!("export {} --out {}", model.display(), out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read(&out).expect("exported"), read(&model).expect("a model"));
    let ran = chimera(&format!("generate --model {} --prompt 1", model.display()));
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("the model is a BERT, which predicts masked tokens"),
        "{}",
        ran.stderr
    );
}

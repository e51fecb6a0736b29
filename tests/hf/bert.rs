//! BERT from Hugging Face. `cargo xtask transformers --write` makes the models of `fixtures/bert`.

use std::path::{Path, PathBuf};

use chimera::candle::Candle;
use chimera::core::model::{Architecture, ModelConfig};
use chimera::formats::hf::read;
use chimera::formats::save::save;
use chimera::run::evaluate::{Bert, CausalLm};

use serde_json::Value;

use super::{Expected, expected_in};
use crate::command::{chimera, folder};

/// All kinds of folders: f32 with a tied decoder, as saved today; f16; bf16 with an untied decoder,
/// in shards; and with the names of early files.
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
            architecture: Architecture::BERT,
            layers: 2,
            hidden: 8,
            heads: 2,
            context: 16,
            vocab: 20,
            tied: kind != "bf16-sharded",
            llama: None,
            end_of_text: None,
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
            CausalLm::new(Candle::cpu(), &bert.config, &bert.weights).err().expect("refused");
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
        let first =
            save(&once, &bert.config, &bert.dropout, &bert.ids, &bert.weights).expect("saved");
        let again = read(&once).expect("what was saved");
        assert_eq!(again, bert);
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

#[test]
fn the_command_exports_and_refuses_to_generate() {
    let folder = folder();
    let (model, out) = (fixture("old-names"), folder.path().join("out"));
    let ran = chimera(&format!("export {} --out {}", model.display(), out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read(&out).expect("exported"), read(&model).expect("a model"));
    let ran = chimera(&format!("generate --model {} --prompt And", model.display()));
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("the model is a BERT, which predicts masked tokens"),
        "{}",
        ran.stderr
    );
}

/// In a file without a description, the last four ids are special tokens.
#[test]
fn the_command_evaluates_guesses() {
    let folder = folder();
    let (model, data) = (fixture("tied"), folder.path().join("ids.bin"));
    let write = |n: u16| {
        let ids = (0..n).flat_map(|i| (i % 16 * i % 16).to_le_bytes());
        std::fs::write(&data, ids.collect::<Vec<u8>>()).expect("written");
    };
    let eval = |options: &str| {
        chimera(&format!("eval --model {} --data {} {options}", model.display(), data.display()))
    };
    write(400);
    let ran = eval("--json");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    // 30 windows of 16 - 3 tokens, of which two are masked.
    assert_eq!((report["pairs"].as_u64(), report["masked"].as_u64()), (Some(30), Some(60)));
    let number = |key: &str| report[key].as_f64().expect("a number");
    assert!(number("masked_loss") > 1.0 && number("pair_loss") > 0.3, "{report}");
    assert!((0.0..=1.0).contains(&number("pairs_right")), "{report}");
    assert_eq!(eval("").stdout, eval("").stdout);
    assert_ne!(eval("").stdout, eval("--seed 2").stdout);
    let ran = eval("--stride 3");
    assert!(ran.code == Some(2) && ran.stderr.contains("leave --stride out"));
    write(12);
    let ran = eval("");
    assert!(ran.stderr.contains("the data has 12 tokens, but a sample takes 13"), "{}", ran.stderr);
}

const WORDS: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2,
    "[SEP]": 3, "[MASK]": 4, "pipe": 5, "stage": 6, "worker": 7}}}"#;

/// The special tokens of a `tokenizer.json` are used, and the file is saved with the model.
#[test]
fn a_tokenizer_goes_from_the_data_to_the_model() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("words.json"), WORDS).expect("written");
    std::fs::write(at("text.txt"), "pipe stage worker stage pipe tensor ".repeat(50))
        .expect("written");
    for line in [
        format!(
            "prepare {} --tokenizer {} --out {}",
            at("text.txt"),
            at("words.json"),
            at("data.bin")
        ),
        format!(
            "train --model bert --layers 2 --hidden 8 --heads 2 --context 16 --depth 2 --steps 2 --threads 1 \
             --save-every 2 --data {} --out {} --save {}",
            at("data.bin"),
            at("run"),
            at("model")
        ),
        format!("export {} --out {}", at("model"), at("exported")),
        format!("export {} --out {}", at("run"), at("of-run")),
    ] {
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    }
    assert_eq!(read(Path::new(&at("model"))).expect("a model").config.vocab, 8);
    for name in ["model", "exported", "of-run"] {
        let path = folder.path().join(name).join("tokenizer.json");
        assert_eq!(std::fs::read_to_string(path).expect("a tokenizer"), WORDS);
    }
}

/// Undescribed ids would be masked by ids that are text to the model.
#[test]
fn undescribed_ids_are_no_data_for_a_model_with_other_marks() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("words.json"), WORDS).expect("written");
    std::fs::write(at("text.txt"), "pipe stage worker stage ".repeat(50)).expect("written");
    let model = "train --model bert --layers 2 --hidden 8 --heads 2 --context 16 --depth 2 --steps 1 --vocab 16";
    let (data, saved) = (at("data.bin"), at("model"));
    for line in [
        format!("prepare {} --tokenizer {} --out {data}", at("text.txt"), at("words.json")),
        format!("{model} --data {data} --out {} --save {saved}", at("run")),
    ] {
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    }
    std::fs::remove_file(at("data.bin.json")).expect("removed");
    for line in [
        format!("train --init {saved} --depth 2 --steps 1 --data {data} --out {}", at("tuned")),
        format!("eval --model {saved} --data {data}"),
    ] {
        let ran = chimera(&line);
        let hint = "[12, 13, 14, 15] would be [PAD], [CLS], [SEP] and [MASK], but to the model's tokenizer these are \
                    [0, 2, 3, 4]";
        assert!(ran.code == Some(2) && ran.stderr.contains(hint), "{line}: {}", ran.stderr);
    }
}

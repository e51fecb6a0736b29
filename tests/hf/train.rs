//! Training that starts from a foreign model.

use std::fs::{copy, create_dir, read_to_string, remove_dir_all, write};

use serde_json::Value;
use tempfile::TempDir;

use super::fixture;
use crate::command::{chimera, folder};
use chimera::formats::hf::{DropoutRates, read};

/// Ids within the vocabulary of the fixtures.
pub(super) fn data(folder: &TempDir) -> String {
    let path = folder.path().join("ids.bin");
    let ids = (0..500u32).flat_map(|i| (((i * i + i / 7) % 20) as u16).to_le_bytes());
    write(&path, ids.collect::<Vec<u8>>()).expect("written");
    path.display().to_string()
}

#[test]
fn every_pipeline_begins_with_the_model() {
    let folder = folder();
    let data = data(&folder);
    let losses = |name: &str, options: &str| {
        let out = folder.path().join(name);
        let model = fixture("tied");
        let line = format!(
            "train --init {} --data {data} --out {} --micro-batch-size 1 --threads 1 {options}",
            model.display(),
            out.display()
        );
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        let metrics = read_to_string(out.join("metrics.jsonl")).expect("metrics");
        let loss = |line: &str| {
            let step: Value = serde_json::from_str(line).expect("JSON");
            step["loss"].as_f64().expect("a loss")
        };
        metrics.lines().map(loss).collect::<Vec<f64>>()
    };
    let alone = losses("alone", "--depth 1 --micro-batches 2 --steps 3 --lr 1e-9");
    // The model was not trained on this text; random weights would give ln 20.
    assert!(alone[0] > f64::ln(20.0) + 0.2, "{alone:?}");
    for (name, options) in [
        ("chimera", "--depth 2 --micro-batches 2"),
        ("1f1b", "--depth 2 --micro-batches 2 --schedule 1f1b"),
        ("wide", "--depth 2 --width 2 --micro-batches 1"),
    ] {
        let losses = losses(name, &format!("{options} --steps 3 --lr 1e-9"));
        for (a, b) in losses.iter().zip(&alone) {
            assert!((a - b).abs() < 1e-5, "{name}: {losses:?}, not {alone:?}");
        }
    }
    let trained = losses("trained", "--depth 2 --micro-batches 2 --lr 0.02 --steps 20");
    assert!(trained[19] < alone[0] - 0.25, "{trained:?}");
}

#[test]
fn nothing_is_lost_on_the_way_through_a_run() {
    let folder = folder();
    let saved = folder.path().join("saved");
    let line = format!(
        "train --init {} --data {} --out {} --save {} --steps 1 --depth 2 --lr 0 --micro-batch-size 1 \
         --threads 1",
        fixture("bf16-sharded").display(),
        data(&folder),
        folder.path().join("run").display(),
        saved.display()
    );
    let ran = chimera(&line);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(read(&saved).expect("a model") == read(&fixture("bf16-sharded")).expect("a model"));
}

/// The folder is read only at the start: a checkpoint holds all it needs.
#[test]
fn a_run_goes_on_without_the_model_that_it_began_with() {
    let folder = folder();
    let model = folder.path().join("model");
    create_dir(&model).expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        copy(fixture("tied").join(file), model.join(file)).expect("copied");
    }
    let (out, saved) = (folder.path().join("run"), folder.path().join("saved"));
    let line = format!(
        "train --init {} --data {} --out {} --save {} --depth 2 --micro-batch-size 1 --lr 0.01 --warmup 1 \
         --min-lr 0.01 --threads 1 --save-every 1 --resume auto",
        model.display(),
        data(&folder),
        out.display(),
        saved.display()
    );
    let train = |steps: u32| {
        let ran = chimera(&format!("{line} --steps {steps}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        (read(&saved).expect("a model"), ran.stdout)
    };
    let (_, told) = train(2);
    assert!(told.contains("no finished checkpoint here"), "{told}");
    remove_dir_all(&model).expect("removed");
    let (trained, told) = train(4);
    assert!(told.contains("step 2 is next") && !told.contains("from here on, dropout"), "{told}");
    assert_eq!(trained.dropout, DropoutRates::all(0.1), "that of the model");
    let shown = chimera(&format!("config show {} --json", line.trim_start_matches("train ")));
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    let newest = out.join("checkpoints/step-00000004");
    for key in ["layers", "dropout"] {
        assert_eq!(shown[key]["origin"], format!("checkpoint {}", newest.display()));
    }

    remove_dir_all(&out).expect("removed");
    let ran = chimera(&format!("{line} --steps 4"));
    assert_eq!(ran.code, Some(2), "without a checkpoint the model is needed: {}", ran.stdout);
}

/// `transformers` would train the saved model with this run's dropout, and this run keeps the rate
/// of an imported model.
#[test]
fn the_rate_of_dropout_comes_and_goes_with_the_model() {
    let folder = folder();
    let data = data(&folder);
    let model = folder.path().join("model");
    let config = read_to_string(fixture("tied").join("config.json")).expect("a model");
    create_dir(&model).expect("a folder");
    copy(fixture("tied").join("model.safetensors"), model.join("model.safetensors"))
        .expect("copied");
    let other = config.replace("\"resid_pdrop\": 0.1", "\"resid_pdrop\": 0.2");
    assert_ne!(config, other);
    write(model.join("config.json"), other).expect("written");

    let line = format!("--init {} --depth 2 --data {data}", model.display());
    let ran = chimera(&format!("train {line}"));
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("has several dropout rates"), "{}", ran.stderr);
    let exported = folder.path().join("exported");
    let ran = chimera(&format!("export {} --out {}", model.display(), exported.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let rates = DropoutRates { residual: 0.2, ..DropoutRates::all(0.1) };
    assert_eq!(read(&exported).expect("a model").dropout, rates);

    let at = |name: &str| folder.path().join(name).display().to_string();
    for line in [
        format!(
            "train {line} --dropout 0.3 --micro-batch-size 1 --steps 1 --threads 1 --save-every 1 --out {} \
             --save {}",
            at("run"),
            at("saved")
        ),
        format!("export {} --out {}", at("run"), at("of-run")),
    ] {
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    }
    for name in ["saved", "of-run"] {
        let keys = read_to_string(folder.path().join(name).join("config.json")).expect("a model");
        let keys: Value = serde_json::from_str(&keys).expect("JSON");
        for key in ["embd_pdrop", "resid_pdrop", "attn_pdrop"] {
            assert_eq!(keys[key], 0.3, "{name}");
        }
    }
}

#[test]
fn sizes_come_from_the_model_and_others_are_refused() {
    let model = fixture("tied");
    let init = format!("--init {}", model.display());
    let shown = chimera(&format!("config show {init} --json")).stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    for (key, value) in [("layers", 2), ("hidden", 8), ("heads", 2), ("context", 16), ("vocab", 20)]
    {
        assert_eq!(shown[key]["value"], value);
        assert_eq!(shown[key]["origin"], format!("model {}", model.display()));
    }
    assert_eq!(shown["tied"]["value"], true);
    assert_eq!(shown["dropout"]["value"], 0.1);
    assert_eq!(shown["lr"]["value"], 0.04 / 8.0);

    let refusal = |options: &str| {
        let ran = chimera(&format!("train {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        ran.stderr
    };
    let said = refusal(&format!("{init} --hidden 16"));
    let wanted = format!(
        "command line: `hidden` is 16, but the model in {} has 8: leave `hidden` out",
        model.display()
    );
    assert!(said.contains(&wanted), "{said}");
    let folder = folder();
    let file = folder.path().join("run.toml");
    write(&file, "depth = 2\ntied = false\n").expect("written");
    let said = refusal(&format!("{init} --config {}", file.display()));
    assert!(said.contains("run.toml:2: `tied` is false, but the model in"), "{said}");

    let empty = folder.path().join("empty");
    create_dir(&empty).expect("a folder");
    let said = refusal(&format!("--init {}", empty.display()));
    assert!(
        said.contains(&format!("model {0}: {0} has no config.json", empty.display())),
        "{said}"
    );
    let said = refusal(&format!("{init} --depth 2"));
    assert!(said.contains("the vocabulary has 20 ids"), "the built-in text is bytes: {said}");
}

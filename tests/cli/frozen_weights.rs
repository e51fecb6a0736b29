//! Adapters beside frozen weights in fewer bits.

use std::fs::read;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::prepare::{refuse, succeed};
use crate::command::{folder, text};

const SIZES: &str = "--model llama --layers 4 --hidden 64 --heads 2 --context 16";
const USUAL: &str =
    "--micro-batches 2 --micro-batch-size 2 --threads 1 --optimizer adamw --lr 0.05";

/// A trained model, in the folder `base`, and the options for a training of adapters on the text.
fn base() -> (TempDir, String) {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display().to_string());
    let train = format!("train {USUAL} --data {text}");
    let whole = format!("{train} {SIZES} --depth 2 --steps 2");
    succeed(&format!("{whole} --save {place}/base --out {place}/run"));
    let rates = "--lr-schedule constant --warmup 0";
    (folder, format!("{train} {rates} --init {place}/base --lora 3 --save-every 2"))
}

/// The loss of a model on the text.
fn loss(folder: &Path, model: &str) -> f64 {
    let data = folder.join("text.txt").display().to_string();
    let ran = succeed(&format!("eval --model {model} --data {data} --json"));
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    found["loss"].as_f64().expect("a loss")
}

/// Bytes of the tensors of a checkpoint.
fn checkpoint_bytes(run: &Path) -> u64 {
    let manifest = read(run.join("checkpoints/step-00000004/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let shards = manifest["shards"].as_array().expect("shards").iter();
    shards.map(|shard| shard["bytes"].as_u64().expect("a size")).sum()
}

#[test]
fn every_format_trains_resumes_and_exports() {
    let (folder, train) = base();
    let (here, place) = (folder.path(), folder.path().display());
    let mut sizes = Vec::new();
    for format in ["f32", "bf16", "int8", "nf4", "nf4-double"] {
        let train = format!("{train} --frozen-weights {format}");
        let run = |what: &str| format!("{place}/{format}-{what}");
        succeed(&format!("{train} --depth 2 --steps 4 --out {}", run("whole")));
        succeed(&format!("{train} --depth 2 --steps 2 --out {}", run("parts")));
        succeed(&format!("{train} --depth 2 --steps 4 --out {} --resume auto", run("parts")));
        let weights = |what: &str| read(Path::new(&run(what)).join("model/model.safetensors"));
        assert!(weights("whole").expect("a file") == weights("parts").expect("a file"), "{format}");
        // A checkpoint continues with another depth, and is exported as its run is.
        let step = format!("{}/checkpoints/step-00000004", run("whole"));
        let trained = loss(here, &format!("{}/model", run("whole")));
        assert_eq!(loss(here, &step), trained, "{format}");
        succeed(&format!("export {step} --out {}", run("exported")));
        assert_eq!(loss(here, &run("exported")), trained, "{format}");
        succeed(&format!("{train} --depth 4 --steps 5 --out {} --resume {step}", run("other")));
        let alone = format!("{train} --depth 1 --steps 5 --out {} --resume {step}", run("alone"));
        succeed(&alone);
        let [other, alone] = ["other", "alone"].map(|of| loss(here, &format!("{}/model", run(of))));
        assert!((other - alone).abs() < 1e-5 * alone, "{format}: {other} and {alone}");
        sizes.push(checkpoint_bytes(Path::new(&run("whole"))));
    }
    assert!(
        sizes.is_sorted_by(|more, fewer| more > fewer) && 2 * sizes[0] > 5 * sizes[4],
        "{sizes:?}"
    );
}

#[test]
fn formats_that_nothing_is_held_in_are_refused() {
    let (folder, train) = base();
    let (here, place) = (folder.path(), folder.path().display());
    let whole = format!("train {USUAL} --data {place}/text.txt --init {place}/base");
    let hint = "frozen-weights nf4 is for frozen matrices of linear layers, and none is frozen: train adapters";
    refuse(&format!("{whole} --frozen-weights nf4"), hint, here);
    refuse(&format!("{whole} --frozen-weights nf4 --freeze \"embed_tokens.*\""), hint, here);
    let hint = "frozen-weights";
    refuse(&format!("{train} --frozen-weights int4"), hint, here);
    // A resumed run keeps its format.
    succeed(&format!("{train} --frozen-weights nf4 --steps 2 --out {place}/begun"));
    let resume = format!("{train} --steps 4 --out {place}/begun --resume auto");
    refuse(&format!("{resume} --frozen-weights int8"), hint, here);
}

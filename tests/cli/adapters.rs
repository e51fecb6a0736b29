//! Adapters in the files of peft: written by `train`, and read by `train`, `eval`, `generate` and
//! `export`.

use std::fs::{OpenOptions, copy, create_dir, read, read_to_string, remove_dir_all, write};
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::prepare::{refuse, succeed};
use crate::command::{folder, text};

const SIZES: &str = "--layers 4 --hidden 16 --heads 2 --context 16";
const USUAL: &str =
    "--depth 2 --micro-batches 2 --micro-batch-size 2 --threads 1 --optimizer adamw --lr 0.05";
const MATRICES: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// A trained model, in the folder `base`, and an adapter of it in `tuned/model/adapter`.
fn adapted(model: &str, lora: &str) -> TempDir {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display().to_string());
    let train = format!("train {USUAL} --steps 3 --data {text}");
    succeed(&format!("{train} --model {model} {SIZES} --save {place}/base --out {place}/run"));
    succeed(&format!("{train} --init {place}/base {lora} --out {place}/tuned"));
    folder
}

/// The loss of a model on the text.
fn loss(folder: &Path, model: &str) -> f64 {
    let data = folder.join("text.txt").display().to_string();
    let ran = succeed(&format!("eval {model} --data {data} --json"));
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    found["loss"].as_f64().expect("a loss")
}

#[test]
fn an_adapter_is_read_by_every_command_that_reads_a_model() {
    let of_each = [
        ("gpt2", "--lora 4 --lora-alpha 12 --lora-targets \"c_attn; mlp.c_proj\""),
        ("llama", "--lora 3 --lora-targets \"q_proj; v_proj; down_proj\""),
        ("llama", "--lora 3 --dora true --lora-targets \"k_proj; up_proj\" --lora-dropout 0.1"),
    ];
    for (model, lora) in of_each {
        let folder = adapted(model, lora);
        let place = folder.path().display();
        let (base, adapter) = (format!("{place}/base"), format!("{place}/tuned/model/adapter"));
        let merged = loss(folder.path(), &format!("--model {place}/tuned/model"));
        let with_adapter = format!("--model {base} --adapter {adapter}");
        assert_ne!(loss(folder.path(), &format!("--model {base}")), merged);
        // The adapter names its model.
        for named in
            [with_adapter.clone(), format!("--adapter {adapter}"), format!("--model {adapter}")]
        {
            assert_eq!(loss(folder.path(), &named), merged, "{named}");
        }
        let text_of = |model: &str| {
            succeed(&format!("generate {model} --prompt pipe --tokens 9 --temperature 0")).stdout
        };
        assert_eq!(text_of(&with_adapter), text_of(&format!("--model {place}/tuned/model")));
        succeed(&format!("export {base} --adapter {adapter} --out {place}/whole"));
        for file in ["model.safetensors", &format!("adapter/{MATRICES}")] {
            let [exported, saved] =
                ["whole", "tuned/model"].map(|of| read(folder.path().join(of).join(file)));
            assert!(exported.expect("a file") == saved.expect("a file"), "{file}");
        }
    }
}

#[test]
fn an_exported_run_keeps_its_adapter() {
    let folder = adapted("llama", "--lora 3 --lora-targets q_proj");
    let place = folder.path().display();
    for (nth, from) in ["tuned", "tuned/model", "export-0"].into_iter().enumerate() {
        succeed(&format!("export {place}/{from} --out {place}/export-{nth}"));
        for file in [MATRICES, CONFIG] {
            let [exported, saved] = [format!("export-{nth}"), "tuned/model".into()]
                .map(|of| read(folder.path().join(of).join("adapter").join(file)));
            assert!(exported.expect("a file") == saved.expect("a file"), "{from}: {file}");
        }
    }
    succeed(&format!("export {place}/base --out {place}/plain"));
    assert!(!folder.path().join("plain/adapter").exists());
    // A second merge is warned of.
    let adapter = format!("--adapter {place}/tuned/model/adapter");
    let eval = |model: &str| {
        succeed(&format!("eval --model {place}/{model} {adapter} --data {place}/text.txt"))
    };
    let warning = format!(
        "the model in {place}/tuned/model already has the adapter in {place}/tuned/model/adapter merged"
    );
    for model in ["tuned", "tuned/model"] {
        let stderr = eval(model).stderr;
        assert!(stderr.contains(&warning), "{stderr}");
    }
    assert!(!eval("base").stderr.contains("already has"));
}

/// A training that begins with an adapter has its rank, scale, layers, dropout and values. It resumes
/// without the folder.
#[test]
fn a_training_begins_with_an_adapter() {
    for more in ["", "--lora-dropout 0.25", "--dora true"] {
        begins_with_an_adapter(more);
    }
}

fn begins_with_an_adapter(more: &str) {
    let lora = format!("--lora 4 --lora-alpha 12 --lora-targets c_attn {more}");
    let folder = adapted("gpt2", &lora);
    let place = folder.path().display();
    let from = folder.path().join("tuned/model/adapter");
    let train = format!(
        "train {USUAL} --init {place}/base --adapter {} --data {place}/text.txt --lr-schedule constant \
         --warmup 0 --save-every 1",
        from.display()
    );
    succeed(&format!("{train} --lr 0 --steps 1 --out {place}/same"));
    let saved = |run: &str, file| read(folder.path().join(run).join("model/adapter").join(file));
    assert!(saved("same", MATRICES).expect("a file") == read(from.join(MATRICES)).expect("a file"));
    let of = |dir: &Path| -> Value {
        let text = read_to_string(dir.join(CONFIG)).expect("a file");
        serde_json::from_str(&text).expect("JSON")
    };
    let config = of(&folder.path().join("same/model/adapter"));
    assert_eq!(config, of(&from));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &12.into()));

    succeed(&format!("{train} --steps 4 --out {place}/whole"));
    succeed(&format!("{train} --steps 2 --out {place}/parts"));
    remove_dir_all(&from).expect("removed");
    succeed(&format!("{train} --steps 4 --out {place}/parts --resume auto"));
    let [whole, parts] = ["whole", "parts"].map(|run| saved(run, MATRICES).expect("a file"));
    assert!(whole == parts);
}

/// Dropout is drawn from seed, step and place, so a resume draws the same, and nothing else does not
/// change with it. Magnitudes begin with the norms of the weights, as they are held.
#[test]
fn dropout_and_magnitudes_resume_with_the_same_bits() {
    let folder = adapted("llama", "--lora 1");
    let (here, place) = (folder.path(), folder.path().display());
    let train = format!(
        "train {USUAL} --init {place}/base --data {place}/text.txt --lora 2 --lr-schedule constant --warmup 0 \
         --save-every 1"
    );
    let adapter_of = |run: &str, options: &str, steps: usize| {
        succeed(&format!("{train} {options} --steps {steps} --out {place}/{run}"));
        read(here.join(run).join("model/adapter").join(MATRICES)).expect("a file")
    };
    let first_loss = |run: &str| -> f64 {
        let lines = read_to_string(here.join(run).join("metrics.jsonl")).expect("metrics");
        let line: Value =
            serde_json::from_str(lines.lines().next().expect("a step")).expect("JSON");
        line["loss"].as_f64().expect("a loss")
    };
    let plain = adapter_of("plain", "", 4);
    assert!(adapter_of("zero", "--lora-dropout 0", 4) == plain);
    let mut all = vec![plain];
    for (nth, options) in ["--lora-dropout 0.3", "--dora true", "--dora true --lora-dropout 0.3"]
        .into_iter()
        .chain(["--dora true --frozen-weights int8", "--lora-dropout 0.3 --frozen-weights nf4"])
        .enumerate()
    {
        let whole = adapter_of(&format!("whole-{nth}"), options, 4);
        let parts = format!("parts-{nth}");
        adapter_of(&parts, options, 2);
        let resumed = adapter_of(&parts, &format!("{options} --resume auto"), 4);
        assert!(resumed == whole, "{options}");
        assert!(!all.contains(&whole), "{options}");
        all.push(whole);
    }
    adapter_of("packed", "--frozen-weights int8", 1);
    let [plain, dora, packed, packed_dora] =
        ["plain", "whole-1", "packed", "whole-3"].map(first_loss);
    assert!((dora / plain - 1.0).abs() < 1e-5, "{dora} and {plain}");
    assert!((packed_dora / packed - 1.0).abs() < 1e-5, "{packed_dora} and {packed}");
}

#[test]
fn an_adapter_that_does_not_fit_is_refused() {
    let folder = adapted("llama", "--lora 3 --lora-targets q_proj");
    let (here, place) = (folder.path(), folder.path().display());
    let adapter = here.join("tuned/model/adapter");
    let original = read_to_string(adapter.join(CONFIG)).expect("a file");
    let eval = format!("eval --model {place}/base --data {place}/text.txt --adapter");
    let changes = [
        ("\"LORA\"", "\"IA3\"", "`peft_type` is IA3: only LORA is computed here"),
        (
            "\"r\": 3",
            "\"r\": 4",
            "has shape [3, 16], but the model and adapter_config.json make it [4, 16]",
        ),
        ("\"r\": 3", "\"r\": 0", "`r` is 0: it must be 1 to 65536"),
        (
            "\"use_dora\": false",
            "\"use_dora\": true",
            "has no base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        ),
        (
            "\"lora_alpha\": 3",
            "\"lora_alpha\": 2.5",
            "`lora_alpha` is 2.5: it must be a whole number",
        ),
        ("\"r\": 3,", "", "missing field `r`"),
    ];
    for (from, to, hint) in changes {
        let changed = here.join("changed");
        create_dir(&changed).expect("a folder");
        copy(adapter.join(MATRICES), changed.join(MATRICES)).expect("copied");
        let text = original.replace(from, to);
        assert_ne!(text, original, "{from}");
        write(changed.join(CONFIG), text).expect("written");
        refuse(&format!("{eval} {}", changed.display()), hint, here);
        remove_dir_all(changed).expect("removed");
    }
    refuse(&format!("{eval} {place}/base"), "has no adapter_config.json: name the folder", here);
    let train = format!("train --data {place}/text.txt --adapter {}", adapter.display());
    refuse(&train, "changes a model: name the folder of that model by `init`", here);
    let hint = "`lora` is 8, but the adapter in ";
    refuse(&format!("{train} --init {place}/base --lora 8"), hint, here);
    refuse(
        &format!("{train} --init {place}/base --dora true"),
        "`dora` is true, but the adapter",
        here,
    );
    let without = format!("train --data {place}/text.txt --init {place}/base");
    for option in ["dora true", "lora-dropout 0.1"] {
        let (name, _) = option.split_once(' ').expect("a value");
        let hint = format!("`{name}` is for adapters, and none is trained: choose their rank");
        refuse(&format!("{without} --{option}"), &hint, here);
    }
    for rate in ["1", "-0.1"] {
        refuse(&format!("{without} --lora 2 --lora-dropout={rate}"), "lora-dropout", here);
    }
    let misnamed = format!("train --data {place}/text.txt --init {place}/base --lora 2");
    let hint =
        "lora-targets: no linear layer of a block is named `v_prj`; there are self_attn.q_proj, ";
    refuse(&format!("{misnamed} --lora-targets \"q_proj; v_prj\""), hint, here);
    // A model of other layers.
    let other =
        format!("train --model llama {SIZES} --layers 2 {USUAL} --steps 1 --data {place}/text.txt");
    succeed(&format!(
        "{} --save {place}/other --out {place}/more",
        other.replacen("--layers 4 ", "", 1)
    ));
    let hint = "belongs to no linear layer in the blocks of a Llama of 2 layers";
    refuse(
        &eval
            .replace("/base", "/other")
            .replace("--adapter", &format!("--adapter {}", adapter.display())),
        hint,
        here,
    );
    let file = OpenOptions::new().write(true).open(adapter.join(MATRICES)).expect("a file");
    file.set_len(file.metadata().expect("a file").len() - 1).expect("shorter");
    refuse(&format!("{eval} {}", adapter.display()), MATRICES, here);
}

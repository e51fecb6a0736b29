//! Prepared data and texts in `train` and `eval`: tokenizers, targets, many files.

use std::fs::{create_dir, read, read_to_string, remove_file, write};
use std::process::Command;

use serde_json::{Value, json};

use super::prepare::{MODEL, WORDS, refuse, succeed, wait_for};
use crate::command::{folder, start, text};

#[test]
fn data_tells_its_tokenizer_to_the_training() {
    let folder = folder();
    let (text, place) = (text(&folder), folder.path().display());
    write(folder.path().join("tokenizer.json"), WORDS).expect("a file");
    let file = format!("{place}/tokenizer.json");
    for (tokenizer, name, kind, vocab) in [
        ("bytes", "bytes.bin", "bytes", 256),
        ("gpt2", "gpt2.bin", "gpt2", 50257),
        ("gpt2", "gpt2.u32.bin", "gpt2", 50257),
        (file.as_str(), "words.bin", "file", 6),
    ] {
        let data = format!("{place}/{name}");
        let line = format!("prepare {} {0} --tokenizer {tokenizer} --out {data}", text.display());
        let said = succeed(&line).stdout;
        let described = read_to_string(format!("{data}.json")).expect("a description");
        let described: Value = serde_json::from_str(&described).expect("JSON");
        let size = text.metadata().expect("a file").len();
        let source = json!({"path": text.display().to_string(), "bytes": size});
        let width = if name.contains("u32") { 4 } else { 2 };
        let n_tokens = read(&data).expect("data").len() / width;
        assert_eq!(
            described,
            json!({"format": 1, "tokenizer": kind, "vocab": vocab, "tokens": n_tokens,
                "sources": [source, source]})
        );
        assert!(said.starts_with(&format!("{data}: {n_tokens} tokens of ")), "{said}");

        // The tokenizer goes with the data.
        let shown = succeed(&format!("config show --data {data}")).stdout;
        assert!(shown.contains(&format!("vocab = {vocab} ")), "{shown}");
        let out = format!("{place}/run-{name}");
        let ran = succeed(&format!("{MODEL} --data {data} --out {out}"));
        assert!(ran.stdout.contains("\nsample:\n"), "{}", ran.stdout);
        let wider = format!("{MODEL} --data {data} --out {out}-wider --vocab {}", vocab + 1);
        succeed(&wider);
        let hint = format!("but the data {data} has the {vocab} ids of ");
        refuse(&format!("{MODEL} --data {data} --vocab {}", vocab - 1), &hint, folder.path());
    }
    let [bytes, gpt2] = ["bytes", "gpt2"].map(|name| format!("{place}/{name}.bin"));
    let hint = "tokenizer is gpt2 (50257 ids), but that of ";
    refuse(&format!("{MODEL} --data {bytes} {gpt2}"), hint, folder.path());
}

/// The sizes fit, so only this check can refuse them.
#[test]
fn tokens_of_another_tokenizer_are_refused() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    for (name, vocabulary) in
        [("a", WORDS.to_string()), ("b", WORDS.replace("\"pipe\"", "\"idle\""))]
    {
        write(folder.path().join(format!("{name}.json")), vocabulary).expect("a file");
        let tokenizer = format!("--tokenizer {place}/{name}.json");
        succeed(&format!("prepare {text} {tokenizer} --out {place}/{name}.bin"));
    }
    succeed(&format!("{MODEL} --data {place}/a.bin --out {place}/run"));
    succeed(&format!("{MODEL} --data {text} --out {place}/of-bytes"));
    let init = format!("{MODEL} --init {place}/run/model --out {place}/next");
    let hint = "id 1 is \"idle\" in the data and \"pipe\" for the model: prepare the data with";
    for line in [
        format!("eval --model {place}/run --data {place}/b.bin"),
        format!("eval --model {place}/run/model --data {place}/b.bin"),
        format!("{init} --data {place}/b.bin"),
    ] {
        refuse(&line, hint, folder.path());
    }
    for model in ["run", "of-bytes"] {
        let mixed = format!("eval --model {place}/{model} --data {place}/a.bin {place}/b.bin");
        refuse(&mixed, "its tokenizer.json is not that of", folder.path());
    }
    let hint = "id 0 is \"[UNK]\" in the data and \"\\0\" for the model";
    refuse(&format!("eval --model {place}/of-bytes --data {place}/a.bin"), hint, folder.path());
    succeed(&format!("eval --model {place}/run --data {place}/a.bin"));
    succeed(&format!("{init} --data {place}/a.bin"));
}

/// A run whose tokenizer is removed before its end, and folders with a tokenizer of their own.
#[test]
fn the_tokenizer_goes_with_the_weights() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    let at = |name: &str| folder.path().join(name);
    write(at("words.json"), WORDS).expect("a file");
    let prepare = format!("prepare {text} --tokenizer {place}/words.json --out {place}/a.bin");
    succeed(&prepare);
    let run = start(&format!(
        "{} --data {place}/a.bin --out {place}/run",
        MODEL.replace("--steps 2", "--steps 2000")
    ));
    wait_for(&at("run/metrics.jsonl"));
    remove_file(at("a.bin.tokenizer.json")).expect("removed");
    remove_file(at("a.bin.json")).expect("removed");
    let ran = run.wait();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read_to_string(at("run/model/tokenizer.json")).expect("a tokenizer"), WORDS);

    remove_file(at("a.bin")).expect("removed");
    succeed(&prepare);
    create_dir(at("saved")).expect("a folder");
    write(at("saved/tokenizer.json"), "mine").expect("a file");
    for data in [text.clone(), format!("{place}/a.bin")] {
        let train = format!("{MODEL} --data {data} --save {place}/saved");
        let hint = "saved/tokenizer.json is not the tokenizer of the data: choose another folder";
        refuse(&train, hint, folder.path());
    }
    assert_eq!(read_to_string(at("saved/tokenizer.json")).expect("a file"), "mine");
    write(at("saved/tokenizer.json"), WORDS).expect("a file");
    succeed(&format!("{MODEL} --data {place}/a.bin --save {place}/saved"));

    // Ids without a description get the tokenizer of the model that they train.
    remove_file(at("a.bin.json")).expect("removed");
    let tune = format!(
        "train --init {place}/saved --data {place}/a.bin --depth 2 --threads 1 --save-every 2 --lr-schedule constant \
         --out {place}/tuned"
    );
    for options in ["--steps 2", "--steps 4 --resume auto"] {
        succeed(&format!("{tune} {options}"));
        let own = at("tuned/model/tokenizer.json");
        assert_eq!(read_to_string(&own).expect("a tokenizer"), WORDS, "{options}");
        remove_file(own).expect("removed");
    }
}

#[test]
fn a_field_is_of_lines_of_json() {
    let folder = folder();
    let line = format!("prepare {} --field body --out x.bin", text(&folder).display());
    refuse(&line, "--field is for .jsonl files, but none of the texts is one", folder.path());
}

/// This holds for any model, saved anywhere: readers take a tokenizer in the folder for the
/// model's.
#[test]
fn a_model_is_not_saved_beside_another_tokenizer() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    let at = |name: &str| folder.path().join(name);
    write(at("words.json"), WORDS).expect("a file");
    succeed(&format!("prepare {text} --tokenizer {place}/words.json --out {place}/a.bin"));
    succeed(&format!("{MODEL} --data {place}/a.bin --out {place}/words"));
    succeed(&format!("{MODEL} --data {text} --out {place}/bytes"));
    create_dir(at("out")).expect("a folder");
    write(at("out/tokenizer.json"), "mine").expect("a file");
    for run in ["words", "bytes"] {
        let hint = "out/tokenizer.json is not the tokenizer of the model: choose another folder";
        refuse(&format!("export {place}/{run} --out {place}/out"), hint, &at("out"));
    }
    assert_eq!(read_to_string(at("out/tokenizer.json")).expect("a file"), "mine");
    write(at("out/tokenizer.json"), WORDS).expect("a file");
    succeed(&format!("export {place}/words --out {place}/out"));

    create_dir(at("next")).expect("a folder");
    create_dir(at("next/model")).expect("a folder");
    write(at("next/model/tokenizer.json"), "mine").expect("a file");
    let hint = "model/tokenizer.json is not the tokenizer of the data: choose another --out";
    refuse(&format!("{MODEL} --data {text} --out {place}/next"), hint, &at("next"));
}

/// Their loss would be 0.
#[test]
fn data_without_targets_is_refused() {
    let folder = folder();
    let place = folder.path().display();
    let line = |q: &str, a: &str| format!("{{\"q\": \"{q}\", \"a\": \"{a}\"}}\n");
    let lines = line("?", "an answer").repeat(30) + &line(&"?".repeat(900), "");
    write(folder.path().join("x.jsonl"), lines).expect("a file");
    let fields = "--prompt-field q --field a";
    succeed(&format!("prepare {place}/x.jsonl {fields} --out {place}/x.bin"));
    let targets = read(folder.path().join("x.bin.targets")).expect("targets");
    let train = format!("{MODEL} --data {place}/x.bin --out {place}/run");
    let hint = "no token of the samples to validate with is a target: all are of prompts: name";
    // Except for the end of its last document.
    write(folder.path().join("x.bin.targets"), [&targets[..targets.len() - 1], &[0]].concat())
        .expect("targets");
    refuse(&train, hint, folder.path());
    assert!(!folder.path().join("run/config.toml").exists());
    write(folder.path().join("x.bin.targets"), vec![0; targets.len()]).expect("targets");
    let hint = "no token of the data to train on is a target: all are of prompts: choose";
    refuse(&train, hint, folder.path());
}

#[test]
fn validation_data_of_another_kind_is_refused() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    let [gpt2, wide, bytes] =
        ["gpt2.bin", "gpt2.u32.bin", "bytes.bin"].map(|name| format!("{place}/{name}"));
    for (tokenizer, data) in [("gpt2", &gpt2), ("gpt2", &wide), ("bytes", &bytes)] {
        succeed(&format!("prepare {text} --tokenizer {tokenizer} --out {data}"));
    }
    let train = |data: &str, validation: &str| {
        format!("{MODEL} --vocab 50257 {data} --validation-data {validation} --eval-every 1")
    };
    for (data, validation, hint) in [
        (&gpt2, &text, "text.txt holds text, but the data to train on holds u16 token ids: name"),
        (&text, &gpt2, "gpt2.bin holds u16 token ids, but the data to train on holds text"),
        (&gpt2, &wide, "holds u32 token ids, but the data to train on holds u16 token ids"),
        (&gpt2, &bytes, "its tokenizer is bytes (256 ids), but that of "),
    ] {
        refuse(&train(&format!("--data {data}"), validation), hint, folder.path());
    }
    refuse(&train("", &gpt2), "but the data to train on holds text", folder.path());
    succeed(&train(&format!("--data {gpt2}"), &gpt2));
}

#[test]
fn small_weights_of_a_mixture_are_told_short() {
    let folder = folder();
    let (text, place) = (text(&folder), folder.path().display());
    write(folder.path().join("other"), "another text ".repeat(100)).expect("a file");
    let mixed = format!("--data {} {place}/other --data-weights 1e-300,1", text.display());
    let said = succeed(&format!("{MODEL} {mixed}")).stdout;
    assert!(said.contains(&format!("mixture: {} 1e-300 (", text.display())), "{said}");
}

#[cfg(unix)]
#[test]
fn more_files_than_may_be_open_are_read_or_refused_with_a_remedy() {
    let folder = folder();
    let names: Vec<String> = (0..100).map(|n| format!("{n}.txt")).collect();
    for name in &names {
        write(folder.path().join(name), "some text").expect("a file");
    }
    let line = format!("{MODEL} --data {} --out run", names.join(" "));
    let with = |limit: &str| {
        let command = format!("ulimit {limit} && exec {} {line}", env!("CARGO_BIN_EXE_chimera"));
        let mut bash = Command::new("bash");
        bash.args(["-c", &command]).current_dir(folder.path()).output().expect("bash")
    };
    let ran = with("-n 64");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("raise `ulimit -n`, or make one file of the data"), "{said}");
    let ran = with("-Sn 64");
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
}

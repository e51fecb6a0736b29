//! Documents in data: kept apart, with beginnings and ends, and their trained parts.

use std::fs::{create_dir, read, read_to_string, write};

use serde_json::{Value, json};

use super::prepare::{MODEL, WORDS, refuse, succeed};
use crate::command::{chimera, folder, text};

#[test]
fn documents_are_kept_apart() {
    let folder = folder();
    let place = folder.path().display();
    create_dir(folder.path().join("texts")).expect("a folder");
    let in_texts = |name: &str, content: &str| {
        write(folder.path().join("texts").join(name), content).expect("a file");
    };
    in_texts("1.jsonl", "{\"n\": 1, \"body\": \"Hello\"}\n\n{\"body\": \"\u{e9} \\\"x\\\"\"}\n");
    in_texts("2.md", "world\n");
    let said = succeed(&format!("prepare {place}/texts --field body --out {place}/a.bin"));
    let said = said.stdout;
    assert!(said.contains(", 3 documents, token 0 after each"), "{said}");
    let ids = |name: &str| {
        let bytes = read(folder.path().join(name)).expect("data");
        let ids = bytes.as_chunks().0.iter().map(|id| u32::from(u16::from_le_bytes(*id)));
        ids.collect::<Vec<_>>()
    };
    let text = "Hello\0\u{e9} \"x\"\0world\n\0";
    assert!(ids("a.bin").into_iter().eq(text.bytes().map(u32::from)));
    let described = read_to_string(folder.path().join("a.bin.json")).expect("a description");
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert_eq!(described["end_of_text"]["documents"], 3);
    let bytes = text.replace('\0', "").len();
    let encoded = format!("{} tokens of {bytes} bytes of text ", text.len());
    assert!(said.contains(&encoded), "what stands around a text is none of it: {said}");
    let source = json!({"path": format!("{place}/texts"), "bytes": bytes});
    assert_eq!(described["sources"], json!([source]), "a folder is named once");

    // If one file has documents, each text file is one. Otherwise a text before would be part of
    // the next document, and a text after would have no end.
    succeed(&format!("prepare {place}/te*/[12].* --field body --out {place}/c.bin"));
    assert!(ids("c.bin").into_iter().eq(text.bytes().map(u32::from)));
    let behind = format!("prepare {place}/texts/2.md {place}/texts/1.jsonl --field body");
    succeed(&format!("{behind} --out {place}/e.bin"));
    assert!(ids("e.bin").into_iter().eq("world\n\0Hello\0\u{e9} \"x\"\0".bytes().map(u32::from)));
    // A file of a folder is used once.
    succeed(&format!("prepare {place}/texts {place}/texts/2.md --field body --out {place}/f.bin"));
    assert_eq!(ids("f.bin"), ids("c.bin"));
    let nothing = format!("prepare {place}/*.none --out {place}/d.bin");
    refuse(&nothing, "no file fits this pattern", folder.path());

    let end = "--tokenizer gpt2 --end-of-text <|endoftext|>";
    succeed(&format!("prepare {place}/texts/2.md {place}/texts/2.md {end} --out {place}/b.bin"));
    assert_eq!(ids("b.bin"), [6894, 198, 50_256, 6894, 198, 50_256]);
}

#[test]
fn each_file_of_a_pattern_is_there_once() {
    let folder = folder();
    let place = folder.path().display();
    std::fs::create_dir_all(folder.path().join("a/b/c")).expect("folders");
    for (name, text) in [("a/x.txt", "X"), ("a/b/y.txt", "Y"), ("a/b/c/z.TXT", "Z")] {
        write(folder.path().join(name), text).expect("a file");
    }
    succeed(&format!("prepare {place}/a/** --out {place}/x.bin"));
    let ids = read(folder.path().join("x.bin")).expect("data");
    assert_eq!(ids, b"Z\0Y\0X\0", "in the order of names");
}

/// Bytes stay as they are in the file, so the data is the same.
#[test]
fn a_byte_order_mark_is_no_text() {
    let folder = folder();
    let place = folder.path().display();
    write(folder.path().join("x.txt"), "\u{feff}Hello").expect("a file");
    let ids = |tokenizer: &str| {
        let out = format!("{place}/{tokenizer}.bin");
        succeed(&format!("prepare {place}/x.txt --tokenizer {tokenizer} --out {out}"));
        let bytes = read(out).expect("data");
        bytes.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id)).collect::<Vec<_>>()
    };
    assert_eq!(ids("gpt2"), [15496]);
    let described = read_to_string(folder.path().join("gpt2.bin.json")).expect("a description");
    let described: Value = serde_json::from_str(&described).expect("JSON");
    assert_eq!(described["sources"][0]["bytes"], 5);
    assert_eq!(ids("bytes")[..4], [0xef, 0xbb, 0xbf, u16::from(b'H')]);
}

#[test]
fn documents_begin_as_the_tokenizer_says() {
    let folder = folder();
    let place = folder.path().display();
    let template = r#"{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "the", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "bubble", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"the": {"id": "the", "ids": [5], "tokens": ["the"]},
        "bubble": {"id": "bubble", "ids": [4], "tokens": ["bubble"]}}}"#;
    let words =
        WORDS.replace("\"post_processor\": null", &format!("\"post_processor\": {template}"));
    write(folder.path().join("words.json"), words).expect("a file");
    write(folder.path().join("1.txt"), "pipe stage").expect("a file");
    write(folder.path().join("2.jsonl"), "{\"q\": \"pipe\", \"text\": \"worker\"}\n")
        .expect("a file");
    let prepare = format!("prepare {place}/1.txt {place}/2.jsonl --tokenizer {place}/words.json");
    let begun = format!("{prepare} --end-of-text bubble --begin-of-text");
    succeed(&format!("{begun} --prompt-field q --out {place}/x.bin"));
    let ids = read(folder.path().join("x.bin")).expect("data");
    let ids: Vec<u16> = ids.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id)).collect();
    assert_eq!(ids, [5, 1, 2, 4, 5, 1, 3, 4]);
    let targets = read(folder.path().join("x.bin.targets")).expect("targets");
    assert_eq!(targets, [0, 1, 1, 1, 0, 0, 1, 1]);
    let same = format!("{prepare} --end-of-text the --begin-of-text --out {place}/y.bin");
    refuse(&same, "begins a text with the token that ends one", folder.path());
    let nothing = format!("prepare {place}/1.txt --begin-of-text --out {place}/y.bin");
    refuse(&nothing, "puts nothing before a text: leave --begin-of-text out", folder.path());

    // A prompt begins with the token too, but has no end.
    write(folder.path().join("long.txt"), "pipe stage ".repeat(100)).expect("a file");
    let long = format!("prepare {place}/long.txt --tokenizer {place}/words.json");
    succeed(&format!("{long} --out {place}/long.bin"));
    succeed(&format!("{MODEL} --data {place}/long.bin --save {place}/model --out {place}/run"));
    let prompt = |more: &str| {
        let line = format!("generate --json --model {place}/model --tokens 1 --prompt {more}");
        let ran: Value = serde_json::from_str(&succeed(&line).stdout).expect("JSON");
        let text = ran["text"].as_str().expect("a text").to_owned();
        (ran["prompt"].clone(), text)
    };
    let (ids, text) = prompt("pipe");
    assert!(ids == json!([5, 1]) && text.starts_with("pipe"), "{ids} {text}");
    assert_eq!(prompt("\"the pipe\"").0, json!([5, 1]), "the prompt already has it");
    assert_eq!(prompt("pipe --no-begin-of-text").0, json!([1]));
}

/// A loss of 0 would look like a perfect model.
#[test]
fn steps_without_targets_have_no_loss() {
    let folder = folder();
    let place = folder.path().display();
    let line = format!("{{\"q\": \"{}\", \"a\": \"answer\"}}\n", "?".repeat(60));
    write(folder.path().join("x.jsonl"), line.repeat(40)).expect("a file");
    let prepare = format!("prepare {place}/x.jsonl --prompt-field q --field a --out {place}/x.bin");
    let said = succeed(&prepare).stdout;
    assert!(
        said.contains(" of 2640 bytes of text "),
        "40 prompts of 60 bytes, answers of 6: {said}"
    );
    let train = "train --layers 2 --depth 2 --hidden 8 --heads 2 --context 8 --steps 12 --threads 1 --micro-batches 2 \
                 --micro-batch-size 1 --schedule 1f1b";
    let ran = succeed(&format!("{train} --data {place}/x.bin --out {place}/run --log {place}/log"));
    let metrics = read_to_string(folder.path().join("run/metrics.jsonl")).expect("metrics");
    let losses: Vec<Option<f64>> = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["loss"].as_f64())
        .collect();
    let n_without = losses.iter().filter(|loss| loss.is_none()).count();
    assert!(0 < n_without && n_without < 12, "{losses:?}");
    assert!(losses.iter().flatten().all(|loss| *loss > 0.0), "{losses:?}");
    assert!(!metrics.contains("null"), "{metrics}");
    assert_eq!(
        ran.stdout.matches("  no targets  norm 0.000  ").count(),
        n_without,
        "{}",
        ran.stdout
    );
    let log = read_to_string(folder.path().join("log/rank.0.log")).expect("a log");
    assert_eq!(log.matches(": no targets, ").count(), n_without, "{log}");
}

/// Prompts are read and not predicted, documents do not see each other, and the mean is over the
/// remaining tokens, however a step is spread over workers.
#[test]
fn answers_alone_are_trained_on() {
    let folder = folder();
    let place = folder.path().display();
    let line = |n: usize| {
        let prompt = "?".repeat(1 + n % 7);
        format!("{{\"q\": \"{prompt}\", \"a\": \"answer {}\"}}\n", n * n % 13)
    };
    write(folder.path().join("x.jsonl"), (0..60).map(line).collect::<String>()).expect("a file");
    let fields = "--prompt-field q --field a";
    let said = succeed(&format!("prepare {place}/x.jsonl {fields} --out {place}/x.bin")).stdout;
    let targets = read(folder.path().join("x.bin.targets")).expect("targets");
    assert_eq!(targets[..10], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let (n, n_targets) = (targets.len(), targets.iter().filter(|is| **is == 1).count());
    assert!(said.contains(&format!("{n} tokens, of which {n_targets} are targets, of ")), "{said}");

    let train = |name: &str, more: &str| {
        let train = "train --layers 2 --hidden 8 --heads 2 --context 16 --steps 3 --threads 1";
        succeed(&format!("{train} --data {place}/x.bin --out {place}/{name} {more}"));
        let text = read_to_string(folder.path().join(name).join("metrics.jsonl")).expect("metrics");
        let loss = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["loss"].as_f64();
        text.lines().map(|line| loss(line).expect("a loss")).collect::<Vec<_>>()
    };
    for model in ["gpt2", "llama"] {
        let more = format!("--model {model} --document-mask true");
        let one = train(&format!("{model}-1"), &format!("{more} --depth 1 --micro-batches 4"));
        let two = train(&format!("{model}-2"), &format!("{more} --depth 2 --micro-batches 4"));
        let apart = one.iter().zip(&two).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{one:?} and {two:?}");
        let seen = train(
            &format!("{model}-seen"),
            &format!("--model {model} --depth 1 --micro-batches 4"),
        );
        assert_ne!(one[0], seen[0], "documents that are seen matter");

        // The model goes on from its end, and its final loss is that of its last evaluation.
        let init = format!("{more} --init {place}/{model}-1/model --depth 1 --eval-every 3");
        let on = train(&format!("{model}-on"), &init);
        assert!(on[0] < one[0], "{on:?} after {one:?}");
        let run = folder.path().join(format!("{model}-on"));
        let [steps, end] = ["metrics.jsonl", "summary.json"].map(|file| {
            read_to_string(run.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
        });
        let of = |json: &str| {
            serde_json::from_str::<Value>(json).expect("JSON")["validation_loss"].as_f64()
        };
        let evaluated = of(steps.lines().last().expect("steps")).expect("an evaluation");
        let ended = of(&end).expect("a loss");
        assert!((evaluated - ended).abs() < 1e-5 * ended, "{evaluated} and {ended}");
    }

    let refused = |line: &str, hint: &str| {
        let ran = chimera(line);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    };
    let text = text(&folder);
    let hint = "no token ends its documents, which document-mask needs";
    refused(&format!("{MODEL} --document-mask true --data {}", text.display()), hint);
    let hint = "cannot read data file";
    refused(&format!("{MODEL} --document-mask true --data {place}/none.bin"), hint);
    let hint = "samples do not consist of documents: leave document-mask out";
    refused(&format!("train --model bert --document-mask true --data {place}/x.bin"), hint);
    write(folder.path().join("x.bin.targets"), [1]).expect("a file");
    let hint = format!("x.bin.targets: it does not cover all {n} tokens: prepare the data again");
    refused(&format!("{MODEL} --data {place}/x.bin"), &hint);
}

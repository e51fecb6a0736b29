//! `chimera prepare`, and training on what it makes.

use std::fs::{create_dir, read, read_dir, read_to_string, remove_file, write};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use chimera::data::{Preparation, PreparedFiles};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Ran, Running, chimera, folder, start_with, text};

pub(super) const MODEL: &str =
    "train --layers 2 --depth 2 --hidden 4 --heads 1 --context 4 --steps 2 --threads 1";

/// A tokenizer of words.
pub(super) const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
    "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0,
    "pipe": 1, "stage": 2, "worker": 3, "bubble": 4, "the": 5}}}"#;

pub(super) fn succeed(line: &str) -> Ran {
    let ran = chimera(line);
    assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    ran
}

/// Refused as wrong usage; `folder` then holds no more than before.
pub(super) fn refuse(line: &str, hint: &str, folder: &Path) {
    let count = || read_dir(folder).expect("a folder").count();
    let before = count();
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}: {}", ran.stderr);
    assert!(ran.stderr.contains(hint), "{line}: {}", ran.stderr);
    assert_eq!(count(), before, "{line}");
}

#[test]
fn ids_are_those_of_the_text() {
    let folder = folder();
    let place = folder.path().display();
    // Larger than a block, with characters of several bytes across its end.
    let text = "x".to_string() + &"Ünïcode – 文字\n".repeat(300_000);
    write(folder.path().join("text"), &text).expect("a file");
    succeed(&format!("prepare {place}/text --tokenizer gpt2 --out {place}/a.bin"));
    let bytes = read(folder.path().join("a.bin")).expect("data");
    let ids: Vec<u32> =
        bytes.as_chunks().0.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect();
    let gpt2 = chimera::data::tokenizer::Tokenizer::Gpt2;
    assert!(gpt2.decode(&ids).expect("a text") == text, "the text comes back");
    assert!(ids == gpt2.encode(&text).expect("ids"), "blocks do not show");
    succeed(&format!("prepare {place}/text --out {place}/b.bin"));
    let bytes = read(folder.path().join("b.bin")).expect("data");
    assert!(bytes.chunks(2).map(|id| id[0]).eq(text.bytes()));
}

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
    assert!(said.contains(", 3 documents, token 0 behind each"), "{said}");
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
    let sizes = ["1.jsonl", "2.md"].map(|name| folder.path().join("texts").join(name));
    let bytes: u64 = sizes.iter().map(|text| text.metadata().expect("a text").len()).sum();
    let source = json!({"path": format!("{place}/texts"), "bytes": bytes});
    assert_eq!(described["sources"], json!([source]), "a folder is named once");

    // Where a file has documents, each is one: a text before would be part of the next document, and one behind have no end.
    succeed(&format!("prepare {place}/te*/[12].* --field body --out {place}/c.bin"));
    assert!(ids("c.bin").into_iter().eq(text.bytes().map(u32::from)));
    let behind = format!("prepare {place}/texts/2.md {place}/texts/1.jsonl --field body");
    succeed(&format!("{behind} --out {place}/e.bin"));
    assert!(ids("e.bin").into_iter().eq("world\n\0Hello\0\u{e9} \"x\"\0".bytes().map(u32::from)));
    // What a folder has is there once.
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

/// Bytes stay as they are in the file, which is the same data then.
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

    // A prompt begins so too, and ends as nothing but a prompt.
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
    assert_eq!(prompt("\"the pipe\"").0, json!([5, 1]), "it is said by the prompt");
    assert_eq!(prompt("pipe --no-begin-of-text").0, json!([1]));
}

/// A loss of 0 would look like the best there is.
#[test]
fn steps_without_targets_have_no_loss() {
    let folder = folder();
    let place = folder.path().display();
    let line = format!("{{\"q\": \"{}\", \"a\": \"answer\"}}\n", "?".repeat(60));
    write(folder.path().join("x.jsonl"), line.repeat(40)).expect("a file");
    succeed(&format!("prepare {place}/x.jsonl --prompt-field q --field a --out {place}/x.bin"));
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

/// Prompts are read and not predicted, documents do not see each other, and the mean is over what is left, however a step is
/// spread over workers.
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

        // The model goes on where it ended, and the loss of its end is that of its last evaluation.
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
    let hint = "samples are no documents side by side: leave document-mask out";
    refused(&format!("train --model bert --document-mask true --data {place}/x.bin"), hint);
    write(folder.path().join("x.bin.targets"), [1]).expect("a file");
    let hint = format!("x.bin.targets: it does not tell of all {n} tokens: prepare the data again");
    refused(&format!("{MODEL} --data {place}/x.bin"), &hint);
}

#[test]
fn what_cannot_be_prepared_leaves_nothing() {
    let folder = folder();
    let place = folder.path().display();
    let text = text(&folder);
    let text = text.display();
    write(folder.path().join("latin"), b"caf\xe9 et th\xe9").expect("a file");
    write(folder.path().join("empty"), b"").expect("a file");
    write(folder.path().join("lines.jsonl"), "{\"text\": \"a\"}\n{\"text\": 1}").expect("a file");
    write(folder.path().join("bad.json"), b"{\"model\": 3}").expect("a file");
    write(folder.path().join("taken.bin"), b"mine").expect("a file");
    create_dir(folder.path().join("dir")).expect("a folder");
    succeed(&format!("prepare {text} --out {place}/done.bin"));
    let out = format!("--out {place}/out.bin");
    for (line, hint) in [
        (format!("{place}/none {out}"), "No such file"),
        (format!("{text} {place}/dir {out}"), "dir has no file: name one with text"),
        (format!("{place}/lines.jsonl {out}"), "line 2 of "),
        (
            format!("{place}/lines.jsonl --field body {out}"),
            "it has no field `body`, but text in `text`",
        ),
        (
            format!("{text} --tokenizer gpt2 --end-of-text END {out}"),
            "its end-of-text is `<|endoftext|>`",
        ),
        (format!("{text} --end-of-text END {out}"), "leave the end-of-text `END` out"),
        (format!("{text} {place}/empty {out}"), "empty is empty"),
        (format!("{text} {place}/latin --tokenizer gpt2 {out}"), "is not UTF-8 at byte 3: choose"),
        (format!("{text} - --prompt-field q {out}"), "prompts need .jsonl files"),
        (format!("{text} --tokenizer gpt9 {out}"), "choose bytes, gpt2 or a tokenizer.json file"),
        (format!("{text} --tokenizer {place}/bad.json {out}"), "bad.json is no tokenizer.json: "),
        (format!("{text} --out {place}/taken.bin"), "is there already"),
        (format!("{text} --out {place}/out.txt"), "must end in .bin"),
        (format!("{text} --out {place}/dir/none/out.bin"), "cannot write"),
        (format!("{text} {place}/done.bin {out}"), "done.bin: it is prepared already"),
        (String::new(), "required"),
    ] {
        refuse(&format!("prepare {line}"), hint, folder.path());
    }
    succeed(&format!("prepare {place}/latin --tokenizer bytes {out}"));
}

#[test]
fn a_byte_that_ends_documents_is_named_by_its_place() {
    let folder = folder();
    let place = folder.path().display();
    let line = "{\"text\": \"a\"}\n";
    write(folder.path().join("1.jsonl"), line.repeat(2)).expect("a file");
    write(folder.path().join("2.jsonl"), format!("{line}{{\"text\": \"a\\u0000\"}}\n"))
        .expect("a file");
    let hint = format!("line 2 of {place}/2.jsonl: a byte of its text is the byte that stands");
    let lines = format!("prepare {place}/1.jsonl {place}/2.jsonl --out {place}/a.bin");
    refuse(&lines, &hint, folder.path());
    create_dir(folder.path().join("texts")).expect("a folder");
    write(folder.path().join("texts/1.txt"), "a\0b").expect("a file");
    let hint = format!("byte 1 of {place}/texts/1.txt is the byte that stands");
    refuse(&format!("prepare {place}/texts --out {place}/a.bin"), &hint, folder.path());
}

#[test]
fn a_token_that_ends_documents_is_named_by_its_place() {
    let folder = folder();
    let place = folder.path().display();
    let at = |name: &str| folder.path().join(name);
    let ends = WORDS.replace("\"the\": 5", "\"the\": 5, \"</s>\": 6").replace(
        "\"added_tokens\": []",
        "\"added_tokens\": [{\"id\": 6, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, \
         \"rstrip\": false, \"normalized\": false, \"special\": true}]",
    );
    write(at("words.json"), ends).expect("a file");
    let out = format!("--tokenizer {place}/words.json --out {place}/a.bin");
    let line = "{\"q\": \"the\", \"text\": \"pipe\"}\n";
    let twice = "{\"q\": \"the\", \"text\": \"pipe</s>stage\"}\n";
    let asked = "{\"q\": \"the</s>\", \"text\": \"pipe\"}\n";
    let hint = "the token that stands behind each document, `</s>`: take it out, or name another with --end-of-text";
    for wrong in [twice, asked] {
        write(at("1.jsonl"), format!("{line}{wrong}")).expect("a file");
        let hint = format!("line 2 of {place}/1.jsonl: its text has {hint}");
        refuse(&format!("prepare {place}/1.jsonl --prompt-field q {out}"), &hint, folder.path());
    }
    create_dir(at("texts")).expect("a folder");
    write(at("texts/1.txt"), "pipe </s> stage").expect("a file");
    let hint = format!("byte 5 of {place}/texts/1.txt begins {hint}");
    refuse(&format!("prepare {place}/texts {out}"), &hint, folder.path());
    // A text alone is no document.
    succeed(&format!("prepare {place}/texts/1.txt {out}"));
}

#[test]
fn more_names_than_a_description_holds_are_refused_before_the_work() {
    let folder = folder();
    let text = folder.path().join("x".repeat(200));
    write(&text, "a text").expect("a file");
    let how = Preparation {
        tokenizer: "bytes".into(),
        field: "text".into(),
        prompt_field: None,
        end_of_text: None,
        begin_of_text: false,
    };
    let out = PreparedFiles::new(&folder.path().join("out.bin"));
    let refusal =
        chimera::data::prepare(&vec![text; 70_000], &how, &out, |_| panic!("a text is read"));
    let refusal = refusal.expect_err("a description of 20 MB").to_string();
    assert!(refusal.ends_with("the names of 70000 texts: name their folder instead"), "{refusal}");
    assert_eq!(read_dir(folder.path()).expect("a folder").count(), 1);
}

/// `prepare` with an open standard input.
fn start_reading(line: &str) -> (Running, ChildStdin) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
    command.stdin(Stdio::piped());
    let mut running = start_with(command, &format!("prepare - {line}"));
    let stdin = running.child.stdin.take().expect("an input");
    (running, stdin)
}

#[test]
fn standard_input_is_a_text() {
    let folder = folder();
    let (text, place) = (text(&folder), folder.path().display());
    succeed(&format!("prepare {} --tokenizer gpt2 --out {place}/a.bin", text.display()));
    let (running, mut stdin) = start_reading(&format!("--tokenizer gpt2 --out {place}/b.bin"));
    stdin.write_all(&read(&text).expect("a text")).expect("written");
    drop(stdin);
    let ran = running.wait();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let data = |name: &str| read(folder.path().join(name)).expect("data");
    assert_eq!(data("a.bin"), data("b.bin"));
    let (running, _) = start_reading(&format!("--out {place}/c.bin"));
    let ran = running.wait();
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("data file - is empty"), "{}", ran.stderr);
    assert!(!folder.path().join("c.bin.chimera-part").exists());
    let hint = "standard input (-) is named 2 times, but is there once: name it once";
    refuse(&format!("prepare - - --out {place}/c.bin"), hint, folder.path());
}

/// A folder with a file of no lines, beside which prompts may be asked for.
fn lines() -> TempDir {
    let folder = folder();
    write(folder.path().join("x.jsonl"), "").expect("a file");
    folder
}

pub(super) fn wait_for(path: &Path) {
    let since = Instant::now();
    while !path.exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing is written");
        sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_interrupt_leaves_nothing() {
    let folder = folder();
    let out = format!("--prompt-field prompt --out {}/a.bin", folder.path().display());
    let prompts = lines();
    let lines = prompts.path().join("x.jsonl");
    let (running, _stdin) = start_reading(&format!("{} {out}", lines.display()));
    wait_for(&folder.path().join("a.bin.chimera-part"));
    let pid = running.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(running.wait().code, Some(130));
    assert_eq!(read_dir(folder.path()).expect("a folder").count(), 0);
}

/// Whenever it was killed.
#[test]
fn what_a_killed_one_left_is_not_in_the_way() {
    let folder = folder();
    let (at, place) = (|name: &str| folder.path().join(name), folder.path().display());
    let written = |name: &str, content: &str| write(at(name), content).expect("a file");
    let names = |of: &str| {
        let all = read_dir(at(of)).expect("a folder").map(|file| file.expect("a file").file_name());
        let mut all: Vec<_> = all.map(|name| name.display().to_string()).collect();
        all.sort();
        all
    };
    create_dir(at("out")).expect("a folder");
    written("x.jsonl", "{\"q\": \"?\", \"a\": \"yes\"}\n");
    let out = format!("--field a --prompt-field q --out {place}/out/a.bin");
    let (mut running, _stdin) = start_reading(&format!("{place}/x.jsonl {out}"));
    wait_for(&at("out/a.bin.targets.chimera-part"));
    running.child.kill().expect("killed");
    running.wait();
    assert_eq!(names("out"), ["a.bin.chimera-part", "a.bin.targets.chimera-part"]);
    succeed(&format!("prepare {place}/x.jsonl {out}"));
    assert_eq!(names("out"), ["a.bin", "a.bin.json", "a.bin.targets"]);

    // While the files got their names, in the folder of the texts.
    create_dir(at("texts")).expect("a folder");
    written("texts/1.txt", "yes");
    for name in ["b.bin.chimera-part", "b.bin.targets", "b.bin.tokenizer.json.77.part"] {
        written(&format!("texts/{name}"), "old");
    }
    let described = read_to_string(at("out/a.bin.json")).expect("a description");
    written("texts/b.bin.json", &described);
    succeed(&format!("prepare {place}/texts --out {place}/texts/../texts/b.bin"));
    assert_eq!(names("texts"), ["1.txt", "b.bin", "b.bin.json"]);
    assert_eq!(read(at("texts/b.bin")).expect("data"), b"y\0e\0s\0\0\0");

    // What nobody left is a user's own, and what is no description too.
    written("c.bin.json", "mine");
    let hint = "c.bin.json is there already: choose another --out";
    let line = format!("prepare {place}/x.jsonl --field a --out {place}/c.bin");
    refuse(&line, hint, folder.path());
    written("c.bin.chimera-part", "old");
    refuse(&line, hint, folder.path());
    for name in ["c.bin.json", "c.bin.chimera-part"] {
        remove_file(at(name)).expect("removed");
    }
    written("c.bin.part", "mine");
    succeed(&line);
    assert_eq!(read(at("c.bin.part")).expect("a file"), b"mine");
}

#[test]
fn data_is_written_by_one_at_a_time() {
    let folder = folder();
    let (at, place) = (|name: &str| folder.path().join(name), folder.path().display());
    let text = text(&folder);
    let lines = lines();
    let with_prompts = format!("{}/x.jsonl --prompt-field q", lines.path().display());
    let (running, mut stdin) = start_reading(&format!("{with_prompts} --out {place}/a.bin"));
    wait_for(&at("a.bin.targets.chimera-part")); // it has the lock by then
    let second = format!("prepare {} --out {place}/a.bin", text.display());
    refuse(&second, "a.bin is being written by another process: wait for it", folder.path());
    stdin.write_all(b"ab").expect("written");
    drop(stdin);
    let ran = running.wait();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read(at("a.bin")).expect("data"), b"a\0b\0\0\0", "the input is a document");
    refuse(&second, "a.bin is there already", folder.path());

    // What took its place is another's.
    let (running, mut stdin) = start_reading(&format!("{with_prompts} --out {place}/b.bin"));
    wait_for(&at("b.bin.targets.chimera-part"));
    remove_file(at("b.bin.chimera-part")).expect("removed");
    write(at("b.bin.chimera-part"), "another's").expect("a file");
    stdin.write_all(b"ab").expect("written");
    drop(stdin);
    let ran = running.wait();
    assert_eq!(ran.code, Some(9));
    assert!(
        ran.stderr.contains("b.bin.chimera-part: it was removed or replaced"),
        "{}",
        ran.stderr
    );
    assert!(!at("b.bin").exists());
    assert_eq!(read(at("b.bin.chimera-part")).expect("a file"), b"another's");
}

#[test]
fn descriptions_that_lie_are_refused() {
    let folder = folder();
    let (text, place) = (text(&folder), folder.path().display());
    let data = format!("{place}/data.bin");
    succeed(&format!("prepare {} --out {data}", text.display()));
    let sound = read_to_string(format!("{data}.json")).expect("a description");
    for (was, is, hint) in [
        ("\"format\": 1", "\"format\": 3", "data.bin.json: format 3 needs a later chimera"),
        ("\"vocab\": 256", "\"vocab\": 99", "it tells of 99 ids, but the tokenizer has 256"),
        ("\"vocab\": 256", "\"vocab\": 99999999", "a vocabulary of 99999999 ids"),
        ("\"tokens\": ", "\"tokens\": 1", "prepare it again"),
        ("\"bytes\",", "\"file\",", "data.bin.tokenizer.json: No such file"),
        ("\"bytes\",", "\"words\",", "unknown variant `words`"),
        ("}", "", "data.bin.json: expected `,` or `}`"),
    ] {
        write(format!("{data}.json"), sound.replace(was, is)).expect("a file");
        refuse(&format!("{MODEL} --data {data}"), hint, folder.path());
    }
}

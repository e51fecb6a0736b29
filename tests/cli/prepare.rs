//! `chimera prepare`, and training on its output.

use std::fs::{create_dir, read, read_dir, read_to_string, remove_file, write};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use chimera::data::{Preparation, PreparedFiles};
use tempfile::TempDir;

use crate::command::{Ran, Running, chimera, folder, start_with, text};

pub(super) const MODEL: &str =
    "train --layers 2 --depth 2 --hidden 4 --heads 1 --context 4 --steps 2 --threads 1";

/// A tokenizer whose tokens are words.
pub(super) const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
    "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0,
    "pipe": 1, "stage": 2, "worker": 3, "bubble": 4, "the": 5}}}"#;

pub(super) fn succeed(line: &str) -> Ran {
    let ran = chimera(line);
    assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    ran
}

/// Checks that a command is refused as wrong usage and adds nothing to `folder`.
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
    // Longer than a block, with a character of several bytes across its end.
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

/// A tokenizer puts its begin-of-text token before a text once, however large the text is.
#[test]
fn a_text_has_one_beginning() {
    let folder = folder();
    let place = folder.path().display();
    let prepend = r#""normalizer": {"type": "Prepend", "prepend": "the "}"#;
    write(folder.path().join("t.json"), WORDS.replace(r#""normalizer": null"#, prepend))
        .expect("a file");
    write(folder.path().join("text"), "pipe stage worker\n".repeat(300_000)).expect("a file");
    succeed(&format!("prepare {place}/text --tokenizer {place}/t.json --out {place}/a.bin"));
    let bytes = read(folder.path().join("a.bin")).expect("data");
    let (first, others) = bytes.split_at(2);
    assert_eq!((first, others.len()), (&[5, 0][..], 6 * 300_000));
    assert!(others.chunks(6).all(|line| line == [1, 0, 2, 0, 3, 0]));
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
        (format!("{text} {place}/done.bin {out}"), "done.bin: it is already prepared"),
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
    let hint = format!(
        "line 2 of {place}/2.jsonl: a byte of its text is the byte that ends each document"
    );
    let lines = format!("prepare {place}/1.jsonl {place}/2.jsonl --out {place}/a.bin");
    refuse(&lines, &hint, folder.path());
    create_dir(folder.path().join("texts")).expect("a folder");
    write(folder.path().join("texts/1.txt"), "a\0b").expect("a file");
    let hint = format!("byte 1 of {place}/texts/1.txt is the byte that ends each document");
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
    let hint = "the token that ends each document, `</s>`: take it out, or name another with --end-of-text";
    for wrong in [twice, asked] {
        write(at("1.jsonl"), format!("{line}{wrong}")).expect("a file");
        let hint = format!("line 2 of {place}/1.jsonl: its text has {hint}");
        refuse(&format!("prepare {place}/1.jsonl --prompt-field q {out}"), &hint, folder.path());
    }
    create_dir(at("texts")).expect("a folder");
    write(at("texts/1.txt"), "pipe </s> stage").expect("a file");
    let hint = format!("byte 5 of {place}/texts/1.txt begins {hint}");
    refuse(&format!("prepare {place}/texts {out}"), &hint, folder.path());
    // A single text is not a document.
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
        chat: false,
        chat_template: None,
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

/// Starts `prepare` with an open standard input.
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
    let hint = "standard input (-) is named 2 times, but exists only once: name it once";
    refuse(&format!("prepare - - --out {place}/c.bin"), hint, folder.path());
}

/// A folder with a file without lines, for which prompts may be requested.
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

/// Left-over files of a killed `prepare` do no harm, whenever it was killed.
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

    // It was killed while the files got their names, in the folder of the texts.
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

    // Files that no `prepare` left are the user's, and so is a file that is not a description.
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
    wait_for(&at("a.bin.targets.chimera-part")); // it holds the lock by then
    let second = format!("prepare {} --out {place}/a.bin", text.display());
    refuse(&second, "a.bin is being written by another process: wait for it", folder.path());
    stdin.write_all(b"ab").expect("written");
    drop(stdin);
    let ran = running.wait();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read(at("a.bin")).expect("data"), b"a\0b\0\0\0", "the input is a document");
    refuse(&second, "a.bin is there already", folder.path());

    // The file that replaced it belongs to somebody else.
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
        ("\"vocab\": 256", "\"vocab\": 99", "it describes 99 ids, but the tokenizer has 256"),
        ("\"vocab\": 256", "\"vocab\": 99999999", "a vocabulary of 99999999 ids"),
        ("\"tokens\": ", "\"tokens\": 1", "prepare it again"),
        ("\"bytes\",", "\"file\",", "data.bin.tokenizer.json: No such file"),
        ("\"bytes\",", "\"words\",", "unknown variant `words`"),
        ("}", "", "data.bin.json: expected `,` or `}`"),
    ] {
        write(format!("{data}.json"), sound.replace(was, is)).expect("a file");
        refuse(&format!("{MODEL} --data {data}"), hint, folder.path());
    }
    let lines = folder.path().join("lines.jsonl");
    write(&lines, "{\"text\":\"In the beginning\"}\n".repeat(40)).expect("lines");
    succeed(&format!("prepare {} --tokenizer gpt2 --out {place}/lines.bin", lines.display()));
    let described = format!("{place}/lines.bin.json");
    let sound = read_to_string(&described).expect("a description");
    let wrong = sound.replace("\"token\": 50256", "\"token\": 50257");
    assert_ne!(wrong, sound);
    write(&described, wrong).expect("a file");
    let hint = "token 50257 ends documents, but the vocabulary has 50257 ids";
    refuse(&format!("{MODEL} --data {place}/lines.bin"), hint, folder.path());
}

//! Links in a model's folder: none copies a file from elsewhere into an export.
#![cfg(unix)]

use std::fs::{copy, create_dir_all, read, read_dir, read_to_string, remove_file, rename, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use chimera::formats::hf;
use tempfile::TempDir;

use super::fixture;
use crate::command::{chimera, folder};

const SECRET: &str = "{\"auth\": \"s3cr3t\"}";

/// A copy of a fixture in the folder `model`, beside a file with a secret.
fn copied(kind: &str) -> (TempDir, PathBuf) {
    let folder = folder();
    let model = folder.path().join("model");
    create_dir_all(&model).expect("a folder");
    for entry in read_dir(fixture(kind)).expect("a fixture") {
        let entry = entry.expect("a file");
        copy(entry.path(), model.join(entry.file_name())).expect("a copy");
    }
    write(folder.path().join("secret"), SECRET).expect("written");
    (folder, model)
}

fn refusal(model: &Path) -> String {
    format!("{:#}", hf::read(model).expect_err("it is a link"))
}

#[test]
fn every_file_of_a_model_must_lie_in_its_folder() {
    let files = [
        ("tied", "config.json"),
        ("tied", "model.safetensors"),
        ("tied", "generation_config.json"),
        ("bf16-sharded", "model.safetensors.index.json"),
    ];
    for (kind, name) in files {
        let (folder, model) = copied(kind);
        let file = model.join(name);
        if file.exists() {
            rename(&file, folder.path().join("elsewhere")).expect("moved");
        } else {
            write(folder.path().join("elsewhere"), SECRET).expect("written");
        }
        symlink("../elsewhere", &file).expect("a link");
        let said = refusal(&model);
        let wanted = format!("`{name}` is a link out of the folder: copy the file itself");
        assert!(said.contains(&wanted), "{name}: {said}");
    }
}

#[test]
fn blobs_that_lie_elsewhere_are_not_the_hubs() {
    let (folder, model) = copied("tied");
    let cache = folder.path().join("cache");
    let snapshot = cache.join("snapshots/0123");
    create_dir_all(&snapshot).expect("a folder");
    for entry in read_dir(&model).expect("a folder") {
        let name = entry.expect("a file").file_name();
        symlink(Path::new("../../blobs").join(&name), snapshot.join(&name)).expect("a link");
    }
    symlink(&model, cache.join("blobs")).expect("a link");
    assert!(refusal(&snapshot).contains("is a link out of the folder"), "{}", refusal(&snapshot));
    remove_file(cache.join("blobs")).expect("removed");
    rename(&model, cache.join("blobs")).expect("moved");
    hf::read(&snapshot).expect("a model");
}

#[test]
fn nothing_is_exported_or_trained_that_was_not_read() {
    for name in ["tokenizer.json", "generation_config.json"] {
        let (folder, model) = copied("tied");
        symlink("../secret", model.join(name)).expect("a link");
        let ids: Vec<u8> = (0..500u16).flat_map(|i| (i % 20).to_le_bytes()).collect();
        write(folder.path().join("ids.bin"), ids).expect("written");
        let at = |name: &str| folder.path().join(name).display().to_string();
        for line in [
            format!("export {} --out {}", model.display(), at("out")),
            format!(
                "train --init {} --data {} --out {} --save {} --steps 1 --depth 1 --threads 1",
                model.display(),
                at("ids.bin"),
                at("run"),
                at("out")
            ),
        ] {
            let ran = chimera(&line);
            assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
            let wanted = format!("`{name}` is a link out of the folder");
            assert!(ran.stderr.contains(&wanted), "{line}: {}", ran.stderr);
            assert!(!folder.path().join("out").exists(), "{line}");
        }
    }
}

#[test]
fn what_is_not_a_tokenizer_is_not_copied() {
    let (folder, model) = copied("tied");
    write(model.join("tokenizer.json"), SECRET).expect("written");
    let out = folder.path().join("out");
    let ran = chimera(&format!("export {} --out {}", model.display(), out.display()));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("tokenizer.json is no tokenizer.json: "), "{}", ran.stderr);
    assert!(!out.exists());
}

#[test]
fn a_pipe_among_the_files_of_a_model_is_not_waited_for() {
    for name in ["config.json", "model.safetensors", "generation_config.json"] {
        let (folder, model) = copied("tied");
        let _ = remove_file(model.join(name));
        let made = Command::new("mkfifo").arg(model.join(name)).status();
        assert!(made.is_ok_and(|status| status.success()));
        let out = folder.path().join("out");
        let ran = chimera(&format!("export {} --out {}", model.display(), out.display()));
        // An unreadable generation_config.json is treated as missing.
        let code = if name.starts_with("generation") { 0 } else { 2 };
        assert_eq!(ran.code, Some(code), "{name}: {}", ran.stderr);
        assert!(code == 0 || ran.stderr.contains("not a regular file"), "{}", ran.stderr);
    }
}

/// A folder that cannot be read is not taken for one without a model.
#[test]
fn a_file_that_cannot_be_looked_at_is_named_with_the_reason() {
    let (_folder, model) = copied("tied");
    let config = model.join("config.json");
    remove_file(&config).expect("removed");
    symlink("config.json", &config).expect("a link to itself");
    let said = refusal(&model);
    assert!(said.starts_with(&format!("cannot read {}: ", config.display())), "{said}");
}

#[test]
fn links_within_the_folder_are_read() {
    let (_folder, model) = copied("tied");
    rename(model.join("config.json"), model.join("mine.json")).expect("moved");
    symlink("mine.json", model.join("config.json")).expect("a link");
    hf::read(&model).expect("a model");
    let out = model.join("out");
    let ran = chimera(&format!("export {} --out {}", model.display(), out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(read_to_string(out.join("config.json")).is_ok_and(|text| text.contains("gpt2")));
    assert!(!read(out.join("model.safetensors")).expect("weights").is_empty());
}

//! Completions and manual pages.

use crate::command::{chimera, folder};

#[test]
fn completions_know_every_subcommand_and_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = chimera(&format!("completions {shell}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{shell}");
        for word in ["train", "simulate", "gallery", "micro-batches", "trace-steps"] {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
    }
    let ran = chimera("completions tcsh");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("bash") && ran.stderr.contains("fish"), "{}", ran.stderr);
}

#[test]
fn completions_know_values() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = chimera(&format!("completions {shell}"));
        for word in ["lamb", "eager-opt", "gpt2-1558m", "zb-h1", "wgpu", "halving"] {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn help_stands_under_headings_and_lists_presets() {
    let help = chimera("train --help").stdout;
    assert!(help.starts_with("Examples:\n"), "{help}");
    for line in ["Schedule:", "Model:", "Optimizer:", "Devices:", "Checkpoints:"] {
        assert!(help.lines().any(|l| l == line), "{line}: {help}");
    }
    for preset in ["tiny", "gpt2-1558m", "bert-48"] {
        assert!(help.contains(preset), "{help}");
    }
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = folder();
    let man = folder.path().join("share/man1");
    let ran = chimera(&format!("man {}", man.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for (page, word) in [
        ("chimera.1", "chimera\\-train(1)"),
        ("chimera-train.1", "eval\\-every"),
        ("chimera-schedule-show.1", "micro\\-batches"),
        ("chimera-config-check.1", "TOML files"),
    ] {
        let text =
            std::fs::read_to_string(man.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.contains(".TH chimera") && text.contains(word), "{page}: {text}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let ran = chimera(&format!("man {}", file.join("in").display()));
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("manual pages") && ran.stderr.contains("file/in"),
        "{}",
        ran.stderr
    );
}

//! `eval` and `generate` over several workers: what one gives.

use std::fs::write;

use serde_json::Value;

use super::prepare::{refuse, succeed};
use crate::command::{folder, text};

#[test]
fn a_text_is_scored_by_stages_side_by_side() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    for model in ["gpt2", "llama --tied true"] {
        let sizes = "--layers 5 --hidden 16 --heads 2 --context 24 --depth 1 --steps 3 --threads 1";
        let save = format!("{place}/{}", &model[..4]);
        succeed(&format!(
            "train --model {model} {sizes} --data {text} --save {save} --out {save}-run"
        ));
        for windows in ["", "--stride 5", "--context 7 --stride 3"] {
            let score = |options: &str| -> Value {
                let line = format!("eval --model {save} --data {text} {windows} --json {options}");
                serde_json::from_str(&succeed(&line).stdout).expect("JSON")
            };
            let one = score("");
            for (options, workers) in [
                ("--depth 2", 2),
                ("--depth 5 --schedule 1f1b --micro-batches 3", 5),
                ("--depth 2 --schedule chimera --width 2", 4),
                ("--depth 2 --schedule \"interleaved --chunks 2\"", 2),
                ("--depth 1 --width 2", 2),
            ] {
                let several = score(options);
                assert_eq!(several["workers"], workers);
                for key in ["loss", "tokens"] {
                    assert_eq!(several[key], one[key], "{model} {windows} {options}: {key}");
                }
            }
        }
        let line = format!("eval --model {save} --data {text} --depth");
        refuse(
            &format!("{line} 6"),
            "6 stages are more than the model's 5 layer(s)",
            folder.path(),
        );
        refuse(&format!("{line} 0"), "it must be a whole number of at least 1", folder.path());
    }
}

/// The texts end at different lengths, and grow beyond the window.
#[test]
fn texts_go_on_in_a_pipeline_as_alone() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    for model in ["gpt2", "llama"] {
        let sizes = "--layers 6 --hidden 16 --heads 2 --context 24 --depth 1 --steps 3 --threads 1";
        let save = format!("{place}/{model}");
        succeed(&format!(
            "train --model {model} {sizes} --data {text} --save {save} --out {save}-run"
        ));
        let prompts: String = ["the worker and the stage", "a", "of idle", "pipe to", "bubble"]
            .map(|prompt| format!("--prompt \"{prompt}\" "))
            .concat();
        for options in ["--tokens 30", "--tokens 12 --stop e --temperature 0", "--tokens 0"] {
            let line = format!("generate --model {save} {prompts} --json {options}");
            let alone = succeed(&line).stdout;
            for workers in [
                "--depth 2",
                "--depth 6 --micro-batches 2",
                "--depth 2 --schedule chimera --width 2",
                "--depth 3 --schedule \"interleaved --chunks 2\"",
            ] {
                let ran = succeed(&format!("{line} {workers}"));
                assert_eq!(ran.stdout, alone, "{model} {options} {workers}");
            }
        }
        let file = |depth: usize| {
            let (path, shown) = (
                format!("{save}-{depth}.json"),
                format!("schedule show 1f1b --depth {depth} --json"),
            );
            write(&path, succeed(&shown).stdout).expect("a file");
            path
        };
        let one = format!("generate --model {save} --prompt pipe --tokens 5");
        let by_file = succeed(&format!("{one} --schedule {}", file(3))).stdout;
        assert_eq!(by_file, succeed(&one).stdout);
        let too_deep = format!("{one} --schedule {}", file(7));
        refuse(&too_deep, "7 stages are more than the model's 6 layer(s)", folder.path());
        assert_eq!(succeed(&format!("{one} --depth 3")).stdout, succeed(&one).stdout);
        let cut = format!("{one} --depth 2 --schedule \"chimera --scaling halving\"");
        refuse(&cut, "cuts micro-batches", folder.path());
    }
}

//! `chimera config`, and files of settings.

use std::fs::write;

use serde_json::Value;

use crate::command::{Ran, chimera, folder};

/// Shows the settings of a file with this text.
fn show(text: &str, options: &str) -> Ran {
    let folder = folder();
    let path = folder.path().join("run.toml");
    write(&path, text).expect("a file");
    let ran = chimera(&format!("config show --config {} {options}", path.display()));
    let place = format!("{}/", folder.path().display());
    Ran { stderr: ran.stderr.replace(&place, ""), ..ran }
}

/// `key = value` of each line, without the comments that tell where values come from.
fn pairs(shown: &str) -> Vec<String> {
    let pair = |line: &str| line.split("  #").next().unwrap_or(line).trim_end().to_string();
    shown.lines().map(pair).collect()
}

#[test]
fn what_is_shown_reads_back() {
    let options = "--depth 8 --lr 0.30000000000000004 --scaling halving --seed 9223372036854775807 \
                   --preset gpt2-124m --tied false --data a.txt b.txt --save w";
    let first = chimera(&format!("config show {options}"));
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""));
    let again = show(&first.stdout, "");
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(pairs(&first.stdout), pairs(&again.stdout));
    for pair in ["depth = 8", "lr = 0.30000000000000004", "layers = 12", "tied = false"] {
        assert!(pairs(&again.stdout).iter().any(|p| p == pair), "{}", again.stdout);
    }
}

#[test]
fn the_command_line_wins_and_origins_are_told() {
    let shown = show("depth = 2\n\nwidth = 3\n", "--width 2 --json");
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!((&shown["depth"]["value"], &shown["width"]["value"]), (&2.into(), &2.into()));
    assert!(shown["depth"]["origin"].as_str().is_some_and(|o| o.ends_with("run.toml:1")));
    assert_eq!(shown["width"]["origin"], "command line");
    assert_eq!(shown["hidden"]["origin"], "preset tiny");
    assert_eq!(shown["schedule"]["origin"], "default");
}

#[test]
fn refusals_name_file_and_line_and_what_would_do() {
    for (text, refusal) in [
        ("depth = 4\n\ndepht = 8\n", "run.toml:3: unknown key `depht`: did you mean `depth`?"),
        (
            "micro_batches = 8",
            "run.toml:1: unknown key `micro_batches`: did you mean `micro-batches`?",
        ),
        ("\nsteps = 0", "run.toml:2: `steps` is 0; it must be a whole number from 1"),
        ("lr = -1", "run.toml:1: `lr` is -1.0; it must be a number from 0"),
        ("lr = nan", "run.toml:1: `lr` is nan; it must be a number from 0"),
        ("depth = 'four'", "run.toml:1: `depth`: invalid type: string \"four\""),
        (
            "schedule = 'chimaera'",
            "run.toml:1: `schedule` is \"chimaera\"; it must be one of gpipe,",
        ),
        (
            "sync = 'never'",
            "run.toml:1: `sync` is \"never\"; it must be one of at-end, eager, eager-opt",
        ),
        ("depth = 4\nwidth", "run.toml:2: "),
        ("extends = 'base.toml'", "run.toml:1: cannot read base.toml: No such file"),
        ("extends = 'run.toml'", "run.toml:1: `extends` runs in a circle"),
    ] {
        for command in ["", "--json"] {
            let ran = show(text, command);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{text}");
            assert!(ran.stderr.starts_with(&format!("error: {refusal}")), "{}", ran.stderr);
        }
    }
}

#[test]
fn training_reads_the_same_files() {
    let folder = folder();
    let path = folder.path().join("run.toml");
    write(&path, "stepz = 3").expect("a file");
    let ran = chimera(&format!("train --config {}", path.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(
        ran.stderr.contains("run.toml:1: unknown key `stepz`: did you mean `steps`?"),
        "{}",
        ran.stderr
    );
}

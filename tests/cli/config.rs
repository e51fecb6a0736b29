//! `chimera config` and settings files.

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

/// `key = value` of each line, without the comments about their origins.
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

/// As in scripts that put their own options before the user's.
#[test]
fn of_an_option_that_is_given_again_the_last_counts() {
    let options =
        "--depth 2 --tied --schedule gems --json --data a --depth 8 --tied false --data b c --json";
    let shown = show("", options);
    let shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!((&shown["depth"]["value"], &shown["tied"]["value"]), (&8.into(), &false.into()));
    assert_eq!(shown["data"]["value"], serde_json::json!(["a", "b", "c"]));
    for (line, same) in [
        (
            "simulate gems --depth 2 --split-backward --depth 4 --json --json",
            "gems --split-backward --json",
        ),
        ("schedule compare --depth 2 --depth 4 \"chimera --pipes 2 --pipes 4\"", ""),
    ] {
        let again = chimera(line);
        assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""), "{line}");
        if !same.is_empty() {
            assert_eq!(again.stdout, chimera(&format!("simulate {same}")).stdout);
        }
    }
    assert!(chimera("simulate gems dapple").stderr.contains("unexpected argument 'dapple'"));
}

#[test]
fn refusals_name_file_and_line_and_what_would_do() {
    for (text, refusal) in [
        ("depth = 4\n\ndepht = 8\n", "run.toml:3: unknown key `depht`: did you mean `depth`?"),
        (
            "tensor_parallel_degree = 8",
            "run.toml:1: `tensor_parallel_degree` is no key: there is no tensor",
        ),
        ("\nsteps = 0", "run.toml:2: `steps` is 0; it must be a whole number from 1"),
        ("lr = -1", "run.toml:1: `lr` is -1.0; it must be a number from 0"),
        ("lr = nan", "run.toml:1: `lr` is nan; it must be a number from 0"),
        (
            "depth = 'four'",
            "run.toml:1: `depth` is \"four\"; it must be a whole number from 1 to 8192",
        ),
        (
            "schedule = 'chimaera'",
            "run.toml:1: `schedule` is \"chimaera\": did you mean `chimera`?",
        ),
        (
            "sync = 'never'",
            "run.toml:1: `sync` is \"never\"; it must be one of at-end, eager, eager-opt, in-backward",
        ),
        ("log = ''", "run.toml:1: `log` is \"\"; it must be a text that is not empty"),
        ("data = ['a', '']", "run.toml:1: `data` is [\"a\", \"\"]; it must be a text"),
        ("data = 3", "run.toml:1: `data`: invalid type: integer `3`"),
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

/// Users of other programs write such names.
#[test]
fn underscores_sections_and_other_names_are_read() {
    let text = "[training]\nmicro_batches = 6\nseq_len = 32\n[parallelism]\nschedule = 'GPipe'\n";
    let shown = show(text, "--pipeline_parallel_size=2 --dp 3").stdout;
    for pair in
        ["micro-batches = 6", "sequence = 32", "schedule = \"gpipe\"", "depth = 2", "width = 3"]
    {
        assert!(pairs(&shown).iter().any(|p| p == pair), "{shown}");
    }
}

#[test]
fn one_path_is_a_list_of_paths() {
    let shown = show("data = 'my.txt'", "").stdout;
    assert!(pairs(&shown).iter().any(|pair| pair == "data = [\"my.txt\"]"), "{shown}");
}

/// The error names only the file, even if it was given without `--config`.
#[test]
fn a_file_that_is_not_there_is_named_alone() {
    for command in ["config check", "slurm", "train --config"] {
        let ran = chimera(&format!("{command} nofile.toml"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{command}");
        let refusal = "error: cannot read nofile.toml: No such file";
        assert!(ran.stderr.starts_with(refusal), "{command}: {}", ran.stderr);
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

/// Checks files with these texts, `0.toml`, `1.toml`, …
fn check(texts: &[&str]) -> Ran {
    let folder = folder();
    let mut line = "config check".to_string();
    for (number, text) in texts.iter().enumerate() {
        let path = folder.path().join(format!("{number}.toml"));
        write(&path, text).expect("a file");
        line += &format!(" {}", path.display());
    }
    let ran = chimera(&line);
    let place = format!("{}/", folder.path().display());
    Ran { stdout: ran.stdout.replace(&place, ""), stderr: ran.stderr.replace(&place, ""), ..ran }
}

#[test]
fn a_sound_file_is_proven_without_its_data() {
    let plain = "data = ['not-there.txt']\ndepth = 4\noptimizer = 'adamw'";
    let wide = "preset = 'gpt2-64'\nschedule = '1f1b'\nwidth = 64\ndepth = 4";
    let ran = check(&[plain, wide]);
    let warning = "warning: 0.toml: there is no not-there.txt\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), warning));
    let lines: Vec<_> = ran.stdout.lines().collect();
    let [first, second] = lines[..] else { panic!("{}", ran.stdout) };
    assert!(
        first.starts_with("0.toml: sound: chimera on 1 x 4 worker(s), proven with 1 message(s)"),
        "{first}"
    );
    assert!(
        first.contains("; 956352 parameters; all ranks together need 29.2 MiB for weights"),
        "{first}"
    );
    assert!(second.starts_with("1.toml: sound: 1f1b on 64 x 4 worker(s)"), "{second}");
}

#[test]
fn figures_without_the_data_say_their_vocabulary() {
    let ran = check(&["steps = 9\ndata = ['none.txt', 'none.bin']"]);
    let warning = "warning: 0.toml:2: the vocabulary follows from none.bin, which is not here: say `vocab`, or run \
                   where the data is; the figures are for vocab 256\n";
    assert!(ran.code == Some(0) && ran.stderr.ends_with(warning), "{}", ran.stderr);
    for sure in ["data = ['none.bin']\nvocab = 50257", "data = ['none.txt']"] {
        let ran = check(&[sure]);
        assert!(ran.code == Some(0) && !ran.stderr.contains("vocab"), "{}", ran.stderr);
    }
}

#[test]
fn every_file_is_checked_and_every_refusal_told() {
    let bad = "schedule = 'chimera'\n\ndept = 3";
    let ran = check(&[bad, "steps = 9", "depth = 3", "heads = 5"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stdout.starts_with("1.toml: sound"), "{}", ran.stdout);
    let errors: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    for (error, start) in errors.iter().zip([
        "error: 0.toml:3: unknown key `dept`: did you mean `depth`?",
        "error: 2.toml: ",
        "error: 3.toml: hidden 96 is not divisible by heads 5",
    ]) {
        assert!(error.starts_with(start), "{error}");
    }
    assert_eq!(errors.len(), 3, "{}", ran.stderr);
    let ran = check(&["heads = 5", "schedule = 'gone.json'"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(chimera("config check").code, Some(2));
}

/// As in a training, whatever is in the files that it names.
#[test]
fn what_no_data_could_mend_is_refused() {
    let small = "layers = 2\nhidden = 8\nheads = 2\ncontext = 16\ndepth = 2\n";
    for (settings, refusal) in [
        ("model = 'bert'\nvocab = 256", "a BERT needs 260"),
        ("model = 'bert'\nvocab = 260\nsequence = 4", "choose sequence 8 or more, not 4"),
        ("model = 'bert'\nvocab = 257\ndata = ['none.txt']", "a BERT needs 260"),
        ("param-groups = 'foo.*: lr=2'", "param-groups: no parameter is left for `foo.*`"),
        (
            "freeze = 'foo.*'",
            "freeze: no parameter is named `foo.*`; those of the model are wte.weight",
        ),
        ("freeze = '*'", "freeze leaves nothing to train"),
        ("document-mask = true", "the built-in text: it is one document: leave document-mask out"),
        ("document-mask = true\ndata = ['none.txt']", "no token ends its documents"),
        ("vocab = 64", "but the vocabulary has 64 ids"),
        (
            "data = ['none.bin']\nvocab = 9\nvalidation-data = ['none.txt']",
            "name files like those of `data`",
        ),
    ] {
        let ran = check(&[&format!("{small}{settings}")]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{settings}: {}", ran.stderr);
        assert!(ran.stderr.contains("error: 0.toml: "), "{settings}: {}", ran.stderr);
        assert!(ran.stderr.contains(refusal), "{settings}: {}", ran.stderr);
    }
    // Mistakes that depend on the data are left to the training.
    for settings in [
        "model = 'bert'\nvocab = 260",
        "document-mask = true\ndata = ['none.bin']\nvocab = 300",
        "param-groups = '*.bias: lr=2'",
    ] {
        let ran = check(&[&format!("{small}{settings}")]);
        assert_eq!(ran.code, Some(0), "{settings}: {}", ran.stderr);
    }
}

#[test]
fn a_stage_cannot_recompute_more_layers_than_it_has() {
    let with = |stages: &str| {
        format!(
            "depth = 4\nlayers = 8\nlayout = '2,2,2,2'\nrecompute = 'full'\nrecompute-stages = '{stages}'"
        )
    };
    let ran = check(&[&with("0:2"), &with("1:9")]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("0.toml: sound"), "{}", ran.stdout);
    assert!(ran.stderr.contains("stage 1 recomputes 9 layers, but it has 2"), "{}", ran.stderr);
}

/// Settings that depend on the machine are left to the machine that trains.
#[test]
fn what_follows_from_the_machine_stays_open() {
    let shown = show("", "--depth 8000").stdout; // more workers than cores
    let line = shown.lines().find(|line| line.starts_with("scaling")).expect("a line");
    assert!(line.starts_with("scaling = \"auto\" "), "{line}");
    assert!(line.ends_with("# default; \"direct\" on this machine"), "{line}");
    let shown = show("", "--depth 8000 --scaling doubling").stdout;
    assert!(shown.lines().any(|line| line.starts_with("scaling = \"doubling\" ")), "{shown}");
}

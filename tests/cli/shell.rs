//! Completions and manual pages.

use crate::command::{chimera, folder};

#[test]
fn completions_know_every_subcommand_and_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = chimera(&format!("completions {shell}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{shell}");
        for word in ["train", "simulate", "gallery", "micro-batches", "trace-kernels"] {
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

/// The completions that bash offers for the last word of a line.
fn offered_by_bash(line: &str) -> Vec<String> {
    const DRIVER: &str = r#"source <("$1" completions bash) && shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _chimera chimera "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let words = line.split(' ');
    let bash = std::process::Command::new("bash")
        .args(["-c", DRIVER, "bash", env!("CARGO_BIN_EXE_chimera")])
        .args(words)
        .output()
        .expect("bash");
    let offered = String::from_utf8_lossy(&bash.stdout);
    offered.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_offers_values() {
    for (line, values) in [
        ("chimera train --optimizer ", "adamw lamb sgd muon kfac"),
        ("chimera train --layout ", "balanced auto uniform"),
        ("chimera train --schedule zb-", "zb-h1 zb-h2 zb-v"),
        ("chimera train --preset gpt2-3", "gpt2-355m"),
        ("chimera train --device ", "cpu cuda cuda:0 wgpu wgpu:0"),
        ("chimera config show --precision ", "f32 tf32 bf16"),
        ("chimera schedule show --scaling ", "auto direct doubling halving"),
        ("chimera schedule show z", "zb-h1 zb-h2 zb-v"),
        ("chimera schedule compare 1f1b z", "zb-h1 zb-h2 zb-v"),
        ("chimera simulate v-", "v-half v-min"),
        (
            "chimera schedule export zb-v --format ",
            "json program-json pytorch-csv pytorch-comms-csv chrome svg html text png pdf",
        ),
        ("chimera eval --device c", "cpu cuda cuda:0"),
        ("chimera generate --tokenizer ", "bytes gpt2 ids"),
        ("chimera comm bench --transport ", "auto threads mpi"),
        ("chimera train --reduce-precision ", "f32 bf16"),
    ] {
        assert_eq!(offered_by_bash(line), values.split(' ').collect::<Vec<_>>(), "{line}");
    }
}

#[test]
fn zsh_and_fish_offer_schedules_and_files() {
    let zsh = chimera("completions zsh").stdout;
    assert!(zsh.contains("\n_chimera_words_or_files() {\n"), "no function");
    // `schedule show`, `compare` and `export`, `simulate`, each with `-s` and `--schedule` too, and four commands with only these.
    assert_eq!(zsh.matches(":{_chimera_words_or_files gpipe 1f1b ").count(), 20);
    assert!(zsh.contains(":{_chimera_words_or_files bytes gpt2 ids}'"));
    assert!(zsh.contains(":DEVICE:(cpu cuda cuda\\:0 wgpu wgpu\\:0)'"));
    let fish = chimera("completions fish").stdout;
    let show = "__fish_chimera_using_subcommand schedule; and __fish_seen_subcommand_from show";
    assert!(fish.contains(&format!("complete -c chimera -n \"{show}\" -a \"gpipe 1f1b ")));
    assert_eq!(fish.matches("-F -a \"gpipe\\t''\n1f1b\\t''\n").count(), 8);
    assert!(fish.contains("-l device -d 'cpu, cuda or wgpu'"), "no device");
}

/// Other programs' names are accepted, but not completed.
#[test]
fn completions_offer_what_there_is() {
    for shell in ["bash", "zsh", "fish"] {
        let script = chimera(&format!("completions {shell}")).stdout;
        for name in ["tensor-model-parallel-size", "fp16", "global-batch-size", "seq-length"] {
            assert!(!script.contains(name), "{shell}: {name}");
        }
    }
    let ran = chimera("train --tensor-parallel-size 2");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("there is no tensor parallelism"), "{}", ran.stderr);
}

#[test]
fn help_stands_under_headings_and_lists_presets() {
    let help = chimera("train --help").stdout;
    assert!(help.starts_with("Trains a GPT-2, a Llama or a BERT through a pipeline\n"), "{help}");
    assert!(help.contains("\nExamples:\n  chimera train\n"), "{help}");
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
fn manual_pages_have_the_sections_of_manuals() {
    let folder = folder();
    assert_eq!(chimera(&format!("man {}", folder.path().display())).code, Some(0));
    let pages = std::fs::read_dir(folder.path()).expect("pages");
    let mut n_pages = 0;
    for page in pages.map(|page| page.expect("a page").path()) {
        let text = std::fs::read_to_string(&page).expect("a page");
        for section in ["\"EXIT STATUS\"", "EXAMPLES", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{}: {section}", page.display());
        }
        assert!(text.is_ascii(), "{}", page.display());
        n_pages += 1;
    }
    assert!(n_pages > 30, "{n_pages}");
    let read = |page: &str| std::fs::read_to_string(folder.path().join(page)).expect("a page");
    let train = read("chimera-train.1");
    for line in [
        ".SH FILES",
        "\\fImetrics.jsonl\\fR",
        "\\fB75\\fR",
        "stopped on request, the last whole step is saved",
        "\\fBchimera train \\-\\-config run.toml \\-\\-resume auto\\fR",
        ".BR chimera-top (1),",
    ] {
        assert!(train.lines().any(|l| l == line), "{line}: {train}");
    }
    assert!(!read("chimera-top.1").contains(".SH FILES"));
    assert!(read("chimera-schedule-show.1").contains("\n.BR chimera-schedule (1),\n"));
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

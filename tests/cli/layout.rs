//! `--layout`: the layers of each stage.

use std::fs::write;

use serde_json::Value;

use crate::command::{chimera, folder};

/// A model of 12 layers whose head is worth three blocks.
const MODEL: &str = "--depth 4 --layers 12 --hidden 16 --heads 2 --context 16 --vocab 700";

/// The line of `config show` about the layout.
fn shown(options: &str) -> String {
    let ran = chimera(&format!("config show {MODEL} {options}"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
    let line = ran.stdout.lines().find(|line| line.starts_with("layout = "));
    line.expect("a line").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn config_show_prints_the_layout_taken() {
    for (options, line) in [
        ("--schedule 1f1b", "layout = \"balanced\" # default; E3T|4T|4T|1TH"),
        ("--schedule 1f1b --depth 1", "layout = \"balanced\" # default; E12TH"),
        (
            "--schedule zb-v --depth 2 --layout balanced",
            "layout = \"balanced\" # command line; E3T|4T|4T|1TH",
        ),
        // The worker with the head holds a longer first stage, and the step has no room for longer
        // stages in the middle.
        ("--layout auto --micro-batches 4", "layout = \"auto\" # command line; E5T|3T|3T|1TH"),
        ("--layout E3T|4T|4T|1TH", "layout = \"E3T|4T|4T|1TH\" # command line"),
        ("--layout 3,4,4,1", "layout = \"E3T|4T|4T|1TH\" # command line"),
        (
            "--pipeline-model-parallel-layout ettt|tttt|4t|th",
            "layout = \"E3T|4T|4T|1TH\" # command line",
        ),
        // Too many micro-batches to be scheduled in a moment.
        ("--micro-batches 1048576", "layout = \"balanced\" # default; E3T|4T|4T|1TH"),
        // A search finds the order, and this depth does not exist.
        ("--schedule auto", "layout = \"balanced\" # default"),
        ("--depth 16", "layout = \"balanced\" # default"),
    ] {
        assert_eq!(shown(options), line, "{options}");
    }
    let json = chimera(&format!("config show {MODEL} --schedule 1f1b --json")).stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["layout"]["value"], "balanced");
    assert_eq!(json["layout"]["origin"], "default; E3T|4T|4T|1TH");
}

/// A rank of half the speed gets about half as many layers as the others, and the step gets
/// shorter.
#[test]
fn slow_ranks_get_fewer_layers() {
    let pipeline = "--schedule 1f1b --micro-batches 16 --layers 14 --vocab 64";
    let layout = |options: &str| shown(&format!("{pipeline} {options}"));
    let slow = "--speeds 1,1,0.5,1";
    assert_eq!(layout(slow), "layout = \"balanced\" # default; E3T|4T|4T|3TH");
    let auto = "layout = \"auto\" # command line; E4T|4T|2T|4TH";
    assert_eq!(layout(&format!("{slow} --layout auto")), auto);
    let step = |options: &str| {
        let model = "--layers 14 --hidden 16 --heads 2 --context 16 --vocab 64";
        let job = "plan --ranks 4 --batch 64 --memory 1GiB --flops 1e9 --inside 0,0 --top 1 --json";
        let shape = "--schedule 1f1b --depth 4 --micro-batch-size 4";
        let ran = chimera(&format!("{job} {model} {shape} {options}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
        let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        plan["ways"][0]["step_s"].as_f64().expect("a time")
    };
    let [alike, uneven, placed] = ["", slow, "--speeds 1,1,0.5,1 --layout auto"].map(step);
    assert!(alike < placed && placed < 0.8 * uneven, "{alike} {placed} {uneven}");
    let ran = chimera("simulate 1f1b --depth 2 --speeds 1,1,0.5,1");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("has values for 4 ranks, but there are 2"), "{}", ran.stderr);
    let ran = chimera("simulate 1f1b --depth 2 --micro-batches 4 --speeds 1,0.5 --json");
    let simulated: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(simulated["workers"][1]["busy"], 24.0);
}

#[test]
fn refusals_say_where_and_what_to_write() {
    for (layout, refusal) in [
        (
            "E3T||6T|3TH",
            "command line: `layout` is \"E3T||6T|3TH\": stage 1 is empty: give it at least one block",
        ),
        (
            "3T|3T|3T|3TH",
            "the embedding is the first layer of all: write E once, at the start of stage 0",
        ),
        (
            "E3T|3T|3T|3T",
            "the head is the last layer of all: write H once, at the end of the last stage",
        ),
        ("E3T|3X|3T|3TH", "stage 1 has `X`: write E for the embedding, T for a transformer block"),
        ("even", "; or choose balanced, auto or uniform"),
    ] {
        let ran = chimera(&format!("config show {MODEL} --layout {layout}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{layout}");
        assert!(ran.stderr.contains(refusal), "{layout}: {}", ran.stderr);
    }
    let out = folder();
    for (options, refusal) in [
        (
            "--layout 3,4,4,3",
            "layout E3T|4T|4T|3TH holds 14 block(s), but the model has 12 layers: choose counts whose sum is 12",
        ),
        (
            "--layout 6,6",
            "layout E6T|6TH has 2 stage(s), but depth and schedule make 4: write the layers of each",
        ),
        (
            "--layout 3,3,3,3 --schedule interleaved",
            "layout E3T|3T|3T|3TH has 4 stage(s), but depth and schedule make 8",
        ),
    ] {
        let ran = chimera(&format!("train {MODEL} {options} --out {}/run", out.path().display()));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(refusal), "{options}: {}", ran.stderr);
    }
    assert!(!out.path().join("run").exists());
}

#[test]
fn files_say_it_as_a_text_or_a_list() {
    let folder = folder();
    for (text, sound) in [
        ("layout = 'E2T|4T|4T|2TH'", true),
        ("layout = [2, 4, 4, 2]", true),
        ("layout = [2, 4, 4, 1]", false),
    ] {
        let file = folder.path().join("run.toml");
        write(&file, format!("depth = 4\nlayers = 12\n{text}\n")).expect("a file");
        let ran = chimera(&format!("config check {}", file.display()));
        assert_eq!(ran.code, Some(if sound { 0 } else { 2 }), "{text}: {}", ran.stderr);
        assert_eq!(ran.stdout.contains("; layout E2T|4T|4T|2TH; "), sound, "{}", ran.stdout);
    }
}

#[test]
fn plans_keep_a_layout_and_find_one() {
    let job = format!(
        "plan --ranks 4 --batch 16 --memory 1GiB --flops 1e11 --inside 0,0 --depth 4 --schedule chimera --pipes 2 --scaling direct --micro-batch-size 2 {MODEL} --json"
    );
    let first = |options: &str| -> Value {
        let ran = chimera(&format!("{job} {options}"));
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
        let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        plan["ways"][0].clone()
    };
    let step = |way: &Value| way["step_s"].as_f64().expect("a time");
    let (balanced, by_hand, auto) =
        (first(""), first("--layout E1T|1T|1T|9TH"), first("--layout auto"));
    assert_eq!(
        (&balanced["layout"], &by_hand["layout"]),
        (&"balanced".into(), &"E1T|1T|1T|9TH".into())
    );
    assert!(step(&auto) < step(&balanced) && step(&balanced) < step(&by_hand));
    let layout = auto["layout"].as_str().expect("a layout");
    let command = auto["command"].as_str().expect("a command");
    assert!(command.contains(&format!("--layout '{layout}'")), "{command}");
    let table = chimera(&job.replace("--json", "--layout auto")).stdout;
    let head = table.lines().find(|line| line.trim_start().starts_with("s a step"));
    assert!(head.is_some_and(|head| head.ends_with("layout")), "{table}");
    let ran = chimera(&format!("{job} --layout 6,6"));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("layout E6T|6TH has 2 stage(s), but"), "{}", ran.stderr);
}

#[test]
fn layouts_of_megatron_are_read_and_written() {
    for (options, line) in [
        ("--schedule 1f1b --layout Et*3|(t*4|)*2tL", "layout = \"E3T|4T|4T|1TH\" # command line"),
        ("--schedule 1f1b --layout Et*3||(t*4)*2,|tL", "layout = \"Et*3||t*8|tL\" # command line"),
        ("--layout Et*4|t*4|t*4|mL", "layout = \"Et*4|(t*4|)*2mL\" # command line"),
        ("--schedule 1f1b --layout uniform", "layout = \"uniform\" # command line; E3T|3T|3T|3TH"),
        (
            "--schedule 1f1b --decoder-first-pipeline-num-layers 3",
            "layout = \"uniform\" # command line; E3T|3T|3T|3TH",
        ),
        (
            "--schedule 1f1b --decoder-last-pipeline-num-layers 6",
            "layout = \"uniform\" # command line; E2T|2T|2T|6TH",
        ),
        (
            "--schedule interleaved --layers 14 --account-for-embedding-in-pipeline-split true \
             --account-for-loss-in-pipeline-split true",
            "layout = \"uniform\" # command line; E1T|2T|2T|2T|2T|2T|2T|1TH",
        ),
    ] {
        assert_eq!(shown(options), line, "{options}");
    }
    let out = folder();
    for (options, refusal) in [
        ("--layout Et*4|t*4|t*4|mL", "has layers of multi-token prediction (`m`)"),
        (
            "--layout uniform --layers 14",
            "14 layer(s) for 4 rank(s) of the pipeline are not as many",
        ),
        (
            "--layout balanced --decoder-first-pipeline-num-layers 3",
            "`decoder-first-pipeline-num-layers` is of layout uniform, and `layout` is \"balanced\"",
        ),
        (
            "--decoder-first-pipeline-num-layers 3 --account-for-loss-in-pipeline-split true",
            "choose one way",
        ),
        ("--layout Et*4|(t*4|t*4|tL", "a group of a Megatron layout ends in `)*` and a number"),
    ] {
        let job =
            format!("train {MODEL} --schedule 1f1b {options} --out {}/run", out.path().display());
        let ran = chimera(&job);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(refusal), "{options}: {}", ran.stderr);
    }
}

/// A stage without a layer passes activations and gradients on, and the loss stays the same.
#[test]
fn stages_without_a_layer_train() {
    let out = folder();
    let last = |name: &str, layout: &str| {
        let out = out.path().join(name);
        let job = "train --depth 4 --layers 3 --hidden 16 --heads 2 --context 16 --vocab 256 --steps 3 \
                   --schedule 1f1b --micro-batches 4 --log-every 1 --no-save";
        let ran = chimera(&format!("{job} --layout {layout} --out {}", out.display()));
        assert_eq!(ran.code, Some(0), "{layout}: {}", ran.stderr);
        let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
        let line: Value =
            serde_json::from_str(metrics.lines().last().expect("a step")).expect("JSON");
        line["loss"].as_f64().expect("a loss")
    };
    let whole = last("whole", "Et|t|t|L");
    let passed = last("passed", "E||t*2|tL");
    assert!((whole - passed).abs() < 1e-4, "{whole} {passed}");
}

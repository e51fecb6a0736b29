//! `--topology`: links that messages and reductions share.

use std::fs::{read_to_string, write};

use serde_json::Value;

use crate::command::{chimera, folder};

const STEP: &str = "1f1b --depth 4 --micro-batches 8 --forward 0.01 --backward 0.02";
const BYTES: &str = "--activation-bytes 64e6 --gradient-bytes 1e9";

/// Two hosts of two devices, whose hosts share one slow link.
const HOSTS: &str = r#"{"format": 1, "switches": ["a", "b"],
    "devices": [{"name": "a0", "island": "a"}, {"name": "a1", "island": "a"},
                {"name": "b0", "island": "b"}, {"name": "b1", "island": "b"}],
    "links": [{"from": "a0", "to": "a", "bytes_per_s": 1e11}, {"from": "a1", "to": "a", "bytes_per_s": 1e11},
              {"from": "b0", "to": "b", "bytes_per_s": 1e11}, {"from": "b1", "to": "b", "bytes_per_s": 1e11},
              {"from": "a", "to": "b", "bytes_per_s": 1e10, "latency_s": 1e-5}],
    "ranks": ["a0", "b0", "a1", "b1"]}"#;

fn json(line: &str) -> Value {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

#[test]
fn links_that_are_shared_slow_a_step_down_and_are_drawn() {
    let folder = folder();
    let file = folder.path().join("hosts.json");
    write(&file, HOSTS).expect("a file");
    let on_hosts = format!("simulate {STEP} {BYTES} --topology {}", file.display());
    let step = json(&format!("{on_hosts} --json"));
    let free = json(&format!("simulate {STEP} --json"));
    let makespan = |step: &Value| step["makespan"].as_f64().expect("a time");
    assert!(makespan(&step) > makespan(&free));
    let links = step["links"].as_array().expect("links");
    let shared = links.iter().find(|link| link["name"] == "a > b").expect("the slow link");
    assert_eq!(shared["shared"], true);
    assert!(step["bubble_by_cause"]["message"].as_f64().expect("a share") > 0.0);
    // Groups share links, so their number changes the step without any reduction.
    let wide = STEP.replace("--depth 4", "--depth 2 --width 2");
    json(&format!("simulate {wide} --activation-bytes 64e6 --topology {} --json", file.display()));
    let text = chimera(&on_hosts).stdout;
    assert!(text.contains("\nlinks: "), "{text}");
    let drawing = folder.path().join("step.svg");
    let ran = chimera(&format!("{on_hosts} --out {}", drawing.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(read_to_string(&drawing).expect("a drawing").contains("a &gt; b"));
}

#[test]
fn presets_grow_with_the_job() {
    for preset in ["two-level", "rail", "pcie", "ethernet", "aries"] {
        let line = format!("simulate {STEP} --width 4 {BYTES} --topology {preset} --json");
        let step = json(&line);
        assert!(step["sums"].as_f64().expect("a time") > 0.0, "{preset}");
        let compared = json(&format!(
            "schedule compare 1f1b chimera --depth 4 --forward 0.01 --backward 0.02 {BYTES} --topology {preset} --json"
        ));
        assert_eq!(compared["schedules"].as_array().expect("schedules").len(), 2);
    }
}

#[test]
fn a_preset_is_printed_as_the_file_that_gives_the_same_step() {
    let folder = folder();
    let file = folder.path().join("rail.json");
    let printed = chimera("config topology rail --ranks 16 --ranks-per-node 4");
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    write(&file, printed.stdout).expect("a file");
    let step =
        |of: &str| json(&format!("simulate {STEP} --width 4 {BYTES} --topology {of} --json"));
    assert_eq!(step(&file.display().to_string()), step("rail --ranks-per-node 4"));
    let refused = chimera("config topology torus --ranks 2");
    assert!(refused.stderr.contains("choose one of two-level, rail"), "{}", refused.stderr);
}

#[test]
fn plans_take_a_topology() {
    let plan = |options: &str| -> f64 {
        let job = "plan --ranks 4 --batch 16 --memory 1GiB --flops 1e11 --depth 4 --schedule 1f1b --top 1 --json";
        let model =
            "--layers 4 --hidden 64 --heads 2 --context 64 --vocab 256 --micro-batch-size 2";
        let plan = json(&format!("{job} {model} {options}"));
        plan["ways"][0]["step_s"].as_f64().expect("a time")
    };
    assert!(plan("--topology ethernet") > plan("--topology rail"));
}

#[test]
fn ranks_are_mapped_to_devices_where_that_is_shorter() {
    let folder = folder();
    let file = folder.path().join("hosts.json");
    write(&file, HOSTS).expect("a file");
    let on_hosts = format!("{STEP} {BYTES} --topology {}", file.display());
    let given = json(&format!("simulate {on_hosts} --json"));
    let found = json(&format!("simulate {on_hosts} --map search --json"));
    let step = |step: &Value| step["step"].as_f64().expect("a time");
    assert!(given.get("mapping").is_none() && step(&found) < step(&given));
    let mapping = &found["mapping"];
    assert_eq!(mapping["step_s_as_given"].as_f64(), Some(step(&given)));
    assert_eq!(mapping["step_s"].as_f64(), Some(step(&found)));
    let ranks = mapping["ranks"].as_array().expect("devices");
    assert_eq!(ranks[0].as_str().map(|name| &name[..1]), ranks[1].as_str().map(|name| &name[..1]));
    let text = chimera(&format!("simulate {on_hosts} --map search")).stdout;
    assert!(text.contains(" % shorter than as given, after "), "{text}");
    let job = "plan --ranks 4 --batch 16 --memory 1GiB --flops 1e11 --depth 4 --schedule 1f1b --top 1 --json";
    let model = "--layers 4 --hidden 64 --heads 2 --context 64 --vocab 256 --micro-batch-size 2";
    let plan = json(&format!("{job} {model} --topology {} --map search", file.display()));
    let times = ["step_s", "step_s_as_given"].map(|key| plan["mapping"][key].as_f64());
    assert!(times[0] <= times[1] && times[0] > Some(0.0), "{times:?}");
}

#[test]
fn refusals_say_what_to_choose() {
    for (line, refusal) in [
        (format!("simulate {STEP} --topology torus"), "it is neither a preset (two-level, rail"),
        ("simulate 1f1b --topology rail".into(), "--topology is in seconds"),
        ("schedule compare --topology rail".into(), "--topology is in seconds"),
        (format!("simulate {STEP} --topology rail --inside 0,0"), "cannot be used with"),
        (format!("simulate {STEP} --width 2 --topology rail --lost 1"), "leave --lost out"),
        (format!("simulate {STEP} --map search"), "--topology <PRESET|FILE>"),
    ] {
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(refusal), "{line}: {}", ran.stderr);
    }
}

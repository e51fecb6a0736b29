//! `chimera plan --costs`: models that are not Chimera's own.

use std::fs::write;
use std::path::Path;

use chimera::core::costs::UniformCosts;
use chimera::core::interchange::to_json;
use chimera::core::lower::{Lowering, Passes};
use chimera::core::schedule::{Shape, find};
use serde_json::{Value, json};

use crate::command::{Ran, chimera, folder};

const JOB: &str = "plan --ranks 4 --batch 32 --memory 40GiB --inside 1e-6,1e-12";

fn example() -> String {
    format!("{}/examples/layers.json", env!("CARGO_MANIFEST_DIR"))
}

fn plan(file: &str, options: &str) -> Ran {
    chimera(&format!("{JOB} --costs \"{file}\" {options}"))
}

fn ways(ran: &Ran) -> Vec<Value> {
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    plan["ways"].as_array().expect("ways").clone()
}

/// Identical layers, for one sample.
fn even(folder: &Path, n_layers: u32) -> String {
    let layer = json!({"repeat": n_layers, "forward_s": 1, "input_s": 1, "weight_s": 1, "weight_bytes": 100,
                       "activation_bytes": 10, "message_bytes": 0});
    let file = folder.join("even.json");
    let model =
        json!({"format": 1, "micro_batch_size": 1, "state_per_weight": 3, "layers": [layer]});
    write(&file, model.to_string()).expect("a file");
    file.display().to_string()
}

#[test]
fn the_example_is_planned_and_each_way_can_be_drawn() {
    let ran = plan(&example(), "");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let first = ran.stdout.lines().next().expect("a line");
    assert_eq!(first, "a model of 26 layers; a step of 32 samples on 4 ranks");
    let head = ran.stdout.lines().nth(2).expect("a table");
    assert!(head.contains("samples/s") && !head.contains("shard"), "{head}");
    assert!(ran.stdout.contains("times are of the 26 layers in the file"), "{}", ran.stdout);
    let ways = ways(&plan(&example(), "--json --top 8"));
    assert_eq!(ways.len(), 8);
    let mut fastest = 0.0;
    for way in ways {
        let (step_s, size) = (way["step_s"].as_f64().expect("a time"), &way["micro_batch_size"]);
        assert!(step_s >= fastest && *size == 8, "{way:#}");
        fastest = step_s;
        let command = way["command"].as_str().expect("a command");
        let drawn = chimera(command.strip_prefix("chimera ").expect("a command of ours"));
        assert_eq!((drawn.code, drawn.stderr.as_str()), (Some(0), ""), "{command}");
    }
}

/// Builds the timetable of a row with the library. An export would scale and recompute by other
/// costs.
fn timetable(way: &Value) -> Value {
    let whole = |value: &Value| value.as_u64().expect("a number");
    let parameter = |name: &str| way["parameters"].get(name).map(whole);
    let word = |key: &str| way[key].as_str().expect("a word");
    let depth = whole(&way["depth"]) as usize;
    let shape = Shape {
        scaling: word("scaling").parse().expect("a scaling"),
        n_pipes: parameter("pipes").unwrap_or(2) as usize,
        n_chunks: parameter("chunks").unwrap_or(2) as usize,
        n_waves: parameter("waves").unwrap_or(2) as usize,
        n_in_turn: parameter("in-turn").unwrap_or(1) as u32,
        in_flight: parameter("in-flight").map(|k| k as u32),
        ..Shape::new(depth, whole(&way["micro_batches"]) as u32)
    };
    let schedule = find(if depth == 1 { "1f1b" } else { word("schedule") }).expect("known");
    let recompute = word("recompute").parse().expect("a recomputation");
    let passes = Passes { recompute, ..Passes::default() };
    let passed = passes.apply(
        schedule.timetable(&shape).expect("fits"),
        &Lowering::default(),
        &UniformCosts::EQUAL,
    );
    serde_json::from_str(&to_json(&passed.expect("sound"))).expect("JSON")
}

#[test]
fn every_command_writes_the_timetable_of_its_row() {
    for (options, told) in [
        ("--schedule chimera --scaling direct --depth 4", " --scaling direct"),
        ("--schedule chimera --depth 2", " --scaling halving"),
        ("--schedule chimera --depth 1", " 1f1b --depth 1"),
        ("--schedule dualpipe --depth 1", " 1f1b --depth 1"),
        ("--depth 4 --recompute auto", ""),
        ("--schedule gpipe --depth 2 --recompute auto --memory-cap 3", " --recompute full"),
    ] {
        let ways = ways(&plan(&example(), &format!("--batch 256 --top 5 --json {options}")));
        let commands = ways.iter().map(|way| way["command"].as_str().expect("a command"));
        assert!(commands.clone().any(|command| command.contains(told)), "{options}: {ways:#?}");
        for (way, command) in ways.iter().zip(commands) {
            let written = chimera(command.strip_prefix("chimera ").expect("a command of ours"));
            assert_eq!((written.code, written.stderr.as_str()), (Some(0), ""), "{command}");
            let written: Value = serde_json::from_str(&written.stdout).expect("JSON");
            assert!(written == timetable(way), "{command}");
        }
    }
}

/// Foreign layers may not be split along a sequence, and a command includes the passes of the plan.
#[test]
fn what_is_printed_is_what_was_planned() {
    let schedules = ways(&plan(&example(), "--json --top 1000"));
    assert!(schedules.iter().all(|way| way["schedule"] != "seq1f1b"));
    let named = plan(&example(), "--schedule seq1f1b --depth 4");
    assert!(
        named.stderr.contains("does not say that its layers can be cut so"),
        "{}",
        named.stderr
    );
    let passes = "--schedule 1f1b --depth 4 --bpipe --memory-cap 3";
    let moved = ways(&plan(&example(), &format!("{passes} --json")));
    let command = moved[0]["command"].as_str().expect("a command");
    assert!(command.contains(" --bpipe --memory-cap 3"), "{command}");
    let drawn = chimera(command.strip_prefix("chimera ").expect("a command of ours"));
    assert_eq!((drawn.code, drawn.stderr.as_str()), (Some(0), ""), "{command}");
}

/// Eight layers of 3 s on two workers, one of which waits for the other's first and last.
#[test]
fn a_step_takes_what_the_papers_say() {
    let folder = folder();
    let file = even(folder.path(), 8);
    let options =
        "--ranks 2 --batch 16 --inside 0,0 --schedule 1f1b --depth 2 --recompute none --json";
    let ways = ways(&plan(&file, options));
    let [way] = &ways[..] else { panic!("{ways:?}") };
    // N = 16 micro-batches of 12 s per stage, and D - 1 more.
    assert_eq!(way["step_s"], 17.0 * 12.0);
    assert_eq!(way["bubble_ratio"].as_f64().map(|b| (b * 17.0).round()), Some(1.0));
    assert_eq!(way["samples_per_s"], 16.0 / 204.0);
    // Four layers per worker, and two micro-batches in flight on worker 0.
    assert_eq!(way["bytes"]["state"], 4.0 * 100.0 * 3.0);
    assert_eq!(way["bytes"]["activations"], 2.0 * 40.0);
    assert_eq!(way["bytes"]["copy"], 0.0, "the keys are those of other plans");
}

/// On a network, too, a step takes the simulated time. Reductions start as in a training.
#[test]
fn a_step_takes_what_simulate_says() {
    let folder = folder();
    let file = even(folder.path(), 8);
    let silent = std::fs::read_to_string(&file).expect("layers");
    write(&file, silent.replace("\"message_bytes\":0", "\"message_bytes\":4")).expect("a file");
    let links = "--inside 0.1,0.1 --between 0.1,0.3 --micro-batches 4";
    for (schedule, of_schedule, depth, width, layers) in [
        ("chimera", "--scaling direct", 4, 2, 2),
        ("dualpipe", "", 2, 2, 4),
        ("interleaved", "--chunks 2", 4, 2, 1),
        ("zb-v", "", 4, 2, 1),
        ("gpipe", "", 4, 1, 2),
    ] {
        for ranks_per_node in [1, 2, 4] {
            let job = format!(
                "{of_schedule} --depth {depth} --width {width} --ranks-per-node {ranks_per_node} {links} --json"
            );
            let (ranks, batch) = (depth * width, width * 4);
            let planned =
                format!("--schedule {schedule} --recompute none --ranks {ranks} --batch {batch}");
            let ways = ways(&plan(&file, &format!("{planned} {job}")));
            let simulated = chimera(&format!(
                "simulate {schedule} {job} --forward {layers} --input {layers} --weight {layers} --activation-bytes 4 \
                 --gradient-bytes {}",
                layers * 100
            ));
            assert_eq!((simulated.code, simulated.stderr.as_str()), (Some(0), ""), "{job}");
            let simulated: Value = serde_json::from_str(&simulated.stdout).expect("JSON");
            let [of_plan, of_simulate] = [&ways[0]["step_s"], &simulated["step"]]
                .map(|step| (step.as_f64().expect("a time") * 1e6).round());
            assert_eq!(of_plan, of_simulate, "{schedule} {job}");
        }
    }
}

#[test]
fn memory_decides_what_fits() {
    let folder = folder();
    let file = even(folder.path(), 8);
    let memory = |bytes: u32| {
        let options = format!("--memory {bytes} --schedule gpipe --depth 2 --json");
        plan(&file, &options)
    };
    let way = |ran: &Ran| ways(ran)[0]["recompute"].clone();
    assert_eq!(way(&memory(1 << 20)), "none");
    // 16 micro-batches of 40 bytes and 1,200 of weights exceed the memory.
    assert_eq!(way(&memory(1700)), "full");
    let ran = memory(1000);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("fits into 1000 B a rank: the smallest, gpipe"), "{}", ran.stderr);
    assert!(ran.stderr.contains(" for results of the running op); "), "{}", ran.stderr);
    assert!(!ran.stderr.contains("logits"), "{}", ran.stderr);
}

/// With steps of several seconds there are fractions of a sample per second.
#[test]
fn samples_per_second_have_digits_whatever_their_size() {
    let folder = folder();
    let file = even(folder.path(), 1);
    let ran = chimera(&format!("plan --ranks 1 --batch 1 --memory 1GiB --costs {file}"));
    let row: Vec<&str> = ran.stdout.lines().nth(3).expect("a row").split_whitespace().collect();
    assert_eq!(row[..2], ["3.000", "0.3333"], "{}", ran.stdout);
    let fit =
        "\n1 configuration fits into 1 GiB a rank, 0 do not; times are of the 1 layer in the file";
    assert!(ran.stdout.contains(fit) && ran.stdout.contains("  one rank  "), "{}", ran.stdout);
}

/// Some editors begin a file with a byte order mark.
#[test]
fn a_byte_order_mark_is_no_part_of_the_layers() {
    let folder = folder();
    let file = folder.path().join("marked.json");
    let layers = std::fs::read_to_string(example()).expect("the example");
    write(&file, format!("\u{feff}{layers}")).expect("a file");
    let marked = plan(&file.display().to_string(), "--top 1");
    assert_eq!(marked.code, Some(0), "{}", marked.stderr);
    assert_eq!(marked.stdout, plan(&example(), "--top 1").stdout);
}

/// The file fixes the shape, so the batch must match it.
#[test]
fn a_timetable_of_another_batch_is_told_with_its_shape() {
    let folder = folder();
    let mine = folder.path().join("mine.json");
    write(&mine, chimera("schedule show 1f1b --json").stdout).expect("a file");
    let (layers, mine) = (even(folder.path(), 8), mine.display().to_string());
    let ran = plan(&layers, &format!("--schedule {mine}"));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    let why = format!(
        "the timetable in {mine} has D = 4 and N = 4, and --batch must be W x N x B = 1 x 4 x 1 = 4"
    );
    assert!(ran.stderr.contains(&why), "{}", ran.stderr);
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let folder = folder();
    let file = folder.path().join("bad.json");
    let good = std::fs::read_to_string(example()).expect("the example");
    for (from, to, named) in [
        ("0.0031", "-1", "layers[1].forward_s is -1; it must be a number from 0 to 1e9"),
        ("0.0031", "NaN", "it is no JSON"),
        ("\"forward_s\": 0.0031", "\"forward\": 1", "layers[1] has an unknown field `forward`"),
        ("\"micro_batch_size\": 8,", "", "micro_batch_size is missing"),
        ("\"layers\": [", "\"layers\": [], \"name\": [", "the file has an unknown field `name`"),
    ] {
        assert!(good.contains(from), "{from}");
        write(&file, good.replacen(from, to, 1)).expect("a file");
        let ran = plan(&file.display().to_string(), "");
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{to}");
        assert!(ran.stderr.contains("bad.json") && ran.stderr.contains(named), "{}", ran.stderr);
    }
    for (content, named) in [("", "it is no JSON"), ("[]", "the file must be an object")] {
        write(&file, content).expect("a file");
        let ran = plan(&file.display().to_string(), "");
        assert!(ran.code == Some(2) && ran.stderr.contains(named), "{}", ran.stderr);
    }
    let ran = plan("none.json", "");
    assert!(ran.code == Some(2) && ran.stderr.contains("none.json"), "{}", ran.stderr);
}

#[test]
fn what_another_model_says_is_refused() {
    for (options, named) in [
        ("--preset tiny", "preset is for the models here"),
        ("--layers 3", "layers is for the models here"),
        ("--profile p.json", "profile is for the models here"),
        ("--shard-optimizer", "shard-optimizer is for the models here"),
        ("--micro-batch-size 4", "the times in the file are of 8"),
        ("--flops 1e12", "cannot be used with"),
        ("--batch 4", "leave no way to train a model of 26 layers"),
        ("--recompute selective", "choose none or full"),
        ("--schedule pipedream", "has no flush"),
    ] {
        let ran = plan(&example(), options);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{options}: {}", ran.stderr);
    }
}

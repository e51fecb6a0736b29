//! Reports on the kernels of a run's GPUs: times in a trace, and ranges for a profiler.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use serde_json::Value;

use super::{Trained, chimera, train_on_gpus};
use crate::command::folder;

/// Times of events are rounded to parts of a microsecond.
const ROUNDING: f64 = 1.0;

fn number(slice: &Value, key: &str) -> f64 {
    slice[key].as_f64().expect("a number")
}

fn span(slice: &Value) -> (f64, f64) {
    let start = number(slice, "ts");
    (start, start + number(slice, "dur"))
}

/// Runs three steps and traces the second. Returns the run and the events of its trace.
fn traced(options: &str) -> (Trained, Vec<Value>) {
    let folder = folder();
    let path = folder.path().join("trace.json");
    let options = format!("{options} --trace {} --trace-steps 1..2", path.display());
    let trained = train_on_gpus(&[("EMULATED_PAUSE", "20")], &options);
    assert_eq!(trained.ran.code, Some(0), "{}", trained.ran.stderr);
    let trace: Value = serde_json::from_str(&read_to_string(path).expect("a trace")).expect("JSON");
    (trained, trace["traceEvents"].as_array().expect("events").clone())
}

#[test]
fn each_kernel_of_a_traced_step_lies_within_what_its_worker_did() {
    let (trained, events) = traced("--device cuda --schedule 1f1b --depth 2 --trace-kernels");
    let slices = |category: &'static str, rank: u64| {
        let is = move |e: &&Value| e["ph"] == "X" && e["cat"] == category && e["pid"] == rank;
        events.iter().filter(is).collect::<Vec<_>>()
    };
    for rank in 0..2 {
        let [step] = slices("step", rank)[..] else { panic!("one step of rank {rank}") };
        let holds = |outer: &Value, inner: &Value| {
            let ((from, to), (start, end)) = (span(outer), span(inner));
            from - ROUNDING <= start && end <= to + ROUNDING
        };
        let kernels = slices("kernel", rank);
        assert!(kernels.iter().all(|kernel| holds(step, kernel) && number(kernel, "dur") > 0.0));
        for category in ["forward", "backward", "update"] {
            for op in slices(category, rank) {
                let within = kernels.iter().filter(|kernel| holds(op, kernel)).count();
                assert!(within > 0, "no kernel in {op}");
            }
        }
        // A product reports its FLOPs.
        let products = kernels.iter().filter(|k| k["args"]["flops"].as_f64() > Some(0.0));
        assert!(products.clone().count() > 0);
        assert!(products.clone().all(|k| k["name"].as_str().unwrap_or("").starts_with("product ")));
        let starts = kernels.windows(2).all(|pair| span(pair[0]).1 <= span(pair[1]).0 + ROUNDING);
        assert!(starts, "a stream does one thing after another");
    }
    let lanes = events.iter().filter(|e| e["ph"] == "M" && e["args"]["name"] == "kernels");
    assert_eq!(lanes.count(), 2);
    let told = "kernels of the traced steps, of all ranks: ";
    assert!(trained.ran.stdout.contains(told), "{}", trained.ran.stdout);
    let summary = trained.folder.path().join("run/summary.json");
    let summary: Value =
        serde_json::from_str(&read_to_string(summary).expect("a summary")).expect("JSON");
    let sums = summary["kernels"].as_array().expect("sums");
    let n: u64 = sums.iter().map(|sum| sum["n"].as_u64().expect("a count")).sum();
    let n_kernels = events.iter().filter(|e| e["cat"] == "kernel").count();
    assert_eq!(n, n_kernels as u64, "{summary}");
}

#[test]
fn kernels_are_timed_where_that_is_asked_for() {
    let (trained, events) = traced("--device cuda --depth 2");
    assert!(events.iter().all(|e| e["cat"] != "kernel"));
    assert!(!trained.ran.stdout.contains("kernels of the traced steps"));
    let ran = chimera("train --trace t.json --trace-kernels --steps 3");
    assert_eq!(ran.code, Some(2));
    let told = "device `cpu` does not report the times of its kernels";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

/// The ranges of each thread, in order.
fn notes(settings: &[(&str, &str)]) -> BTreeMap<String, Vec<(char, String)>> {
    let folder = folder();
    let path = folder.path().join("notes");
    let notes = [("EMULATED_NOTES", path.to_str().expect("a path of text"))];
    let settings = [settings, &notes].concat();
    train_on_gpus(&settings, "--device cuda --schedule 1f1b --depth 2 --steps 1").steps();
    let mut by_thread: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in read_to_string(path).expect("notes").lines() {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default().to_string();
        let (thread, sign, name) = (word(), word(), word());
        let sign = sign.chars().next().expect("a sign");
        by_thread.entry(thread).or_default().push((sign, name));
    }
    by_thread
}

#[test]
fn a_profiler_sees_launches_within_ranges_of_ops() {
    let by_thread = notes(&[("NVTX_INJECTION64_PATH", "a profiler's library")]);
    let mut ops = Vec::new();
    for notes in by_thread.values() {
        let mut open: Vec<&str> = Vec::new();
        for (sign, name) in notes {
            match sign {
                '>' => open.push(name),
                '<' => assert!(open.pop().is_some(), "more ranges are closed than opened"),
                _ if open.first() == Some(&"step 0") => ops.extend(open.get(1).copied()),
                _ => {}
            }
        }
        assert!(open.is_empty(), "{open:?} is left open");
    }
    let is_there = |op: &str| ops.iter().any(|name| name.starts_with(op));
    for op in [
        "F(pipe 0, stage 1, micro-batch 3)",
        "B(pipe 0, stage 0, micro-batch 0)",
        "update ",
        "step sync",
    ] {
        assert!(is_there(op), "no launch in {op}: {ops:?}");
    }
}

#[test]
fn without_a_profiler_there_are_no_ranges() {
    let by_thread = notes(&[]);
    assert!(by_thread.values().flatten().all(|(sign, _)| *sign == '.'));
}

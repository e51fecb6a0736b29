//! `--trace`: the events of every rank, in Perfetto's format.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{MODEL, prepare};
use crate::command::{chimera, folder, text};

/// The events of the trace that a training with `options` writes.
fn trace(options: &str) -> Vec<Value> {
    let folder = folder();
    let (data, path) = (text(&folder), folder.path().join("trace.json"));
    let places = format!("--data {} --trace {}", data.display(), path.display());
    let ran = chimera(&format!("train {MODEL} {options} {places}"));
    assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
    let trace = std::fs::read_to_string(path).expect("a trace");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    trace["traceEvents"].as_array().expect("events").clone()
}

fn count(events: &[Value], phase: &str, category: &str) -> usize {
    events.iter().filter(|e| e["ph"] == phase && e["cat"] == category).count()
}

#[test]
fn every_message_of_every_group_is_waited_for_and_has_an_arrow() {
    for (options, n_runs) in [
        ("--schedule chimera --width 2 --micro-batches 6 --trace-steps 1..4", 3),
        ("--schedule zb-h1 --depth 2 --trace-steps 0..99", 5),
        ("--schedule interleaved --depth 2 --trace-steps 4..5", 1),
        ("--schedule pipedream-2bw --depth 2 --window 2 --trace-steps 1..3", 2),
    ] {
        let run = prepare(&format!("{MODEL} {options}"));
        let (program, width) = (run.program(), run.config().schedule.width);
        let events = trace(options);
        let n_messages = program.n_messages() * width * n_runs;
        assert_eq!(count(&events, "s", "message"), n_messages, "{options}");
        assert_eq!(count(&events, "f", "message"), n_messages, "{options}");
        let names = |e: &Value| e["name"].as_str().unwrap_or_default().to_string();
        let waits: Vec<String> = events.iter().filter(|e| e["cat"] == "wait").map(names).collect();
        let of = |what: &str| waits.iter().filter(|name| name.starts_with(what)).count();
        let n_ranks = program.placement().n_workers() * width;
        assert_eq!(of("wait for activation") + of("wait for gradient"), n_messages, "{options}");
        assert_eq!(of("wait for the agreement of all ranks"), n_ranks * n_runs, "{options}");
        assert_eq!(count(&events, "X", "step"), n_ranks * n_runs, "{options}");
        let ids: Vec<_> =
            events.iter().filter(|e| e["ph"] == "s").map(|e| e["id"].as_u64()).collect();
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{options}: two arrows with one number");
    }
}

#[test]
fn slices_of_a_thread_nest_and_arrows_lie_in_them() {
    let events = trace("--schedule chimera --pipes 4 --width 2 --micro-batches 4");
    let number = |e: &Value, key: &str| e[key].as_f64().expect("a number");
    let thread = |e: &Value| (e["pid"].as_u64(), e["tid"].as_u64());
    let mut threads: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
    for slice in events.iter().filter(|e| e["ph"] == "X") {
        let start = number(slice, "ts");
        threads.entry(thread(slice)).or_default().push((start, start + number(slice, "dur")));
    }
    assert!(threads.keys().filter(|(_, lane)| *lane == Some(0)).count() == 8, "a rank is missing");
    const ROUNDING: f64 = 1e-3; // of microseconds
    for (thread, slices) in &mut threads {
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (start, end) in slices {
            open.retain(|until| *until > *start + ROUNDING);
            assert!(open.iter().all(|until| *end <= until + ROUNDING), "{thread:?}: {start} {end}");
            open.push(*end);
        }
    }
    for arrow in events.iter().filter(|e| e["ph"] == "s" || e["ph"] == "f") {
        let at = number(arrow, "ts");
        let holds = |(start, end): &(f64, f64)| (*start - ROUNDING..=*end + ROUNDING).contains(&at);
        assert!(threads[&thread(arrow)].iter().any(holds), "{arrow}");
    }
}

#[test]
fn what_is_no_range_of_steps_is_refused() {
    for range in ["3", "4..4", "5..2", "..3"] {
        let ran = chimera(&format!("train {MODEL} --trace t.json --trace-steps {range}"));
        assert_eq!(ran.code, Some(2), "{range}");
        assert!(ran.stderr.contains("a range of steps such as 1..11"), "{}", ran.stderr);
    }
}

#[test]
fn a_trace_that_would_be_empty_is_refused() {
    for (options, refused) in [
        ("--trace-steps 50..60", "trace-steps 50..60 begins after the last step: steps is 5"),
        ("--trace-steps 5..6", "trace-steps 5..6 begins after the last step"),
        (
            "--steps 1 --trace-steps 1..11",
            "trace-steps 1..11 begins after the last step: steps is 1",
        ),
    ] {
        let model = MODEL.replace("--steps 5", "");
        let steps = if options.contains("--steps") { "" } else { "--steps 5" };
        let ran = chimera(&format!("train {model} {steps} --trace t.json {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(refused), "{}", ran.stderr);
    }
    // Without a trace, `trace-steps` does not matter to a run.
    prepare(&format!("{MODEL} --trace-steps 50..60"));
}

#[test]
fn a_single_step_is_traced_where_nobody_says_which() {
    let folder = folder();
    let (data, path) = (text(&folder), folder.path().join("trace.json"));
    let model = MODEL.replace("--steps 5", "--steps 1").replace("--depth 4", "--depth 2");
    let places = format!("--data {} --trace {}", data.display(), path.display());
    let ran = chimera(&format!("train {model} {places}"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let trace: Value =
        serde_json::from_slice(&std::fs::read(path).expect("a trace")).expect("JSON");
    let steps = trace["traceEvents"].as_array().expect("events").iter();
    assert_eq!(steps.filter(|event| event["name"] == "step 0").count(), 2);
}

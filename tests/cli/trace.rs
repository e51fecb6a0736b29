//! `chimera trace compare`.

use std::fs::write;

use serde_json::Value;

use crate::command::{chimera, folder};

/// Two simulated steps, the second with slower forwards.
#[test]
fn two_traces_are_compared_kind_by_kind() {
    let folder = folder();
    let [plan, run] = ["plan.json", "run.json"].map(|name| folder.path().join(name));
    let shape = "gpipe --depth 2 --micro-batches 2 --backward 2 --message 0.5";
    for (forward, file) in [(1, &plan), (2, &run)] {
        let ran =
            chimera(&format!("simulate {shape} --forward {forward} --trace {}", file.display()));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
    let compare = format!("trace compare {} {}", plan.display(), run.display());
    let printed = chimera(&compare).stdout;
    assert!(printed.lines().any(|line| line.starts_with("forward (4) ")), "{printed}");
    let ran = chimera(&format!("{compare} --json"));
    let compared: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let both = |of: &Value| ["planned", "measured"].map(|key| of[key].as_f64().expect("a number"));
    assert_eq!(both(&compared["step"]), [10.0, 13.0]);
    let kind = |name: &str| {
        let of = &compared["kinds"][name];
        ["planned", "measured"]
            .map(|key| (of[key]["count"].as_u64(), of[key]["seconds_per_rank"].as_f64()))
    };
    assert_eq!(kind("forward"), [(Some(4), Some(2.0)), (Some(4), Some(4.0))]);
    assert_eq!(kind("backward"), [(Some(4), Some(4.0)); 2]);
    assert_eq!(kind("message")[0].0, Some(4));
    assert_eq!(compared["ranks"].as_array().map(Vec::len), Some(2));
    assert_eq!(both(&compared["ranks"][1]), [6.0, 8.0]);
    let halved: Value =
        serde_json::from_str(&chimera(&format!("{compare} --seconds-per-unit 0.5 --json")).stdout)
            .expect("JSON");
    assert_eq!(both(&halved["step"]), [5.0, 13.0]);
}

#[test]
fn a_plan_in_another_unit_is_told_which() {
    let folder = folder();
    let [plan, run] = ["plan.json", "run.json"].map(|name| folder.path().join(name));
    for (unit, file) in [(1.0, &plan), (0.01, &run)] {
        let (forward, backward) = (unit, 2.0 * unit);
        let ran = chimera(&format!(
            "simulate chimera --forward {forward} --backward {backward} --trace {}",
            file.display()
        ));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
    let compare = format!("trace compare {} {}", plan.display(), run.display());
    let ran = chimera(&compare);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.contains("--seconds-per-unit 0.01 "), "{}", ran.stderr);
    let ran = chimera(&format!("{compare} --seconds-per-unit 0.01"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("+0.0 %"), "{}", ran.stdout);
}

#[test]
fn a_unit_takes_some_time() {
    for (seconds, hint) in [("0", "give the duration of a unit"), ("-1", "`-1` is not a number")] {
        let ran = chimera(&format!("trace compare a.json b.json --seconds-per-unit {seconds}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{seconds}");
        assert!(ran.stderr.contains(hint), "{seconds}: {}", ran.stderr);
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = folder();
    let file = folder.path().join("a.json");
    write(&file, "{}").expect("a file");
    let ran = chimera(&format!("trace compare {0} {0}", file.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("a.json is not a trace: write one with `train --trace`"));
    let ran = chimera("trace compare none.json none.json");
    assert!(ran.stderr.contains("cannot read none.json"), "{}", ran.stderr);
}

//! Costs and memory caps in every subcommand that simulates.

use serde_json::Value;

use crate::command::{chimera, folder};

fn makespan(line: &str) -> f64 {
    let ran = chimera(&format!("simulate {line} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    report["makespan"].as_f64().expect("a number")
}

fn refuse(line: &str, code: i32, hint: &str) {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{line}: {}", ran.stderr);
    assert!(ran.stderr.contains(hint), "{line}: {}", ran.stderr);
}

#[test]
fn halves_of_a_backward_cost_what_was_said() {
    for (line, want) in [
        ("gpipe --depth 1 --micro-batches 3 --input 2 --weight 0.5", 10.5),
        ("gpipe --depth 1 --micro-batches 3 --input 2", 12.0),
        ("gpipe --depth 1 --micro-batches 3 --backward 5", 18.0),
        // The stage before waits only for the input half.
        ("zb-h1 --depth 2 --micro-batches 1 --input 3 --weight 1", 9.0),
        ("zb-h1 --depth 2 --micro-batches 1 --backward 4", 8.0),
        ("dapple --depth 2 --micro-batches 1 --input 3 --weight 1", 10.0),
    ] {
        assert_eq!(makespan(line), want, "{line}");
    }
}

#[test]
fn times_of_what_is_not_there_are_told_of() {
    let times = "--pair 100 --recompute-time 100 --transfer 100";
    let ran = chimera(&format!("simulate gpipe --depth 1 --micro-batches 2 {times} --json"));
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["makespan"], 6.0);
    for told in [
        "`pair` has no effect: gpipe has no atomic pairs",
        "`recompute-time` has no effect: gpipe recomputes nothing",
        "`transfer` has no effect: gpipe moves no activations",
    ] {
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    for (line, want) in [
        ("dualpipe --depth 4 --micro-batches 8 --pair 3", 26.0),
        ("gpipe --depth 1 --micro-batches 2 --recompute full --recompute-time 2", 10.0),
        ("gpipe --depth 1 --micro-batches 2 --offload auto --memory-cap 2 --transfer 1", 6.0),
    ] {
        assert_eq!(makespan(line), want, "{line}");
    }
}

#[test]
fn a_list_has_a_number_for_each_stage() {
    for (line, want) in [
        // The slow stage is always busy, except for one way to it and back: 8 * 6 + 3 * 3.
        ("gpipe --micro-batches 8 --forward 1,2,1,1 --backward 2,4,2,2", 57.0),
        ("dapple --micro-batches 8 --forward 1,1,1,2 --backward 2,2,2,4", 57.0),
        ("dapple --depth 3 --micro-batches 1 --message 1,10,100", 9.0 + 11.0 + 110.0),
        ("interleaved --depth 2 --micro-batches 2 --forward 1,1,1,1 --backward 2", 15.0),
        ("dapple --depth 2 --micro-batches 1 --input 1,2 --weight 3,4", 12.0),
    ] {
        assert_eq!(makespan(line), want, "{line}");
    }
}

#[test]
fn costs_that_make_no_sense_are_refused() {
    for (options, hint) in [
        (
            "--forward 1,2",
            "--forward has 2 numbers, but chimera has 4 stages: give one number or 4",
        ),
        ("--weight 1,2,3,4,5", "--weight has 5 numbers"),
        ("--pair 1,2", "--pair has 2 numbers"),
        ("--recompute-time 1,2", "--recompute-time has 2 numbers"),
        ("--message 1,2", "--message has 2 numbers"),
        ("--forward 1,,2,3", "`` is not a number from 0 to 1e12"),
        ("--forward 1,2,3,x", "`x` is not a number"),
        ("--backward 1e13", "`1e13` is not a number from 0"),
        ("--input -1", "`-1` is not a number from 0"),
        ("--backward 2 --input 1", "--backward <B>' cannot be used with '--input <I>'"),
        ("--weight 1 --backward 2", "cannot be used with"),
        ("--memory-cap -1", "`-1` is not a number from 0"),
        ("--memory-cap some", "`some` is not a number from 0"),
    ] {
        for command in ["simulate", "schedule show", "schedule compare"] {
            let name = if command == "schedule compare" { "" } else { "chimera" };
            let hint =
                if name.is_empty() { hint.split(", but").next().unwrap_or(hint) } else { hint };
            refuse(&format!("{command} {name} {options}"), 2, hint);
        }
    }
    refuse("simulate interleaved --forward 1,1,1,1", 2, "interleaved has 8 stages");
}

#[test]
fn more_activations_than_the_cap_are_refused_where_they_are() {
    let folder = folder();
    let file = folder.path().join("chimera.json");
    let shown = chimera("schedule show chimera --json");
    std::fs::write(&file, shown.stdout).expect("a file");
    let check = format!("schedule check {}", file.display());
    for command in ["simulate chimera", "schedule show chimera", &check] {
        let ran = chimera(&format!("{command} --memory-cap 3.5"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
        let refused = "worker 2, cell 3: it holds the activations of 4 micro-batches at once, more than \
                       the limit of 3.5";
        assert!(ran.stderr.contains(refused) && ran.stderr.contains('^'), "{}", ran.stderr);
        assert_eq!(chimera(&format!("{command} --memory-cap 4")).code, Some(0));
    }
    assert_eq!(makespan("dapple --memory-cap 4"), 21.0);
}

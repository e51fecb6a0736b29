//! The schedule `auto`, wherever a schedule is named.

use std::fs::write;

use serde_json::Value;

use crate::command::{chimera, folder};

fn simulated(options: &str) -> Value {
    let ran = chimera(&format!("simulate auto {options} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The published orders of mirrored pipes take 126, and 1F1B takes 117; the bound is 105.
#[test]
fn an_order_at_the_bound_is_said_to_be_one() {
    let options = "--placement mirrored --depth 8 --micro-batches 32 --memory-cap 12";
    let found = simulated(options);
    assert_eq!(
        (&found["makespan"], &found["search"]["lower_bound"]),
        (&105.0.into(), &105.0.into())
    );
    for worker in found["workers"].as_array().expect("workers") {
        assert!(worker["peak_micro_batches"].as_f64().is_some_and(|peak| peak <= 12.0));
    }
    let drawn = chimera(&format!("schedule show auto {options}")).stdout;
    let last = drawn.lines().last().expect("a line");
    assert!(
        last.starts_with("search: makespan 105, lower bound 105 on this placement, 0.0 % above it"),
        "{last}"
    );
}

/// Without time for a search, the bound is 0.
#[test]
fn a_search_without_time_has_no_bound() {
    let found = simulated("--depth 4 --micro-batches 8 --search-time 0");
    assert_eq!(found["search"]["lower_bound"], Value::Null, "{}", found["search"]);
}

/// Of all placements; four pipes would be more copies than the limit allows.
#[test]
fn any_placement_is_chosen_within_limits() {
    let found = simulated("--micro-batches 8");
    assert_eq!((&found["makespan"], &found["search"]["lower_bound"]), (&25.0.into(), &25.0.into()));
    assert_eq!(found["search"]["placement"], "mirrored --pipes 2");
    let limit = &found["search"]["limits"][0];
    assert_eq!((&limit["name"], &limit["makespan"]), (&"weight-copies".into(), &24.0.into()));
    let more = simulated("--micro-batches 8 --weight-copies 4");
    assert_eq!(more["makespan"], 24.0);
    let capped = simulated("--depth 8 --micro-batches 16 --memory-cap 4");
    assert!(capped["makespan"].as_f64().is_some_and(|makespan| makespan <= 59.5), "{capped:#}");
}

/// Every placement cuts each of the D parts into as many pieces.
#[test]
fn times_of_a_list_are_those_of_parts_of_the_model() {
    let times = "--micro-batches 8 --forward 1,1,1,2 --backward 2,2,2,4";
    let found = simulated(times);
    let line = simulated(&format!("{times} --placement line --split-backward"));
    assert!(found["makespan"].as_f64() < line["makespan"].as_f64(), "{found:#}");
    for other in ["--max-chunks 1", "--weight-copies 1", "--max-chunks 4"] {
        simulated(&format!("{times} {other}"));
    }
}

/// One pipe on a line that begins on the last worker.
#[test]
fn an_own_placement_is_one_more() {
    let folder = folder();
    let file = folder.path().join("mine.json");
    let shown = chimera("schedule show 1f1b --depth 2 --micro-batches 2 --json").stdout;
    let mut own: Value = serde_json::from_str(&shown).expect("JSON");
    own["placement"] = serde_json::json!([[1, 0]]);
    own["rows"].as_array_mut().expect("rows").reverse();
    write(&file, own.to_string()).expect("a file");
    let options = format!("--depth 2 --own-placement {}", file.display());
    let ran = chimera(&format!("simulate auto {options}"));
    assert!(ran.stdout.contains("over 5 placement(s)"), "{}{}", ran.stdout, ran.stderr);
    let other = chimera(&format!("simulate auto --depth 3 --own-placement {}", file.display()));
    assert_eq!(other.code, Some(2), "{}", other.stdout);
    assert!(other.stderr.contains("on 2 workers: choose --depth 2"), "{}", other.stderr);
}

/// Named with what was done to it.
#[test]
fn the_schedule_that_it_is_is_one_that_takes_as_long() {
    for (options, is) in [
        ("--placement line --recompute full", "gpipe"),
        ("--depth 8 --recompute full --placement mirrored", "chimera --hoist auto"),
        ("--placement mirrored --split-backward", "chimera --split-backward"),
    ] {
        let found = simulated(options);
        assert_eq!(found["search"]["schedule"], is, "{options}: {found:#}");
        let name = is.trim_end_matches(" --split-backward"); // the name already has it
        let ran = chimera(&format!("simulate {name} {options} --json"));
        let made: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(made["makespan"], found["makespan"], "{options}");
    }
}

/// The search starts from the schedules of the table, on the same placement and with the same cap.
#[test]
fn nothing_of_the_table_is_better() {
    for (placement, schedules) in [
        ("--placement line", ["gpipe", "dapple"].as_slice()),
        ("--placement line --split-backward", &["zb-h1", "zb-h2", "dapple", "gpipe"]),
        ("--placement v --split-backward", &["zb-v", "v-half", "v-min", "dualpipe-v"]),
        ("--placement interleaved", &["interleaved"]),
        ("--placement wave --waves 1", &["hanayo"]),
        (
            "--placement mirrored",
            &["chimera --scaling direct", "mixpipe", "gems", "chimera --scaling doubling"],
        ),
        ("--placement mirrored", &["mixpipe --in-flight 4", "mixpipe --in-flight 6"]),
        ("--placement mirrored --pipes 4", &["chimera --scaling direct"]),
        ("--placement line --recompute full", &["gpipe", "dapple", "dapple --hoist auto"]),
        (
            "--placement mirrored --recompute full --memory-cap 2",
            &["chimera --scaling direct", "chimera --scaling direct --hoist auto", "gems"],
        ),
        ("--placement line --forward 3,1,1,2 --message 1", &["1f1b", "1f1b --in-turn 3"]),
        ("--placement v --split-backward --pair 2", &["dualpipe-v", "zb-v"]),
        (
            "--placement v --split-backward --pair 2 --forward 2,3,0.5,2,0.5,2,3,0.5 \
             --backward 0.5,1,1,1,0.5,3,1,2",
            &["dualpipe-v", "zb-v"],
        ),
    ] {
        let cap = if placement.contains("cap") { "" } else { "--memory-cap 8" };
        let options = format!("{placement} --micro-batches 8 {cap}");
        let found = simulated(&options)["makespan"].as_f64().expect("a time");
        for schedule in schedules {
            let ran = chimera(&format!("simulate {schedule} {options} --json"));
            if ran.code == Some(3) {
                continue; // it exceeds the cap
            }
            let made: Value = serde_json::from_str(&ran.stdout).expect("JSON");
            assert!(
                made["makespan"].as_f64().is_some_and(|it| found <= it),
                "{placement} {schedule}"
            );
        }
    }
}

#[test]
fn what_is_found_is_a_timetable_as_any_other() {
    let folder = folder();
    let file = folder.path().join("found.json");
    let found = chimera(
        "schedule show auto --placement mirrored --micro-batches 8 --memory-cap 3 --format json",
    );
    write(&file, &found.stdout).expect("a file");
    let proof = chimera(&format!("schedule check {} --memory-cap 3", file.display()));
    assert_eq!(proof.code, Some(0), "{}", proof.stderr);
    let over = chimera(&format!("schedule check {} --memory-cap 2", file.display()));
    assert_eq!(over.code, Some(3), "{}", over.stdout);
}

#[test]
fn what_cannot_be_searched_for_is_refused() {
    for (options, code, hint) in [
        (
            "--memory-cap 0.1",
            3,
            "no order was found that keeps to the activations of 0.1 micro-batches",
        ),
        (
            "--placement mirrored --memory-cap 0.5",
            3,
            "no order was found that keeps to the activations of 0.5 micro-batches",
        ),
        ("--placement mirrored --pipes 3", 2, "they come in pairs"),
        ("--placement mirrored --pipes 64", 2, "at most 4 down and 4 up"),
        (
            "--placement ring",
            2,
            "unknown placement `ring`: choose one of any, line, interleaved, v, wave",
        ),
        ("--depth 4000 --micro-batches 4000", 2, "48000000 ops are too many"),
        ("--depth 0", 2, "--depth is 0"),
        ("--depth 4294967296", 2, "depth 4294967296 is more than 8192"),
        ("--recompute full --hoist 2", 2, "it recomputes wherever is best: leave --hoist 2 out"),
        ("--recompute full --hoist on-demand", 2, "leave --hoist on-demand out"),
        ("--placement wave --waves 0", 2, "--waves is 0"),
        ("--placement wave --waves 9223372036854775807", 2, "a whole number from 1 to 32767"),
        ("--placement wave --waves 32767", 2, "stages are more than 65535"),
        ("--placement line --depth 70000 --micro-batches 1", 2, "depth 70000 is more than 8192"),
        (
            "--placement interleaved --depth 1 --chunks 100000",
            2,
            "100000 stages are more than 65535",
        ),
        (
            "--placement mirrored --depth 8000 --pipes 16000 --micro-batches 1",
            2,
            "ops are too many",
        ),
        ("--forward 1,2", 2, "--forward has 2 numbers, but"),
        ("--search-time -1", 2, "is not a number from 0"),
    ] {
        let ran = chimera(&format!("simulate auto {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{options}");
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

/// The comparison goes on and reports why a search is not possible.
#[test]
fn a_comparison_goes_on_without_it() {
    let ran =
        chimera("schedule compare auto gpipe gems --placement mirrored --memory-cap 1 --pipes 3");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("\nauto: 3 mirrored pipes"), "{}", ran.stdout);
}

/// Without time, the search returns any order that fits, without a bound.
#[test]
fn without_any_time_something_is_found() {
    let job = "--placement line --depth 8 --recompute full --split-backward --search-time 0";
    let ran = chimera(&format!("simulate auto {job}"));
    let last = ran.stdout.lines().last().expect("a line");
    assert!(last.starts_with("search: makespan 53, no time to find a lower bound"), "{last}");
}

#[test]
fn a_report_is_a_number_even_of_nothing() {
    let ran = chimera("simulate auto --forward 0 --backward 0");
    assert!(
        ran.stdout.contains("lower bound 0 over 4 placement(s), 0.0 % above it"),
        "{}",
        ran.stdout
    );
}

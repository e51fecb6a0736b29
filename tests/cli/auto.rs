//! `auto`, wherever a schedule is named.

use std::fs::write;

use serde_json::Value;

use crate::command::{chimera, folder};

fn simulated(options: &str) -> Value {
    let ran = chimera(&format!("simulate auto {options} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The published orders of mirrored pipes take 126, 117 for 1F1B; 105 is the bound.
#[test]
fn an_order_at_the_bound_is_said_to_be_one() {
    let found = simulated("--depth 8 --micro-batches 32 --memory-cap 12");
    assert_eq!(
        (&found["makespan"], &found["search"]["lower_bound"]),
        (&105.0.into(), &105.0.into())
    );
    for worker in found["workers"].as_array().expect("workers") {
        assert!(worker["peak_micro_batches"].as_f64().is_some_and(|peak| peak <= 12.0));
    }
    let drawn = chimera("schedule show auto --depth 8 --micro-batches 32 --memory-cap 12").stdout;
    let last = drawn.lines().last().expect("a line");
    assert!(last.starts_with("search: makespan 105, lower bound 105, 0.0 % above it"), "{last}");
}

/// On the same placement and cap, the schedules of the table are starts.
#[test]
fn nothing_of_the_table_is_better() {
    for (placement, schedules) in [
        ("--placement line", ["gpipe", "dapple"].as_slice()),
        ("--placement line --split-backward", &["zb-h1", "zb-h2", "dapple", "gpipe"]),
        ("--placement v --split-backward --chunks 2", &["zb-v", "v-half", "v-min", "dualpipe-v"]),
        ("--placement interleaved", &["interleaved"]),
        ("--placement wave --waves 1", &["hanayo"]),
        ("--placement mirrored", &["chimera", "mixpipe", "gems", "chimera --scaling doubling"]),
        ("--pipes 4", &["chimera"]),
    ] {
        let options = format!("{placement} --micro-batches 8 --search-time 0 --memory-cap 8");
        let found = simulated(&options)["makespan"].as_f64().expect("a time");
        for schedule in schedules {
            let ran = chimera(&format!("simulate {schedule} {options} --json"));
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
    let found = chimera("schedule show auto --micro-batches 8 --memory-cap 3 --format json");
    write(&file, &found.stdout).expect("a file");
    let proof = chimera(&format!("schedule check {} --memory-cap 3", file.display()));
    assert_eq!(proof.code, Some(0), "{}", proof.stderr);
    let over = chimera(&format!("schedule check {} --memory-cap 2", file.display()));
    assert_eq!(over.code, Some(3), "{}", over.stdout);
}

#[test]
fn what_cannot_be_searched_for_is_refused() {
    for (options, hint) in [
        ("--memory-cap 0.5", "no order keeps to the residuals of 0.5 micro-batches"),
        ("--pipes 3", "mirrored pipes come in pairs"),
        ("--pipes 64", "at most 4 down and 4 up"),
        ("--placement ring", "unknown placement `ring`: choose one of line, interleaved, v, wave"),
        ("--depth 4000 --micro-batches 4000", "48000000 ops are too many"),
        ("--depth 0", "at least one of all"),
        ("--placement wave --waves 9223372036854775807", "ops are too many"),
        ("--forward 1,2", "--forward has 2 numbers, but"),
        ("--search-time -1", "is not a number from 0"),
    ] {
        let ran = chimera(&format!("simulate auto {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

//! `chimera top`: the display of a run in progress.

use std::fs::{OpenOptions, read_to_string, remove_file, write};
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{chimera, folder};

/// Writes the files of a run of two ranks that has done `n_steps` of 40 steps.
fn run(folder: &Path, n_steps: u64) {
    write(folder.join("config.toml"), "steps = 40 # command line\n").expect("settings");
    write(folder.join("metrics.jsonl"), (0..n_steps).map(line).collect::<String>())
        .expect("metrics");
}

fn line(step: u64) -> String {
    let loss = 2.0 + 3.0 / (1.0 + step as f64);
    let validation = match step % 5 {
        4 => format!(r#""validation_loss":{},"perplexity":9.0,"#, loss + 0.25),
        _ => String::new(),
    };
    format!(
        r#"{{"step":{step},"loss":{loss},"grad_norm":0.5,"lr":0.001,"tokens":1000,"tokens_seen":{},"step_s":0.5,"tokens_per_s":{}.0,"bubble_ratio":0.25,"bytes":3145728,{validation}"ranks":[{{"bubble_ratio":0.125,"bytes":1048576}},{{"bubble_ratio":0.375,"bytes":2097152}}]}}
"#,
        (step + 1) * 1000,
        1000 + 40 * (step % 7)
    )
}

fn top(run: &Path) -> String {
    let ran = chimera(&format!("top {}", run.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    ran.stdout.replace(&run.display().to_string(), "RUN")
}

#[test]
fn loss_speed_and_ranks_are_drawn() {
    let folder = folder();
    run(folder.path(), 30);
    insta::assert_snapshot!(top(folder.path()));
}

/// Writes the files of a run of three ranks that have joined a host.
fn hosted(folder: &Path) {
    write(folder.join("config.toml"), "steps = 9\n").expect("settings");
    let ranks = r#"{"bubble_ratio":0.25,"bytes":1048576,"reductions_s":0.004,"peers":[{"rank":1,"wait_s":0.1,"sent_bytes":2000000,"busy_s":0.04,"round_trip_s":0.0213}]},
        {"bubble_ratio":0.375,"bytes":2097152,"sync_s":0.02,"peers":[{"rank":0,"wait_s":0.05,"sent_bytes":1000000,"busy_s":0.05,"round_trip_s":0.0213},{"rank":2,"wait_s":0.15,"sent_bytes":2000000,"busy_s":0.1,"round_trip_s":0.0002}]},
        {"bubble_ratio":0.5,"bytes":2097152,"peers":[{"rank":7,"wait_s":0.25}]}"#;
    let ranks = ranks.replace('\n', "");
    let line = |step: u64| {
        format!(
            r#"{{"step":{step},"loss":2.5,"grad_norm":0.5,"lr":0.001,"tokens":1000,"step_s":0.5,"tokens_per_s":2000.0,"bubble_ratio":0.375,"ranks":[{ranks}]}}"#
        ) + "\n"
    };
    write(folder.join("metrics.jsonl"), (0..3).map(line).collect::<String>()).expect("metrics");
    let member = |rank: u64, name: &str| {
        let trip = if rank == 0 { "null" } else { "0.0213" };
        format!(
            r#"{{"rank":{rank},"name":"{name}","system":"linux x86_64","device":"cpu","threads":2,"flops":9.31e10,"round_trip_s":{trip}}}"#
        )
    };
    let members = [(0, "alpha"), (1, "beta"), (2, "a\\u001b[31m very long name")];
    let members = members.map(|(rank, name)| member(rank, name)).join(",");
    write(folder.join("members.json"), format!("[{members}]")).expect("members");
}

/// A member's name, and the ranks in another's record, may be anything.
#[test]
fn members_waits_and_links_are_drawn() {
    let folder = folder();
    hosted(folder.path());
    insta::assert_snapshot!(top(folder.path()));
}

#[test]
fn the_same_is_json() {
    let folder = folder();
    hosted(folder.path());
    let ran = chimera(&format!("top --json {}", folder.path().display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let top: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        (&top["state"], &top["steps"], &top["last"]["step"]),
        (&json!("ended"), &json!(9), &json!(2))
    );
    assert_eq!(top["members"][1]["name"], json!("beta"));
    let rank = &top["means"]["ranks"][1];
    let near = |value: &Value, expected: f64| {
        assert!(
            (value.as_f64().expect("a number") - expected).abs() < 1e-9,
            "{value}, not {expected}"
        );
    };
    near(&rank["computing"], 0.625);
    near(&rank["waits_s"]["2"], 0.15);
    near(&rank["sync_s"], 0.02);
    near(&rank["links"]["0"]["sent_bytes"], 1e6);
    near(&rank["links"]["0"]["round_trip_s"], 0.0213);
}

#[test]
fn a_run_is_running_finished_or_failed() {
    let folder = folder();
    let head = || top(folder.path()).lines().next().expect("a line").to_string();
    run(folder.path(), 0);
    assert!(top(folder.path()).contains("no step yet"));
    run(folder.path(), 40);
    assert_eq!(head(), "RUN  40 of 40 steps  finished");
    let error = r#"{"rank": 1, "message": "a loss that is not finite"}"#;
    write(folder.path().join("error.1.json"), error).expect("an error");
    assert_eq!(head(), "RUN  40 of 40 steps  failed: a loss that is not finite");
    remove_file(folder.path().join("error.1.json")).expect("a file");
    run(folder.path(), 30);
    let lock = |pid: u32| {
        let lock = format!(r#"{{"pid": {pid}, "host": "{}", "since": 0}}"#, host());
        write(folder.path().join("lock"), lock).expect("a lock");
    };
    lock(std::process::id());
    let metrics = folder.path().join("metrics.jsonl");
    let mut metrics = OpenOptions::new().append(true).open(metrics).expect("metrics");
    write!(metrics, r#"{{"step":30,"lo"#).expect("half a line");
    assert_eq!(head(), "RUN  30 of 40 steps  running, 5 s left");
    lock(u32::MAX);
    assert_eq!(head(), "RUN  30 of 40 steps  stopped early");
}

/// This machine, as a lock file names it.
fn host() -> String {
    let host = read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_string()
}

#[test]
fn whatever_numbers_there_are_it_is_drawn() {
    let folder = folder();
    run(folder.path(), 3);
    let metrics = folder.path().join("metrics.jsonl");
    let skipped = line(3).replace("\"loss\":2.75", "\"loss\":null");
    let huge = line(4).replace("\"step\":4", "\"step\":18446744073709551615");
    let huge = huge.replace("\"step_s\":0.5", "\"step_s\":1e300");
    for (content, said) in [
        (line(0) + &skipped, "4 of 40 steps"),
        (skipped.clone(), "loss NaN"),
        (line(0) + &huge, "18446744073709551615 of 40 steps"),
        (line(0) + &line(3).replace("2.75", "1e308"), "4 of 40 steps"),
        (line(0) + &line(3).replace("2.75", "-1e308") + &line(4), "5 of 40 steps"),
        (line(3) + &line(2) + "nonsense\n" + &line(4), "(2 damaged line(s) of metrics left out)"),
    ] {
        write(&metrics, content).expect("metrics");
        let drawn = top(folder.path());
        assert!(drawn.contains(said), "{drawn}");
    }
}

/// A folder may have been copied, and metrics may be in another folder.
#[test]
fn metrics_that_are_missing_are_told_where_they_belong() {
    let folder = folder();
    for (settings, said) in [
        ("", "copy it too"),
        ("metrics = \"elsewhere.jsonl\"\n", "follow the run from there"),
        ("metrics = \"/nowhere/metrics.jsonl\"\n", "is the run from another machine?"),
    ] {
        write(folder.path().join("config.toml"), format!("steps = 40\n{settings}"))
            .expect("settings");
        let ran = chimera(&format!("top {}", folder.path().display()));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
        assert!(ran.stderr.contains("cannot read ") && ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = folder();
    let path = folder.path().display();
    for (content, said) in [
        (None, "is not the folder of a run"),
        (Some("nonsense\n".to_string()), "no metrics of a step"),
    ] {
        if let Some(content) = content {
            run(folder.path(), 0);
            write(folder.path().join("metrics.jsonl"), content).expect("metrics");
        }
        let ran = chimera(&format!("top {path}"));
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

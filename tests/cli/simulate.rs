//! `chimera simulate`.

use serde_json::Value;

use crate::command::{chimera, folder};

fn simulate(line: &str) -> Value {
    let ran = chimera(&format!("simulate {line} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Options that the schedule does not read cause one warning each; the others cause none.
#[test]
fn what_has_no_effect_is_warned_of() {
    for (line, options) in [
        ("simulate 1f1b --in-turn 2 --depth 4", ""),
        ("simulate 1f1b --window 0", "window"),
        ("schedule show 1f1b --chunks 3 --pipes 4 --json", "pipes chunks"),
        ("schedule export gems --format svg --search-time 1", "search-time"),
        ("simulate auto --placement line --scaling halving --waves 3 --search-time 0", "waves"),
        ("schedule compare 1f1b --pipes 4", "pipes"),
        ("schedule compare 1f1b gpipe --pipes 4 --waves 3", "pipes waves"),
        ("schedule compare 1f1b chimera --pipes 4 --json", ""),
        ("schedule compare chimera \"1f1b --waves 3\"", "waves"),
        ("schedule compare 1f1b --search-time 1", "search-time"),
        ("simulate 1f1b --sync at-end", "sync"),
        ("simulate 1f1b --width 5", "width"),
        ("simulate 1f1b --width 2 --speeds 1,1,1,1,0.5", ""),
        ("simulate 1f1b --sync eager --gradient-bytes 5 --inside 1,0", "sync"),
        ("simulate chimera --sync eager --gradient-bytes 5 --inside 1,0", ""),
        ("simulate 1f1b --width 2 --sync eager --gradient-bytes 5 --inside 1,0", ""),
        ("simulate 1f1b --saved-bytes 9 --inside 1,0", "saved-bytes"),
        ("simulate 1f1b --saved-bytes 9 --inside 1,0 --bpipe", ""),
        ("simulate interleaved --bpipe", "bpipe"),
        ("schedule show chimera --bpipe", "bpipe"),
    ] {
        let ran = chimera(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        let warned =
            |told: &str, option| told.starts_with(&format!("warning: `{option}` has no effect: "));
        let (told, options): (Vec<_>, Vec<_>) =
            (ran.stderr.lines().collect(), options.split_whitespace().collect());
        assert_eq!(told.len(), options.len(), "{line}: {}", ran.stderr);
        assert!(told.iter().zip(options).all(|(told, option)| warned(told, option)), "{told:?}");
    }
}

/// The published makespans.
#[test]
fn makespans_are_those_of_the_papers() {
    for (line, makespan) in [
        ("gpipe --depth 4 --micro-batches 8", 33.0),
        ("dapple --depth 4 --micro-batches 8", 33.0),
        ("1f1b --depth 4 --micro-batches 8", 33.0),
        ("gems --depth 4 --micro-batches 8", 75.0),
        ("interleaved --depth 4 --micro-batches 8", 28.5),
        ("interleaved --depth 4 --micro-batches 8 --forward 1", 57.0),
        ("zb-v --depth 4 --micro-batches 8", 25.5),
        ("zb-v --depth 4 --micro-batches 8 --backward 2", 51.0),
        ("1f1b --depth 4 --micro-batches 8 --in-turn 4", 33.0),
        ("zb-h1 --depth 4 --micro-batches 8", 27.0),
        ("zb-h2 --depth 4 --micro-batches 8", 27.0),
        ("dualpipe --depth 4 --micro-batches 8", 26.0),
        ("dualpipe --depth 8 --micro-batches 20", 66.0),
        ("dualpipe-v --depth 4 --micro-batches 10", 33.0),
        ("chimera --depth 4", 16.0),
        ("chimera --depth 8 --pipes 4", 28.0),
        ("chimera --depth 8 --pipes 8", 24.0),
        ("chimera --depth 4 --micro-batches 2", 12.0),
        ("chimera --depth 4 --micro-batches 8", 26.0),
        ("chimera --depth 4 --micro-batches 8 --scaling direct", 30.0),
        ("chimera --depth 4 --micro-batches 8 --scaling doubling", 27.0),
        ("chimera --depth 4 --micro-batches 12 --scaling doubling", 41.0),
        ("chimera --depth 4 --micro-batches 8 --scaling halving", 26.0),
        ("chimera --depth 8 --micro-batches 16 --scaling halving", 54.0),
    ] {
        assert_eq!(number(&simulate(line)["makespan"]), makespan, "{line}");
    }
}

/// Without given times, all schedules of a shape cut the same model.
#[test]
fn one_unit_holds_for_all_that_print_times() {
    const UNIT: &str = "a forward of a micro-batch through 1/D of the model";
    let shape = "--depth 4 --micro-batches 8";
    let compared = chimera(&format!("schedule compare --json {shape}")).stdout;
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    assert_eq!(compared["unit"], UNIT);
    for run in compared["schedules"].as_array().expect("schedules") {
        let name = run["name"].as_str().expect("a name");
        let schedule = name.split(' ').next().unwrap_or(name);
        if ["pipedream", "pipedream-2bw", "timeprest", "pipeoptim"].contains(&schedule) {
            continue; // a window of several steps
        }
        let simulated = simulate(&format!("{name} {shape}"));
        assert_eq!((&simulated["unit"], &simulated["makespan"]), (&UNIT.into(), &run["makespan"]));
        let shown = chimera(&format!("schedule show {name} {shape}")).stdout;
        let makespan = number(&run["makespan"]);
        assert!(shown.contains(&format!("makespan {makespan}, ")), "{shown}");
        assert!(shown.contains(&format!("unit of time: {UNIT}\n")), "{shown}");
    }
    for given in ["--message 0", "--transfer 1 --offload auto"] {
        let simulated = simulate(&format!("zb-v {shape} {given}"));
        assert_eq!((&simulated["unit"], &simulated["makespan"]), (&UNIT.into(), &25.5.into()));
    }
    let compared = chimera(&format!("schedule compare --json {shape} --message 0.5")).stdout;
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    for run in compared["schedules"].as_array().expect("schedules") {
        if ["zb-v", "interleaved", "1f1b"].contains(&run["name"].as_str().expect("a name")) {
            let name = run["name"].as_str().expect("a name");
            let simulated = simulate(&format!("{name} {shape} --message 0.5"));
            assert_eq!(simulated["makespan"], run["makespan"], "{name}");
        }
    }
    assert!(chimera("schedule show zb-v --forward 1").stdout.contains("unit of time: as given"));
}

#[test]
fn costs_are_those_that_were_given() {
    for (line, makespan) in [
        ("dapple --depth 4 --backward 1", 14.0),
        ("chimera --depth 4 --backward 1", 10.0),
        ("chimera --depth 4 --pipes 4 --backward 1", 8.0),
        ("dapple --depth 4 --micro-batches 1 --forward 3 --backward 5 --message 0.5", 35.0),
        ("gpipe --depth 1 --micro-batches 3 --forward 0.25 --backward 0.5 --message 9", 2.25),
        ("gpipe --depth 2 --micro-batches 1 --forward 0 --backward 0 --message 3", 6.0),
    ] {
        assert_eq!(number(&simulate(line)["makespan"]), makespan, "{line}");
    }
}

#[test]
fn without_a_border_schedules_keep_their_gain_at_each_step() {
    for (line, makespan) in [
        ("zb-h2 --depth 4 --micro-batches 8 --window 4", 99.0),
        ("zb-v --depth 4 --micro-batches 8 --window 4", 97.5),
        ("chimera --depth 4 --micro-batches 4 --window 1", 16.0),
    ] {
        let simulated = simulate(&format!("{line} --border free"));
        assert_eq!(number(&simulated["makespan"]), makespan, "{line}");
    }
}

#[test]
fn json_has_the_keys_that_were_promised() {
    let simulated = simulate("dapple --depth 4 --micro-batches 8");
    let keys = |value: &Value| -> Vec<String> {
        let object = value.as_object().expect("an object");
        object.keys().cloned().collect() // sorted
    };
    let own = [
        "agreement",
        "bubble_by_cause",
        "bubble_ratio",
        "makespan",
        "step",
        "sums",
        "sums_exposed",
        "unit",
        "workers",
    ];
    assert_eq!(keys(&simulated), own);
    let workers = simulated["workers"].as_array().expect("workers");
    let mut idle = 0.0;
    for worker in workers {
        let of_worker =
            ["busy", "free_micro_batches", "idle", "peak_micro_batches", "slack", "windows"];
        assert_eq!(keys(worker), of_worker);
        let windows = worker["windows"].as_array().expect("windows").iter();
        let length: f64 = windows.map(|window| number(&window[1]) - number(&window[0])).sum();
        assert_eq!(length, number(&worker["idle"]));
        assert_eq!(worker["slack"].as_array().map(Vec::len), Some(16));
        assert_eq!(number(&worker["busy"]), 24.0);
        assert_eq!(number(&worker["busy"]) + number(&worker["idle"]), 33.0);
        idle += number(&worker["idle"]);
    }
    let peaks: Vec<f64> = workers.iter().map(|w| number(&w["peak_micro_batches"])).collect();
    assert_eq!(peaks, [4.0, 3.0, 2.0, 1.0]);
    let ratio = number(&simulated["bubble_ratio"]);
    assert!((ratio - 3.0 / 11.0).abs() < 1e-12 && (ratio - idle / (33.0 * 4.0)).abs() < 1e-12);
}

#[test]
fn a_window_without_a_flush_tells_its_steps_and_versions() {
    let simulated = simulate("pipedream --depth 3 --micro-batches 4 --window 5");
    assert_eq!(simulated["makespan"], 3.0 * (20.0 + 2.0));
    assert_eq!(simulated["steps"], 5);
    assert_eq!(simulated["weight_versions"], serde_json::json!([3, 2, 1]));
    let ran = chimera("simulate pipedream-2bw --depth 3 --micro-batches 4 --window 4");
    let words = "makespan 54 of 4 steps, bubble ratio 0.1111, peak activations of 3 micro-batches, \
                 at most 2 versions of the weights, 64 messages";
    assert!(ran.stdout.contains(words), "{}", ran.stdout);
}

#[test]
fn a_bidirectional_pipeline_needs_little_memory_and_idles_little() {
    let peaks = |line: &str| -> Vec<f64> {
        let simulated = simulate(line);
        let workers = simulated["workers"].as_array().expect("workers");
        workers.iter().map(|w| number(&w["peak_micro_batches"])).collect()
    };
    assert_eq!(peaks("chimera --scaling direct --depth 4 --micro-batches 8"), [3.0, 4.0, 4.0, 3.0]);
    assert_eq!(peaks("gpipe --depth 4 --micro-batches 8"), [8.0; 4]);
    assert_eq!(peaks("gems --depth 4 --micro-batches 8"), [1.0; 4]);
    assert_eq!(
        peaks("chimera --depth 4 --micro-batches 8 --scaling halving"),
        [3.5, 4.0, 4.0, 3.5]
    );
}

#[test]
fn a_table_is_printed_for_people() {
    let ran = chimera("simulate chimera --depth 4 --micro-batches 8");
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.starts_with("chimera, backwards halved: makespan 26,"), "{}", ran.stdout);
    assert!(ran.stdout.contains("critical path"), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 9, "{}", ran.stdout);
}

#[test]
fn small_times_are_not_rounded_away() {
    let ran = chimera("simulate dapple --depth 2 --forward 1e-7 --backward 2.5e-7");
    assert!(ran.stdout.starts_with("1f1b: makespan 1.05e-6,"), "{}", ran.stdout);
    let worker = ran.stdout.lines().find(|line| line.trim().starts_with("0 ")).expect("a worker");
    let figures: Vec<&str> = worker.split_whitespace().collect();
    assert_eq!(figures, ["0", "7e-7", "3.5e-7", "2"]);
}

/// A run takes at least its simulated time. The excess depends on the load of the machine.
#[test]
fn a_schedule_is_run_beside_its_simulation() {
    for line in [
        "chimera --depth 4 --forward 2,1,3,2 --backward 3 --message 0.5",
        "pipedream-2bw --depth 3 --micro-batches 4 --window 3 --input 1 --weight 2",
        "dualpipe --depth 4 --micro-batches 8 --pair 2.5 --recompute full",
    ] {
        let ran = simulate(&format!("{line} --execute 0.001"));
        let [simulated, measured] = ["makespan", "measured_makespan"].map(|key| number(&ran[key]));
        assert!(measured >= 0.9 * simulated, "{line}: {measured} of {simulated}");
        let path = number(&ran["measured_critical_path"]);
        assert!(path > 0.0 && path <= simulated * (1.0 + 1e-9), "{line}: {path} of {simulated}");
        for (whole, parts) in
            [("bubble_ratio", "bubble_by_cause"), ("measured_bubble", "measured_bubble_by_cause")]
        {
            let parts = ran[parts].as_object().expect("causes").values().map(number);
            let (whole, sum) = (number(&ran[whole]), parts.sum::<f64>());
            assert!((whole - sum).abs() < 1e-6, "{line}: {whole} is not {sum}");
        }
    }
    let ran = chimera("simulate gpipe --depth 2 --micro-batches 2 --execute 1e-4");
    assert!(ran.stdout.contains("\nmakespan ") && ran.stdout.contains("\ncritical path "));
    for (line, why) in [
        ("--execute 0", "ops that take no time cannot be measured"),
        ("--execute 100", "6 runs would take 90 min, more than an hour"),
        ("--execute 1 --forward 0 --backward 0", "the schedule takes no time"),
    ] {
        let refused = chimera(&format!("simulate gpipe --depth 2 --micro-batches 2 {line}"));
        assert_eq!(refused.code, Some(2), "{line}: {}", refused.stderr);
        assert!(refused.stderr.contains(why), "{line}: {}", refused.stderr);
    }
}

/// Work fills all idle time, and the figures of the step leave it out.
#[test]
fn work_fills_idle_time() {
    let simulated = simulate(
        "chimera --depth 4 --micro-batches 4 --work factors=0.5 --work inverses=1 --execute 1e-3",
    );
    assert_eq!([&simulated["makespan"], &simulated["bubble_ratio"]].map(number), [16.0, 0.25]);
    assert!(number(&simulated["measured_makespan"]) > 0.0);
    for worker in simulated["workers"].as_array().expect("workers") {
        let times = |key: &str| -> Vec<(f64, f64)> {
            let all = worker[key].as_array().expect("times").iter();
            let ends = |time: &serde_json::Value| {
                let time = time.as_array().expect("begin and end");
                (number(&time[time.len() - 2]), number(&time[time.len() - 1]))
            };
            all.map(ends).collect()
        };
        let (windows, work) = (times("windows"), times("work"));
        let is_within =
            |(from, to): &(f64, f64)| windows.iter().any(|(begin, end)| begin <= from && to <= end);
        assert!(work.iter().all(is_within), "{work:?} in {windows:?}");
        assert_eq!(work.iter().map(|(from, to)| to - from).sum::<f64>(), 4.0);
        assert_eq!(worker["idle"], 4.0);
    }
    let drawn = chimera("schedule show chimera --depth 4 --micro-batches 4 --work factors=1");
    assert!(drawn.stdout.contains("P0 0  1  0x 2"), "{}", drawn.stdout);
    assert!(drawn.stdout.contains("\nwork beside the training: x factors\n"), "{}", drawn.stdout);
    let two =
        "schedule show chimera --depth 4 --micro-batches 4 --work factors=0.5 --work inverses=1";
    let drawn = chimera(two).stdout;
    let works = "\nwork beside the training: x factors, y inverses\n";
    assert!(drawn.contains(works) && drawn.contains(" 0y"), "{drawn}");
    let drawn = chimera(&format!("{two} --format svg")).stdout;
    assert!(drawn.contains(">work: factors<") && drawn.contains(">work: inverses<"), "{drawn}");
}

/// The passes on the critical path are the paper's, and so is their sum if stages are equal and
/// messages free.
#[test]
fn the_closed_form_stands_beside_the_simulation() {
    for (schedule, c_f, c_b) in [("chimera", 6.0, 10.0), ("1f1b", 11.0, 11.0)] {
        let simulated = simulate(&format!("{schedule} --depth 6 --micro-batches 6 --closed-form"));
        let form = &simulated["closed_form"];
        assert_eq!([&form["c_f"], &form["c_b"]].map(number), [c_f, c_b], "{schedule}");
        assert_eq!(form["step"], simulated["makespan"], "{schedule}");
    }
    // Some of their backwards are whole, and some split.
    for schedule in ["dualpipe", "dualpipe-v"] {
        let simulated = simulate(&format!("{schedule} --depth 4 --micro-batches 8 --closed-form"));
        assert_eq!(simulated["closed_form"]["step"], simulated["makespan"], "{schedule}");
    }
    for cut in
        ["seq1f1b --slices 4", "seq1f1b --slices 16", "chimera --scaling halving --micro-batches 8"]
    {
        let simulated = simulate(&format!("{cut} --message 0.5 --closed-form"));
        let form = &simulated["closed_form"];
        assert!(number(&form["over_simulated"]) >= 1.0, "{cut}: {form}");
        assert!(
            number(&form["c_m"]) > number(&form["c_f"]) + number(&form["c_b"]),
            "{cut}: {form}"
        );
    }
    let moved = simulate("1f1b --depth 6 --micro-batches 6 --closed-form --bpipe --transfer 1");
    assert_eq!(number(&moved["closed_form"]["backward"]), 2.0, "moves run beside backwards");
}

#[test]
fn a_file_says_into_how_many_parts_it_cuts_micro_batches() {
    let folder = folder();
    let file = folder.path().join("thirds.json");
    let op = |kind: &str, part: u32| {
        format!(r#"{{"kind":"{kind}","pipe":0,"stage":0,"micro_batches":[{part}]}}"#)
    };
    let row: Vec<String> = ["F", "B"].iter().flat_map(|k| (0..3).map(|n| op(k, n))).collect();
    let timetable = format!(
        r#"{{"schedule":"thirds","depth":1,"stages":1,"pipes":1,"micro_batches":1,"unit":{},"placement":[[0]],
            "rows":[[{}]]}}"#,
        1.0 / 3.0,
        row.join(",")
    );
    std::fs::write(&file, timetable).expect("a file");
    let ran = chimera(&format!("simulate {}", file.display()));
    assert!(
        ran.stdout.starts_with("thirds, in 3 parts: makespan 3"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
}

/// Each of 16 activations and gradients crosses 7 edges; 17 saved activations go away and come
/// back.
#[test]
fn notices_that_memory_is_free_are_no_messages() {
    let ran = chimera("simulate 1f1b --depth 8 --micro-batches 16 --bpipe");
    let n = 2 * 16 * 7 + 2 * 17;
    assert!(ran.stdout.contains(&format!(", {n} messages\n")), "{}", ran.stdout);
}

/// A pair counts as two ops.
#[test]
fn all_of_one_worker_is_critical() {
    let ran = chimera("simulate dualpipe-v --depth 1 --micro-batches 4");
    assert!(ran.stdout.contains("critical path: 17 of 17 ops"), "{}", ran.stdout);
}

/// A full disk under standard output is named in the error, and is not wrong usage.
#[test]
#[cfg(target_os = "linux")]
fn what_cannot_be_printed_is_said_to_be_of_standard_output() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chimera"));
    let ran = command.args(["simulate", "1f1b"]).stdout(full).output().expect("starts");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(told.starts_with("error: cannot write to standard output: No space left"), "{told}");
    assert_eq!(ran.status.code(), Some(9), "{told}");
}

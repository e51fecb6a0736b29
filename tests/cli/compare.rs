//! `chimera schedule compare`.

use std::fs::write;

use chimera::core::schedule::SCHEDULES;
use serde_json::Value;

use crate::command::{Ran, chimera, folder};

fn compare(options: &str) -> Ran {
    let ran = chimera(&format!("schedule compare {options}"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
    ran
}

fn json(options: &str) -> Value {
    serde_json::from_str(&compare(&format!("{options} --json")).stdout).expect("JSON")
}

fn entry<'a>(comparison: &'a Value, name: &str) -> &'a Value {
    let mut entries = comparison["schedules"].as_array().expect("a list").iter();
    entries.find(|s| s["name"] == name).unwrap_or_else(|| panic!("no {name} in {comparison:#}"))
}

/// Names of schedules that are left out, with the reasons.
fn left_out(comparison: &Value) -> Vec<(&str, &str)> {
    let list = comparison["left_out"].as_array().expect("a list").iter();
    list.filter_map(|l| Some((l["name"].as_str()?, l["reason"].as_str()?))).collect()
}

#[test]
fn every_schedule_is_compared_or_left_out_with_a_reason() {
    for shape in ["--micro-batches 8", "--depth 3 --micro-batches 7"] {
        let comparison = json(shape);
        let run = comparison["schedules"].as_array().expect("a list").iter();
        let mut names: Vec<&str> = run.filter_map(|s| s["name"].as_str()).collect();
        for (name, reason) in left_out(&comparison) {
            assert!(!reason.is_empty(), "{name}");
            names.push(name);
        }
        let wanted = SCHEDULES.iter().map(|s| s.name());
        for name in wanted.chain(["chimera --pipes 4", "chimera --scaling doubling"]) {
            assert_eq!(names.iter().filter(|n| **n == name).count(), 1, "{name}: {names:?}");
        }
    }
    let odd = json("--depth 3 --micro-batches 7");
    assert!(
        left_out(&odd)
            .iter()
            .any(|(name, reason)| *name == "chimera" && reason.ends_with("nearest: depth 2 or 4"))
    );
}

#[test]
fn figures_are_those_of_the_papers() {
    let all = json("--micro-batches 8");
    assert_eq!((&all["depth"], &all["micro_batches"]), (&4.into(), &8.into()));
    for (name, makespan, peak, copies, messages) in [
        ("gpipe", 33.0, 8.0, 1, 48),
        ("1f1b", 33.0, 4.0, 1, 48),
        ("gems", 75.0, 1.0, 2, 48),
        ("zb-h1", 27.0, 4.0, 1, 48),
        ("chimera", 26.0, 4.0, 2, 72),
        ("chimera --scaling direct", 30.0, 4.0, 2, 48),
        ("chimera --pipes 4", 24.0, 4.0, 4, 48),
        ("chimera --scaling doubling", 27.0, 8.0, 2, 48),
        // Two chunks of half a stage each: 3N + 3(D-1)/2.
        ("interleaved", 28.5, 5.5, 1, 112),
    ] {
        let figures = entry(&all, name);
        let keys = ["makespan", "peak_micro_batches", "speed_up", "bubble_ratio"];
        let [took, held, speed_up, bubble] = keys.map(|key| figures[key].as_f64().expect(key));
        assert_eq!((took, held), (makespan, peak), "{name}");
        assert_eq!(figures["weight_copies"], copies, "{name}");
        assert_eq!(figures["messages"], messages, "{name}");
        assert!((speed_up - 33.0 / makespan).abs() < 1e-12, "{name}");
        assert!((bubble - (1.0 - 24.0 / makespan)).abs() < 1e-12, "{name}");
    }
    let first = &all["schedules"][0];
    assert_eq!((&first["name"], &first["makespan"]), (&"auto".into(), &25.0.into()));
    assert_eq!(entry(&all, "chimera --split-backward")["makespan"], 25.0);
    let makespans: Vec<f64> = (all["schedules"].as_array().expect("a list").iter().skip(1))
        .filter_map(|s| s["makespan"].as_f64())
        .collect();
    assert!(makespans.len() > 8 && makespans.is_sorted(), "{makespans:?}");
}

#[test]
fn a_table_is_printed_for_people() {
    let table = compare("--micro-batches 8 \"chimera --scaling direct\" dapple chimera").stdout;
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["makespan", "speed-up", "bubble", "ratio", "peak", "copies", "messages"]);
    assert_eq!(rows[1], ["chimera", "26", "1.269", "0.077", "4", "2", "72"]);
    assert_eq!(rows[2][..5], ["chimera", "--scaling", "direct", "30", "1.100"]);
    assert_eq!(rows[3], ["dapple", "33", "1.000", "0.273", "4", "1", "48"]);
    assert_eq!(
        table.lines().last(),
        Some("unit of time: a forward of a micro-batch through 1/D of the model")
    );
    assert_eq!(rows.len(), 4 + 2);
    let widths: Vec<usize> = table.lines().take(4).map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
}

#[test]
fn all_cut_the_same_model() {
    // One D-th is slow, in one stage of 1F1B and in two chunks of the interleaved schedule.
    let costs = "--forward 1,1,1,3 --backward 2,2,2,6 --micro-batches 8";
    let both = json(&format!("{costs} dapple interleaved"));
    let [line, chunks] = ["dapple", "interleaved"]
        .map(|name| entry(&both, name)["makespan"].as_f64().expect("a number"));
    assert_eq!(line, 8.0 * 9.0 + 3.0 * 3.0);
    // Its slow chunks 6 and 7 lie on two workers, so no worker has all 8 * 9 of the slow work.
    assert!(chunks < 72.0, "{chunks}");
    // Messages are not cut: both ways over the three boundaries of four chunks, and little else.
    let dear = json("interleaved --depth 2 --message 100");
    let took = entry(&dear, "interleaved")["makespan"].as_f64().expect("a number");
    assert!((600.0..610.0).contains(&took), "{took}");
}

/// A file may have any number of stages: here 1 and 3 on two workers, for a model in two parts.
#[test]
fn a_stage_costs_what_the_parts_of_the_model_in_it_do() {
    let folder = folder();
    let op = |kind: &str, stage: usize| {
        format!(r#"{{"kind": "{kind}", "pipe": 0, "stage": {stage}, "micro_batches": [0]}}"#)
    };
    for (name, n_stages, pipe, first, second, makespan) in [
        ("one", 1, "[0]", vec![op("F", 0), op("B", 0)], vec![], 11.0),
        // Of forwards costing 1 and 10, three stages have 2/3, 1/3 + 10/3 and 20/3.
        (
            "three",
            3,
            "[0, 1, 0]",
            vec![op("F", 0), op("F", 2), op("B", 2), op("B", 0)],
            vec![op("F", 1), op("B", 1)],
            11.0 + 3.0 + 2.0 + 2.0 + 2.0,
        ),
    ] {
        let file = folder.path().join(format!("{name}.json"));
        let rows = [first, second].map(|row| format!("[{}]", row.join(", "))).join(", ");
        let timetable = format!(
            r#"{{"schedule": "{name}", "depth": 2, "stages": {n_stages}, "pipes": 1, "micro_batches": 1,
                "placement": [{pipe}], "rows": [{rows}]}}"#
        );
        write(&file, timetable).expect("a file");
        let file = file.display().to_string();
        let costs = "--depth 2 --micro-batches 1 --forward 1,10 --backward 0 --message 3,2";
        let took = entry(&json(&format!("{costs} {file}")), &file)["makespan"].as_f64();
        let took = took.expect("a number");
        assert!((took - makespan).abs() < 1e-9, "{name}: {took}");
    }
}

#[test]
fn what_does_not_fit_into_memory_is_left_out() {
    let capped = json("--micro-batches 8 --memory-cap 4");
    let reasons = left_out(&capped);
    let names: Vec<&str> = reasons.iter().map(|(name, _)| *name).collect();
    for name in ["gpipe", "interleaved", "chimera --scaling doubling"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let (_, gpipe) = reasons.iter().find(|(name, _)| *name == "gpipe").expect("left out");
    assert!(gpipe.starts_with("worker 0, cell 4: it holds the activations of 5 micro-batches"));
    assert_eq!(entry(&capped, "1f1b")["speed_up"], 1.0);
    // The speed-up is relative to 1F1B even if 1F1B itself does not fit.
    let tight = json("--micro-batches 8 --memory-cap 1");
    assert_eq!(entry(&tight, "gems")["speed_up"], 33.0 / 75.0);
    let table = compare("--micro-batches 8 --memory-cap 4").stdout;
    assert!(table.contains("\nleft out:\ngpipe: worker 0, cell 4"), "{table}");
}

#[test]
fn stages_that_cannot_recompute_so_are_left_out_with_the_reason() {
    let capped = json("--recompute auto --memory-cap 2");
    let reasons = left_out(&capped);
    for name in ["zb-h1", "zb-h2"] {
        let (_, reason) = reasons.iter().find(|(left, _)| *left == name).expect(name);
        assert!(reason.ends_with("micro-batches at once, more than the limit of 2"), "{reason}");
    }
    // With the cap 1F1B recomputes, and without it does not.
    assert_eq!(entry(&capped, "1f1b")["speed_up"], 21.0 / 22.0);
    let absent = json("interleaved 1f1b --recompute full --recompute-stages 5");
    entry(&absent, "interleaved");
    let reason = "recompute-stages names stage 5, but there are 4, from 0: name some of these";
    assert_eq!(left_out(&absent), [("1f1b", reason)]);
    let searched = json("auto 1f1b --recompute auto --memory-cap 3");
    let [("auto", reason)] = left_out(&searched)[..] else { panic!("{searched:#}") };
    assert!(reason.starts_with("recompute-stages auto is for the schedules of the table"));
}

#[test]
fn a_name_carries_options_of_its_own_and_may_be_a_file() {
    let folder = folder();
    let [mine, other] = ["mine.json", "other.json"].map(|name| folder.path().join(name));
    for (path, n) in [(&mine, 6), (&other, 5)] {
        let shown = chimera(&format!("schedule show gems --micro-batches {n} --json")).stdout;
        write(path, shown).expect("a file");
    }
    let (mine, other) = (mine.display().to_string(), other.display().to_string());
    let names = format!("{mine} {other} chimera \"chimera --pipes 2\"");
    let comparison = json(&format!("--micro-batches 6 --pipes 4 {names}"));
    assert_eq!(entry(&comparison, &mine)["makespan"], 12.0 + 5.0 * 9.0);
    assert_eq!(left_out(&comparison), [(&other[..], "it is made for D = 4, N = 5")]);
    assert_eq!(entry(&comparison, "chimera")["weight_copies"], 4);
    assert_eq!(entry(&comparison, "chimera --pipes 2")["weight_copies"], 2);
}

#[test]
fn a_file_may_have_blanks_in_its_name() {
    let folder = folder();
    let path = folder.path().join("two words.json");
    write(&path, chimera("schedule show gems --json").stdout).expect("a file");
    let path = path.display().to_string();
    assert_eq!(entry(&json(&format!("\"{path}\"")), &path)["makespan"], 3.0 * 12.0 + 3.0);
}

/// Times of a microsecond are printed as precisely as those of a second.
#[test]
fn a_table_is_the_same_in_any_unit() {
    let table = compare("--micro-batches 8 --forward 1e-6 --backward 2e-6 chimera dapple").stdout;
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..3], ["chimera", "2.6e-5", "1.269"]);
    assert_eq!(rows[2][..3], ["dapple", "3.3e-5", "1.000"]);
}

#[test]
fn a_comparison_is_drawn() {
    let svg = compare("--micro-batches 8 --memory-cap 4 --format svg").stdout;
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for text in [
        ">zb-h1<",
        ">--scaling direct<",
        "left out: gpipe: worker 0, cell 4",
        "D = 4, N = 8",
        "unit of time: a forward of a micro-batch through 1/D of the model",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for (options, hint) in [
        ("nothing", "unknown schedule `nothing`"),
        ("\"chimera --pipe 4\"", "`chimera --pipe 4`: unexpected argument '--pipe'"),
        ("\"chimera --scaling tripling\"", "tripling"),
        ("\"\"", "unknown schedule ``"),
        ("--depth 3 chimera", "nothing to compare:\nchimera: depth 3 is odd"),
        ("--micro-batches 0", "\ngpipe: a step needs at least one micro-batch"),
        ("--forward 1,2", "--forward has 2 numbers, but the model is compared in 4 parts"),
        ("missing.json", "missing.json: No such file"),
        (
            "--memory-cap 0",
            "gpipe: worker 0, cell 0: it holds the activations of 1 micro-batch at once",
        ),
    ] {
        let ran = chimera(&format!("schedule compare {options}"));
        let code = if ["missing.json", "--memory-cap 0"].contains(&options) { 3 } else { 2 };
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

//! Schedules in files: `chimera schedule export` and `import`, and files instead of names.

use std::fs::{read_to_string, write};
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Ran, chimera, folder, text};

/// 1F1B of two workers.
const GOOD: &str = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

fn ok(line: &str) -> String {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "`{line}`");
    ran.stdout
}

fn file(folder: &TempDir, name: &str, content: &str) -> String {
    let path = folder.path().join(name);
    write(&path, content).expect("a file");
    path.display().to_string()
}

fn refused(line: &str, code: i32) -> String {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "`{line}`: {}", ran.stderr);
    ran.stderr
}

#[test]
fn one_pipe_is_one_file_and_keeps_its_figures() {
    let folder = folder();
    for name in ["gpipe", "1f1b", "interleaved", "zb-h1"] {
        let csv = ok(&format!("schedule export {name} --micro-batches 8 --format pytorch-csv"));
        let path = file(&folder, &format!("{name}.csv"), &csv);
        assert_eq!(csv.lines().count(), 4);
        let figures = ok(&format!("simulate {name} --micro-batches 8"));
        assert_eq!(ok(&format!("simulate {path}")), figures);
        assert_eq!(ok(&format!("schedule check {path}")), ok(&format!("schedule import {path}")));
        let drawn = ok(&format!("schedule show {name} --micro-batches 8"));
        assert_eq!(ok(&format!("schedule show {path}")), drawn);
        let json = ok(&format!("schedule show {name} --micro-batches 8 --format json"));
        assert_eq!(ok(&format!("schedule import {path} --format json")), json);
        assert_eq!(ok(&format!("schedule export {path} --format pytorch-csv")), csv);
    }
}

#[test]
fn several_pipes_are_several_files() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let export = "schedule export chimera --micro-batches 8 --format pytorch-csv";
    let refusal = refused(export, 2);
    assert!(refusal.contains("2 pipes") && refusal.contains("--pipe 0, 1,"), "{refusal}");
    let none = refused(&format!("{export} --pipe 2"), 2);
    assert!(
        none.contains("no micro-batch goes through pipe 2: choose one of --pipe 0, 1"),
        "{none}"
    );
    // Three micro-batches leave one of four pipes empty, which cannot be exported.
    let few = "schedule export chimera --micro-batches 3 --pipes 4 --format pytorch-csv";
    let refusal = refused(few, 2);
    assert!(refusal.contains("3 pipes") && refusal.contains("--pipe 0, 1, 2, or"), "{refusal}");
    assert!(ok(&format!("{few} --pipe 2")).contains("F0"));
    let wrote = ok(&format!("{export} --out {}", at("c.csv")));
    let names = [at("c.pipe0.csv"), at("c.pipe1.csv")];
    assert_eq!(wrote, format!("wrote {}\nwrote {}\n", names[0], names[1]));
    for (pipe, name) in names.iter().enumerate() {
        let csv = read_to_string(name).expect("a file");
        assert_eq!(ok(&format!("{export} --pipe {pipe}")), csv);
        let row = if pipe == 0 { "0F0,0F1,0B0," } else { "3F0,3B0,3F1," };
        assert!(csv.starts_with(row), "{csv}");
        assert!(ok(&format!("schedule check {name}")).contains(&format!("c.pipe{pipe}: makespan")));
    }
    for (out, first) in [("v1.2", "v1.2.pipe0.csv"), ("d.e.CSV", "d.e.pipe0.csv")] {
        let wrote = ok(&format!("{export} --out {}", at(out)));
        assert!(wrote.starts_with(&format!("wrote {}\n", at(first))), "{wrote}");
    }
    assert!(refused(&format!("{export} --out -"), 2).contains("2 pipes"), "standard output is one");
    // With one micro-batch there is one pipe that has work.
    let one = ok("schedule export chimera --micro-batches 1 --format pytorch-csv");
    assert_eq!(one, "0F0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n");
}

/// `-` means standard output for formats that can go there, and never a file.
#[test]
fn a_dash_is_standard_output() {
    let export = "schedule export 1f1b --depth 2 --format json";
    assert_eq!(ok(&format!("{export} --out -")), ok(export));
    let benched = ok("comm bench --out -");
    assert!(benched.contains("\"alpha_s\""), "{benched}");
    for line in [
        "simulate 1f1b --trace -",
        "schedule gallery --out -",
        "prepare text.txt --out -",
        "report run --out -",
        "export model --out -",
        "checkpoint export step --out -",
        "selftest --json -",
    ] {
        let why = refused(line, 2);
        assert!(why.contains("this cannot go to standard output: name a file"), "{line}: {why}");
    }
}

#[test]
fn an_export_takes_the_job_and_the_links_of_a_simulation() {
    let job = "1f1b --depth 4 --micro-batches 8 --width 2";
    let program = |sync| ok(&format!("schedule export {job} --sync {sync} --format program-json"));
    assert_ne!(program("at-end"), program("in-backward"));
    let folder = folder();
    for options in [
        "--speeds 1,1,1,0.5",
        "--inside 0.5,0 --gradient-bytes 1",
        "--forward 1 --topology ethernet --gradient-bytes 1e9",
    ] {
        let trace = folder.path().join("trace.json");
        ok(&format!("simulate {job} {options} --trace {}", trace.display()));
        let exported = ok(&format!("schedule export {job} {options} --format chrome"));
        assert_eq!(exported, read_to_string(&trace).expect("a trace"), "{options}");
    }
    let told = chimera("schedule export 1f1b --sync at-end --format pytorch-csv");
    assert!(told.stderr.contains("`sync` has no effect"), "{}", told.stderr);
}

#[test]
fn what_a_format_cannot_hold_is_refused() {
    let halving =
        refused("schedule export chimera --scaling halving --format pytorch-csv --pipe 0", 2);
    assert!(halving.contains("are cut into 2; JSON holds every timetable"), "{halving}");
    let pipe = refused("schedule export chimera --format svg --pipe 0", 2);
    assert!(pipe.contains("--pipe is for --format pytorch-csv"), "{pipe}");
    assert!(refused("schedule export gpipe --format yaml", 2).contains("pytorch-csv"));
    assert!(refused("schedule export gpipe", 2).contains("--format"));
    let nowhere = refused("schedule export gpipe --format json --out /nonexistent/x", 2);
    assert!(nowhere.contains("cannot write /nonexistent/x"), "{nowhere}");
}

#[test]
fn timelines_are_exported_with_the_costs_that_were_given() {
    let trace = ok("schedule export dapple --format chrome --backward 3");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let ends = events.iter().filter_map(|e| Some(e["ts"].as_f64()? + e["dur"].as_f64()?));
    assert_eq!(ends.fold(0.0, f64::max), 28e6);
    let page = ok("schedule export dapple --format html --backward 3");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<td>28</td>"), "{page}");
    let svg = ok("schedule export dapple --format svg");
    assert_eq!(svg, ok("schedule show dapple --format svg"));
    assert_eq!(ok("schedule export gems --format json"), ok("schedule show gems --format json"));
}

#[test]
fn a_bad_csv_is_refused_with_row_and_column() {
    let folder = folder();
    for (from, to, hint) in [
        ("1B0", "1BW0", "row 2 (rank 1), column 2: `1BW0`: unknown type: choose F, B, I or W"),
        ("0F1", "0F1junk", "row 1 (rank 0), column 2: `0F1junk`: something follows"),
        ("1B1", "1B", "row 2 (rank 1), column 4: `1B`: the micro-batch is missing"),
        ("1F1,", "", "row 2 (rank 1), column 4: 1F1 is missing"),
        ("1F0", "0F0", "row 2 (rank 1), column 1: stage 0 is on rank 0 already"),
    ] {
        let path = file(&folder, "bad.csv", &GOOD.replace(from, to));
        for command in ["schedule check", "schedule import", "schedule show", "simulate"] {
            let refusal = refused(&format!("{command} {path}"), 3);
            assert!(refusal.contains(hint), "{refusal}");
        }
        let refusal = refused(&format!("train --schedule {path}"), 3);
        assert!(refusal.contains("bad.csv: ") && refusal.contains(hint), "{refusal}");
    }
}

#[test]
fn an_unsafe_csv_is_refused_with_the_cell_marked() {
    let folder = folder();
    let backward_first = GOOD.replace("1F0,1B0", "1B0,1F0");
    let path = file(&folder, "unsafe.csv", &backward_first);
    let formats = ["json", "pytorch-csv", "chrome", "svg", "html"];
    let exports = formats.map(|format| format!("schedule export --format {format}"));
    let others = ["schedule check", "schedule import", "train --schedule"].map(String::from);
    for command in others.iter().chain(&exports) {
        let refusal = refused(&format!("{command} {path}"), 3);
        assert!(refusal.contains("unsafe is not a safe schedule: worker 1, cell 0:"), "{refusal}");
        assert!(refusal.contains("\n0' 0 1 1'\n^^"), "{refusal}");
    }
}

const MODEL: &str = "--layers 4 --hidden 4 --heads 1 --context 4 --steps 3";

fn losses(ran: &Ran, metrics: &Path) -> Vec<String> {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let lines = read_to_string(metrics).expect("metrics");
    let loss = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["loss"].to_string();
    lines.lines().map(loss).collect()
}

#[test]
fn a_file_trains_as_the_schedule_it_was_exported_from() {
    let folder = folder();
    let data = text(&folder);
    let train = |command: &str, run: &str| {
        let metrics = folder.path().join(run);
        let out = folder.path().join(format!("{run}.out"));
        let to = format!("--data {} --out {}", data.display(), out.display());
        let ran = chimera(&format!("{command} {MODEL} {to} --metrics {}", metrics.display()));
        losses(&ran, &metrics)
    };
    let csv = folder.path().join("mine.csv").display().to_string();
    let json = folder.path().join("mine.json").display().to_string();
    for (name, format, path) in [("zb-h1", "pytorch-csv", &csv), ("chimera", "json", &json)] {
        let shape = "--depth 2 --micro-batches 3";
        ok(&format!("schedule export {name} {shape} --format {format} --out {path}"));
        let named = train(&format!("train --schedule {name} {shape}"), &format!("{name}.1"));
        assert_eq!(named.len(), 3);
        assert_eq!(train(&format!("train --schedule {path}"), &format!("{name}.2")), named);
        assert_eq!(train(&format!("schedule import {path} --run"), &format!("{name}.3")), named);
    }
}

#[test]
fn a_file_is_proven_before_it_is_trained_with_and_none_takes_its_place() {
    let folder = folder();
    let good = file(&folder, "good.csv", GOOD);
    let refusal = refused(&format!("schedule import {good} --run --steps 1 --schedule gpipe"), 2);
    assert!(refusal.contains("good.csv: leave --schedule out"), "{refusal}");
    let bad = file(&folder, "bad.csv", &GOOD.replace("1F0,1B0", "1B0,1F0"));
    let refusal = refused(&format!("schedule import {bad} --run"), 3);
    assert!(refusal.contains("bad is not a safe schedule: worker 1, cell 0:"), "{refusal}");
    let refusal = refused(&format!("schedule import {bad} --run --stepz 4"), 2);
    assert!(refusal.contains("--stepz"), "{refusal}");
    let refusal = refused("schedule import none.csv --run", 3);
    assert!(refusal.contains("cannot read none.csv: "), "{refusal}");
}

/// Options may repeat the shape of the file, and must not change it.
#[test]
fn a_file_has_its_shape() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (name, own, others) in [
        ("chimera", "--depth 4 --micro-batches 4 --pipes 2 --chunks 1", "--pipes 4"),
        ("interleaved", "--chunks 2 --window 1", "--chunks 3"),
        ("hanayo", "--waves 2", "--waves 1"),
        ("pipedream", "--micro-batches 4 --window 2", "--window 3"),
    ] {
        let path = at(&format!("{name}.json"));
        ok(&format!("schedule export {name} --format json --out {path}"));
        let figures = ok(&format!("simulate {name}"));
        assert_eq!(ok(&format!("simulate {path} {own}")), figures);
        for command in ["simulate", "schedule show", "schedule export --format svg"] {
            let refusal = refused(&format!("{command} {path} {others}"), 2);
            let hint = format!("but the timetable in {path} has ");
            assert!(refusal.contains(&hint), "{refusal}");
            let refusal = refused(&format!("{command} {path} --depth 8 --micro-batches 32"), 2);
            let hint =
                format!("`depth` is 8, but the timetable in {path} has 4: leave `depth` out");
            assert!(refusal.contains(&hint), "{refusal}");
        }
        for option in ["--scaling halving", "--in-turn 2", "--in-flight 3", "--placement line"] {
            let refusal = refused(&format!("simulate {path} {option}"), 2);
            assert!(refusal.contains(" is fixed: leave `"), "{refusal}");
        }
    }
}

#[test]
fn depth_and_micro_batches_follow_from_the_file() {
    let folder = folder();
    let path = file(&folder, "mine.csv", GOOD);
    let shown = ok(&format!("config show --schedule {path} --json"));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    for key in ["depth", "micro-batches"] {
        assert_eq!(shown[key]["value"], 2);
        assert_eq!(shown[key]["origin"], format!("timetable {path}"));
    }
    ok(&format!("config show --schedule {path} --depth 2 --micro-batches 2"));
    let settings = file(&folder, "run.toml", &format!("schedule = '{path}'\nmicro-batches = 4\n"));
    let refusal = refused(&format!("train --config {settings}"), 2);
    assert!(
        refusal.contains("run.toml:2: `micro-batches` is 4, but the timetable in ")
            && refusal.contains("has 2: leave `micro-batches` out"),
        "{refusal}"
    );
    let refusal = refused(&format!("schedule import {path} --run --depth 4"), 2);
    assert!(refusal.contains("command line: `depth` is 4, but the timetable in"), "{refusal}");
    assert!(refused(&format!("schedule import {path} --run --stepz 4"), 2).contains("--stepz"));
    assert!(refused(&format!("schedule import {path} --format json --run"), 2).contains("--run"));
    for before in ["--memory-cap 1", "--recompute full", "--forward 1", "--split-backward"] {
        let refusal = refused(&format!("schedule import {path} {before} --run"), 2);
        assert!(refusal.contains("'--run [<OPTION>...]' cannot be used with"), "{refusal}");
    }
    assert_eq!(ok(&format!("schedule import {path} --out x.json")), "wrote x.json\n");
    assert!(refused(&format!("schedule import {path} --pipe 0"), 2).contains("--format"));
    assert!(refused("train --schedule none.csv", 3).contains("cannot read none.csv"));
    for command in ["check", "import"] {
        let refusal = refused(&format!("schedule {command} none.csv"), 3);
        assert!(refusal.starts_with("error: cannot read none.csv: "), "{refusal}");
    }
    assert!(refused("train --schedule none.txt", 2).contains("a file that ends in .csv or .json"));
}

#[test]
fn training_refuses_stages_that_are_no_chain() {
    let folder = folder();
    let chain = ok("schedule show 1f1b --depth 3 --micro-batches 3 --json");
    let graph = r#""graph": {"sources": [0], "edges": [[0, 1], [0, 2], [1, 2]], "losses": [2]},"#;
    let skips = chain.replace(r#""placement":"#, &format!(r#"{graph} "placement":"#));
    let path = file(&folder, "skips.json", &skips);
    let refusal = refused(&format!("train --schedule {path} --layers 3"), 2);
    let choice = "choose another schedule, or train stages of your own (docs/library.md)";
    assert!(
        refusal.contains("has stages that are not a chain") && refusal.contains(choice),
        "{refusal}"
    );
}

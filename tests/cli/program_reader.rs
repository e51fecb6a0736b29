//! Programs in JSON, read by a Python program that implements only what docs/library.md says. It
//! must find no broken rule, and the same messages and activations as the command.
//!
//! A sample of the exports is read, or all of them with `CHIMERA_READ_ALL=1`.

use std::fs::{read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::command::{chimera, folder};

/// All schedules of the table, some with options.
const SCHEDULES: [&str; 23] = [
    "gpipe",
    "1f1b",
    "1f1b --in-turn 2",
    "seq1f1b --slices 2",
    "seq1f1b --slices 3",
    "gems",
    "chimera --scaling direct",
    "chimera --scaling halving",
    "chimera --scaling doubling",
    "chimera --pipes 4",
    "interleaved",
    "interleaved --chunks 3",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "hanayo --waves 1",
    "hanayo",
    "dualpipe",
    "dualpipe-v",
    "mixpipe",
    "auto --search-time 0.1",
];
/// Schedules without a flush, for which some passes do not exist.
const ASYNCHRONOUS: [&str; 4] = [
    "pipedream --window 3",
    "pipedream-2bw --window 3",
    "timeprest --window 3",
    "pipeoptim --window 3",
];
/// Each pass on its own, and several that interact.
const PASSES: [&str; 14] = [
    "",
    "--split-backward",
    "--recompute full",
    "--recompute selective --hoist auto",
    "--recompute full --hoist on-demand",
    "--recompute full --recompute-stages 0-1 --hoist 2",
    "--recompute full --split-backward",
    "--bpipe",
    "--bpipe --transfer 0.5 --message 0.25",
    "--offload auto --memory-cap 2",
    "--offload auto --memory-cap 1.5 --recompute full --hoist 2",
    "--border free --window 3",
    "--border free --window 2 --recompute full --hoist on-demand",
    "--border free --window 2 --split-backward",
];
const SHAPES: [(u32, u32); 4] = [(2, 4), (4, 4), (4, 8), (6, 12)];

/// One export in this many is read without `CHIMERA_READ_ALL`. It has no divisor in common with the numbers of passes and shapes.
const DRAWN: usize = 37;

/// The command-line options of all exports.
fn exports() -> Vec<String> {
    let mut all = Vec::new();
    for schedule in SCHEDULES.iter().chain(&ASYNCHRONOUS) {
        for passes in PASSES {
            for (depth, n) in SHAPES {
                all.push(format!("{schedule} --depth {depth} --micro-batches {n} {passes}"));
            }
        }
    }
    all
}

/// An export, as files, and the command's figures for it.
struct Export {
    options: String,
    program: PathBuf,
    checked: Value,
}

/// Exports a schedule with its passes, and then the program of that file, since a search may find
/// another order the next time. Returns `None` if schedule and passes cannot be combined.
fn export(options: &str, number: usize, folder: &Path) -> Option<Export> {
    let timetable = folder.join(format!("{number}.timetable.json"));
    let program = folder.join(format!("{number}.json"));
    let (from, to) = (timetable.display(), program.display());
    let line = format!("schedule export {options} --format json --out {from}");
    let ran = chimera(&line);
    match ran.code {
        Some(0) => {}
        Some(2 | 3) => return None,
        other => panic!("`{line}`: {other:?}: {}", ran.stderr),
    }
    let ran = chimera(&format!("schedule export {from} --format program-json --out {to}"));
    assert_eq!(ran.code, Some(0), "`{options}`: {}", ran.stderr);
    let ran = chimera(&format!("schedule check {from} --json"));
    assert_eq!(ran.code, Some(0), "`{options}`: {}", ran.stderr);
    let checked = serde_json::from_str(&ran.stdout).expect("JSON");
    std::fs::remove_file(timetable).expect("removed");
    Some(Export { options: options.to_string(), program, checked })
}

fn reader(programs: &[&Path]) -> Output {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/read_program.py");
    Command::new("python3").arg(reader).args(programs).output().expect("python3")
}

/// Runs the reader. Returns its result for each program.
fn read(programs: &[&Path]) -> Vec<Value> {
    let output = reader(programs);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let found: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(found.len(), programs.len());
    found
}

fn has_python() -> bool {
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        eprintln!("skipped: there is no python3");
    }
    has_python
}

/// Compares the reader's result with the command's, and returns the first difference.
fn disagreement(found: &Value, checked: &Value) -> Option<String> {
    if let Some(error) = found.get("error") {
        return Some(error.to_string());
    }
    for key in ["messages", "channel_bound"] {
        if found[key] != checked[key] {
            return Some(format!("{key}: {}, and the command says {}", found[key], checked[key]));
        }
    }
    let peaks = |value: &Value| -> Vec<f64> {
        value
            .as_array()
            .expect("a list")
            .iter()
            .map(|peak| peak.as_f64().expect("a number"))
            .collect()
    };
    let (own, said) = (peaks(&found["peaks"]), peaks(&checked["peak_micro_batches"]));
    // Lanes have several orders. The command counts the one that holds most.
    let has_moves = found["has_moves"] == true;
    let agree = |(own, said): (&f64, &f64)| (own - said).abs() < 1e-5 || has_moves && own < said;
    if own.len() == said.len() && own.iter().zip(&said).all(agree) {
        None
    } else {
        Some(format!("activations of {own:?}, and the command says {said:?}"))
    }
}

#[test]
fn a_reader_that_knows_the_page_alone_agrees_with_the_command() {
    if !has_python() {
        return;
    }
    let reads_all = std::env::var("CHIMERA_READ_ALL").is_ok_and(|all| all == "1");
    let all = exports();
    let (folder, step) = (folder(), if reads_all { 1 } else { DRAWN });
    let mut read_ones: Vec<Export> = Vec::new();
    let (mut wrong, mut n_read) = (Vec::new(), 0);
    let mut check = |exports: &mut Vec<Export>| {
        let paths: Vec<&Path> = exports.iter().map(|export| export.program.as_path()).collect();
        for (export, found) in exports.iter().zip(read(&paths)) {
            let problem = disagreement(&found, &export.checked);
            wrong.extend(problem.map(|problem| format!("{}: {problem}", export.options)));
            std::fs::remove_file(&export.program).expect("removed");
        }
        n_read += exports.len();
        exports.clear();
    };
    for (number, options) in all.iter().enumerate().step_by(step) {
        read_ones.extend(export(options, number, folder.path()));
        if read_ones.len() == 32 {
            check(&mut read_ones);
        }
    }
    check(&mut read_ones);
    let n_tried = all.len().div_ceil(step);
    println!("{n_read} exports of {n_tried} that were tried; {} disagree", wrong.len());
    assert!(wrong.is_empty(), "{} of {n_read}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_read * 3 > n_tried * 2, "only {n_read} of {n_tried} could be exported");
}

/// A reader that accepts everything would pass all other tests.
#[test]
fn the_reader_finds_broken_programs() {
    if !has_python() {
        return;
    }
    let folder = folder();
    let program = |options: &str| {
        let path = folder.path().join("whole.json").display().to_string();
        let ran = chimera(&format!("schedule export {options} --format program-json --out {path}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        read_to_string(path).expect("a file")
    };
    let wave = program("chimera --depth 4 --micro-batches 8 --scaling direct");
    let shared = program("1f1b --depth 4 --micro-batches 8 --bpipe");
    let without_lanes =
        shared.replace(r#"],"lane":"moves"}"#, "]}").replace(r#"],"lane":"compute"}"#, "]}");
    assert_ne!(without_lanes, shared);
    let mut edited = vec![(without_lanes, "comes before it in its channel")];
    for (from, to, broken) in [
        (r#""makes":[0,1]"#, r#""makes":[1]"#, "is made 0 times"),
        (r#""eats":[0]"#, r#""eats":[0,0]"#, "is eaten 2 times"),
        (r#"{"do":"send","token":0,"to":1},"#, "", "is sent 0 times"),
        (r#""kind":"B","#, r#""kind":"I","#, "unit "),
        (r#""channel_bound": 1"#, r#""channel_bound": 2"#, "channels of 1 messages suffice"),
        (r#"{"do":"agree"},"#, "", "agrees 0 times"),
        (r#"{"do":"await","bucket":0},"#, "", "has other sums"),
        (r#"{"message":0},"#, "", "the one order has other events"),
    ] {
        let other = wave.replacen(from, to, 1);
        assert_ne!(other, wave, "{from}");
        edited.push((other, broken));
    }
    for (program, broken) in edited {
        let path = folder.path().join("broken.json");
        write(&path, program).expect("a file");
        let found = &read(&[&path])[0];
        let error = found["error"].as_str().unwrap_or_default();
        assert!(error.contains(broken), "{broken}: {found}");
    }
}

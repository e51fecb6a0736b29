//! The folder of a run after others have changed it: damaged, left-over, linked or missing files.
#![cfg(unix)]

use std::fs::{self, create_dir, read_dir, read_to_string, remove_dir_all, rename, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{MODEL, at};
use crate::command::{Ran, chimera, folder, start, text};

fn line(place: &TempDir, options: &str) -> String {
    let (data, out, model) = (text(place), run(place), MODEL.replace("--steps 6", ""));
    format!("train {model} --depth 2 --data {} --out {} {options}", data.display(), out.display())
}

fn run(place: &TempDir) -> PathBuf {
    place.path().join("run")
}

/// Returns true if the first step is written, and so the whole folder exists.
fn has_trained(place: &TempDir) -> bool {
    fs::metadata(run(place).join("metrics.jsonl")).is_ok_and(|metrics| metrics.len() > 0)
}

fn train(place: &TempDir, options: &str) -> Ran {
    let ran = chimera(&line(place, options));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran
}

fn steps(run: &Path) -> Vec<u64> {
    let text = read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let step = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["step"].as_u64()
    };
    text.lines().map(|line| step(line).expect("a step")).collect()
}

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < deadline, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A run that begins, goes on, or has nothing left to train has not failed.
#[test]
fn errors_of_an_earlier_end_do_not_outlive_it() {
    let place = folder();
    let fail = || {
        for name in ["error.0.json", "error.3.json.part", "ops.1.jsonl"] {
            write(run(&place).join(name), r#"{"message": "old"}"#).expect("a file");
        }
    };
    let head = || {
        chimera(&format!("top {}", run(&place).display())).stdout.lines().next().map(str::to_owned)
    };
    create_dir(run(&place)).expect("a folder");
    write(run(&place).join("error.notes.json"), "a user's own").expect("a file");
    for options in ["", "--resume auto --steps 9", "--resume auto --steps 9"] {
        fail();
        train(&place, &format!("--steps 6 --save-every 3 {options}"));
        let head = head().expect("a line");
        assert!(head.ends_with(" finished"), "{options}: {head}");
        let names =
            read_dir(run(&place)).expect("a folder").map(|entry| entry.expect("one").file_name());
        let left: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        assert!(
            !left
                .iter()
                .any(|name| name.contains(".0.") || name.contains(".3.") || name.contains(".1.")),
            "{left:?}"
        );
        assert!(left.contains(&"error.notes.json".into()), "{left:?}");
    }
}

#[test]
fn sound_metrics_outlive_damaged_ones() {
    let place = folder();
    let metrics = run(&place).join("metrics.jsonl");
    train(&place, "--steps 6 --save-every 3");
    let whole = fs::read(&metrics).expect("metrics");
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let torn =
        [lines[0], b"[torn\n", lines[2], b"\xff\xfe\0\n", &lines[4..].concat(), b"\xff"].concat();
    write(&metrics, torn).expect("written");
    let top = chimera(&format!("top {}", run(&place).display()));
    assert!(
        top.stdout.contains("6 of 6 steps  finished  (2 damaged line(s)"),
        "{} {}",
        top.stdout,
        top.stderr
    );
    let ran = train(&place, "--steps 8 --save-every 3 --resume auto");
    assert_eq!(steps(&run(&place)), [0, 2, 4, 5, 6, 7]);
    let told = format!(
        "warning: {}: 2 line(s) that are not metrics of a step, or out of order, are dropped",
        metrics.display()
    );
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    // A power failure may leave such a tail.
    write(&metrics, [&lines[..3].concat(), &b"\0\0\0\xff"[..]].concat()).expect("written");
    let ran = train(&place, "--steps 9 --save-every 3 --resume auto");
    assert!(ran.stderr.contains("lacks the metrics of steps 3 to 7"), "{}", ran.stderr);
    fs::remove_file(&metrics).expect("a file");
    let ran = train(&place, "--steps 10 --save-every 3 --resume auto");
    assert!(ran.stderr.contains("is missing: it begins anew at step 9"), "{}", ran.stderr);
    assert_eq!(steps(&run(&place)), [9]);
    write(&metrics, "a user's notes\n").expect("written");
    let refused = chimera(&line(&place, "--steps 11 --save-every 3 --resume auto"));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("it does not belong to this run"), "{}", refused.stderr);
}

#[test]
fn a_folder_that_is_taken_away_ends_the_run() {
    for save in ["--save-every 2", ""] {
        let place = folder();
        let running = start(&line(&place, &format!("--steps 1000000 {save}")));
        wait_for(|| has_trained(&place));
        rename(run(&place), place.path().join("moved")).expect("renamed");
        let ran = running.wait();
        assert_eq!(ran.code, Some(9), "{}", ran.stderr);
        assert!(ran.stderr.contains("removed, moved or replaced"), "{}", ran.stderr);
    }
}

/// Only the run that began in the new folder writes into it.
#[test]
fn a_folder_that_is_replaced_belongs_to_the_other_run() {
    let place = folder();
    let running = start(&line(&place, "--steps 1000000 --save-every 1 --report"));
    wait_for(|| has_trained(&place));
    rename(run(&place), place.path().join("moved")).expect("renamed");
    create_dir(run(&place)).expect("a folder");
    write(run(&place).join("lock"), "of another run").expect("a lock");
    let ran = running.wait();
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let names: Vec<_> =
        read_dir(run(&place)).expect("a folder").map(|e| e.expect("one").file_name()).collect();
    assert_eq!(names, ["lock"]);
}

#[test]
fn metrics_that_are_taken_away_go_on_in_a_new_file() {
    let place = folder();
    let running = start(&line(&place, "--steps 1000000"));
    for _ in 0..2 {
        wait_for(|| has_trained(&place));
        fs::remove_file(run(&place).join("metrics.jsonl")).expect("a file");
    }
    wait_for(|| has_trained(&place));
    super::run::signal(&running, "-TERM");
    let ran = running.wait();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("was removed or replaced while the run trained").count(), 2);
    let steps = steps(&run(&place));
    assert!(steps.is_sorted() && steps[0] > 0, "{steps:?}");
}

/// When its turn to be pruned comes, only the link is removed.
#[test]
fn an_archive_behind_a_link_is_not_pruned() {
    let place = folder();
    train(&place, "--steps 2 --save-every 1");
    let archive = place.path().join("archive");
    rename(at(&run(&place), 1), &archive).expect("renamed");
    symlink(&archive, at(&run(&place), 1)).expect("a link");
    train(&place, "--steps 6 --save-every 1 --resume auto");
    assert!(!at(&run(&place), 1).is_symlink());
    assert!(
        archive.join("manifest.json").is_file() && archive.join("shard-0000.safetensors").is_file()
    );
}

/// A run writes its results into its own folder. Targets of links stay as they are, or missing. A
/// user's file stays, even under the name of a run's temporary file.
#[test]
fn links_in_the_folder_of_a_run_are_not_written_through() {
    let place = folder();
    let victim = place.path().join("victim");
    let (log, weights) = (place.path().join("log"), place.path().join("weights"));
    let link = |path: PathBuf| {
        let _ = fs::remove_file(&path);
        symlink(&victim, path).expect("a link");
    };
    write(&victim, "precious").expect("a file");
    for dir in [&log, &weights] {
        create_dir(dir).expect("a folder");
        write(dir.join("model.safetensors.part"), "a user's own").expect("a file");
    }
    train(&place, "--steps 2 --save-every 1");
    let written = ["pipeline.svg", "summary.json"].map(|name| run(&place).join(name));
    let left_over = ["ops.0.jsonl", "error.0.json.part"].map(|name| run(&place).join(name));
    written.iter().chain(&left_over).for_each(|path| link(path.clone()));
    let absent = place.path().join("absent");
    let saved = ["model.safetensors", "config.json"].map(|name| weights.join(name));
    saved.iter().for_each(|path| symlink(&absent, path).expect("a link"));
    let places = format!("--save {} --log {}", weights.display(), log.display());
    train(&place, &format!("--steps 4 --save-every 1 --resume auto {places}"));
    assert_eq!(read_to_string(&victim).expect("a file"), "precious");
    assert!(!absent.exists(), "a link that leads nowhere was written through");
    for path in written.iter().chain(&saved) {
        assert!(path.is_file() && !path.is_symlink(), "{} is no file", path.display());
    }
    for path in &left_over {
        assert!(!path.is_symlink(), "{} is left", path.display());
    }
    for dir in [&log, &weights] {
        let own = read_to_string(dir.join("model.safetensors.part")).expect("a file");
        assert_eq!(own, "a user's own");
    }
    for name in ["lock", "metrics.jsonl"] {
        link(run(&place).join(name));
        let refused = chimera(&line(&place, "--steps 6 --save-every 1 --resume auto"));
        assert_eq!(refused.code, Some(2), "{name}: {}", refused.stderr);
        assert_eq!(read_to_string(&victim).expect("a file"), "precious", "{name}");
        fs::remove_file(run(&place).join(name)).expect("a link");
    }
    link(log.join("rank.0.log"));
    let refused =
        chimera(&line(&place, &format!("--steps 6 --save-every 1 --resume auto {places}")));
    assert_eq!(refused.code, Some(9), "{}", refused.stderr);
    assert_eq!(read_to_string(&victim).expect("a file"), "precious");
    remove_dir_all(run(&place)).expect("a folder");
}

/// The run ends neither by a signal nor with half an error file.
#[test]
fn a_file_beyond_the_limit_of_the_shell_is_an_error_like_a_full_disk() {
    let place = folder();
    let train = line(&place, "--steps 1000000 --metrics metrics");
    let command = format!(
        "cd {}; ulimit -f 8; exec {} {train}",
        place.path().display(),
        env!("CARGO_BIN_EXE_chimera")
    );
    let out = std::process::Command::new("bash").args(["-c", &command]).output().expect("bash");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(9), "{said}");
    assert!(said.contains("cannot write metrics metrics: File too large"), "{said}");
    let error = read_to_string(run(&place).join("error.0.json")).expect("an error file");
    assert!(
        serde_json::from_str::<serde_json::Value>(&error).is_ok_and(|error| error["code"] == 9),
        "{error}"
    );
    assert!(!run(&place).join("error.0.json.part").exists());
}

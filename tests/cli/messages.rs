//! Errors and warnings quote content of files: they stay short, show no control characters, and
//! name their subject.

use std::fs::write;
use std::process::Command;

use crate::command::{chimera, folder, text};

#[test]
fn control_characters_of_files_do_not_reach_the_terminal() {
    let folder = folder();
    let file = folder.path().join("run.toml");
    write(&file, "depth = 2\n\"x\\u001b]0;owned\\u0007\" = 3\n").expect("a file");
    let ran = chimera(&format!("config check {}", file.display()));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("owned"), "{}", ran.stderr);
    let is_shown = |c: char| c == '\n' || !c.is_control();
    assert!(ran.stderr.chars().all(is_shown), "{:?}", ran.stderr);
}

#[test]
fn a_long_value_is_not_echoed_whole() {
    let folder = folder();
    let file = folder.path().join("run.toml");
    let data = text(&folder);
    let settings = format!("data = ['{}']\nout = '{}'\n", data.display(), "v".repeat(1 << 20));
    write(&file, settings).expect("a file");
    let ran = chimera(&format!("train --config {} --steps 1", file.display()));
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.len() < 8192, "{} bytes", ran.stderr.len());
    assert!(ran.stderr.contains(" more characters)"), "{}", ran.stderr);
}

#[test]
fn many_missing_files_are_one_short_warning() {
    let folder = folder();
    let file = folder.path().join("run.toml");
    let names: Vec<String> = (0..3000).map(|n| format!("'none-{n}.txt'")).collect();
    write(&file, format!("data = [{}]", names.join(", "))).expect("a file");
    let ran = chimera(&format!("config check {}", file.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no none-0.txt, none-1.txt, "), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("none-7.txt, and 2992 more\n"), "{}", ran.stderr);
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_utf8_is_named_with_its_option() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let out = Command::new(env!("CARGO_BIN_EXE_chimera"))
        .args(["train", "--data"])
        .arg(OsStr::from_bytes(b"x\xff.txt"))
        .output()
        .expect("starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("the value \"x\\xFF.txt\" of --data is not UTF-8"), "{said}");
}

#[test]
fn a_refused_schedule_is_called_by_its_file() {
    let folder = folder();
    let file = folder.path().join("mine.json");
    let good = chimera("schedule show chimera --depth 2 --micro-batches 2 --json").stdout;
    let forward = "{\"kind\":\"F\",\"pipe\":0,\"stage\":0,\"micro_batches\":[0]}, ";
    assert!(good.contains("\"chimera\"") && good.contains(forward), "{good}");
    write(&file, good.replace(forward, "")).expect("a file");
    for command in ["schedule check", "simulate", "schedule show", "train --schedule"] {
        let ran = chimera(&format!("{command} {}", file.display()));
        assert_eq!(ran.code, Some(3), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("mine is not a safe schedule"), "{command}: {}", ran.stderr);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_anything_is_measured() {
    for line in ["comm bench --out none/x.json", "selftest --json none/x.json"] {
        let ran = chimera(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("cannot write none/x.json"), "{line}: {}", ran.stderr);
    }
}

#[test]
fn an_absurd_number_of_threads_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
    command.args(["simulate", "1f1b"]).env("RAYON_NUM_THREADS", "1025");
    let out = command.output().expect("starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("RAYON_NUM_THREADS is 1025, but at most 1024 threads"), "{said}");
}

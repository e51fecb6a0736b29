//! Files that are not regular, or have no end: no command waits for them or reads them whole.
#![cfg(target_os = "linux")]

use std::fs::{File, create_dir_all, remove_file, write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{chimera, folder, text};

const MODEL: &str =
    "--layers 2 --hidden 16 --heads 2 --context 16 --depth 2 --micro-batches 2 --threads 1";

fn fifo(path: &Path) {
    let _ = remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success()));
}

/// A file that is larger than any memory.
fn sparse(path: &Path) {
    let _ = remove_file(path);
    File::create(path).and_then(|file| file.set_len(1 << 40)).expect("a file of holes");
}

fn endless(path: &Path) {
    let _ = remove_file(path);
    symlink("/dev/zero", path).expect("a link");
}

/// Runs a command with little memory, which must soon end with an error message.
fn refused(line: &str, code: i32, hint: &str) {
    let command = format!("ulimit -v 3000000; exec {} {line}", env!("CARGO_BIN_EXE_chimera"));
    let out = Command::new("timeout").args(["60", "bash", "-c", &command]).output().expect("bash");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{line}: {said}");
    assert!(said.contains(hint) && said.len() < 2000, "{line}: {said}");
}

#[test]
fn data_must_be_a_regular_file() {
    let folder = folder();
    let data = folder.path().join("data.bin");
    let tiny = format!("train {MODEL} --steps 1 --data {}", data.display());
    for (name, make) in [("FIFO", fifo as fn(&Path)), ("/dev/zero", endless)] {
        make(&data);
        refused(
            &format!("{tiny} --out {}", folder.path().join("out").display()),
            2,
            "not a regular file",
        );
        refused(
            &format!("prepare {} --out {}/x.bin", data.display(), folder.path().display()),
            2,
            "not a regular file",
        );
        assert!(!folder.path().join("out/metrics.jsonl").exists(), "{name}");
    }
}

#[test]
fn the_files_of_a_model_must_be_regular_and_have_an_end() {
    let folder = folder();
    let (data, model) = (text(&folder), folder.path().join("model"));
    let at = model.display();
    let trained =
        chimera(&format!("train {MODEL} --steps 1 --data {} --save {at}", data.display()));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let tokenizer = model.join("tokenizer.json");
    let to = folder.path().join("to");
    for (make, hint) in [
        (fifo as fn(&Path), "not a regular file"),
        (endless, "not a regular file"),
        (sparse, "is larger than"),
    ] {
        make(&tokenizer);
        refused(&format!("generate --model {at} --prompt x"), 2, hint);
        refused(&format!("eval --model {at} --data {}", data.display()), 2, hint);
        refused(&format!("export {at} --out {}", to.display()), 9, hint);
        let _ = std::fs::remove_dir_all(&to);
    }
    let checkpoint = folder.path().join("run/checkpoints/step-00000001");
    create_dir_all(&checkpoint).expect("a folder");
    for make in [fifo, endless] {
        make(&checkpoint.join("manifest.json"));
        refused(
            &format!("export {} --out {}", checkpoint.display(), to.display()),
            4,
            "not a regular file",
        );
    }
}

#[test]
fn a_run_is_followed_in_regular_files_alone() {
    let folder = folder();
    let run = folder.path();
    let top = format!("top --once {}", run.display());
    for name in ["config.toml", "metrics.jsonl"] {
        for make in [fifo as fn(&Path), endless, sparse] {
            write(run.join("config.toml"), "steps = 3\n").expect("settings");
            write(run.join("metrics.jsonl"), "").expect("metrics");
            make(&run.join(name));
            if name == "metrics.jsonl"
                && std::fs::metadata(run.join(name)).is_ok_and(|found| found.is_file())
            {
                assert_eq!(chimera(&top).code, Some(0), "holes are no line yet");
            } else {
                refused(&top, 2, name);
            }
            remove_file(run.join(name)).expect("a file");
        }
    }
    write(run.join("config.toml"), "steps = 3\n").expect("settings");
    write(run.join("metrics.jsonl"), "").expect("metrics");
    for (nth, make) in [fifo as fn(&Path), endless, sparse].into_iter().enumerate() {
        make(&run.join("error.0.json"));
        let shown = chimera(&top);
        assert!(shown.stdout.contains("failed: for an unknown reason"), "{nth}: {}", shown.stdout);
        make(&run.join("lock"));
        assert_eq!(chimera(&top).code, Some(0), "{nth}");
        remove_file(run.join("lock")).expect("a file");
    }
}

#[test]
fn a_pipe_for_metrics_outlives_a_trace_that_is_refused() {
    let folder = folder();
    let (pipe, out) = (folder.path().join("pipe"), folder.path().join("run"));
    fifo(&pipe);
    let _reader = File::options().read(true).write(true).open(&pipe).expect("a pipe");
    let (data, metrics) = (text(&folder), pipe.display());
    let places = format!("--data {} --out {} --metrics {metrics}", data.display(), out.display());
    let train = format!("train {MODEL} --steps 2 {places} --trace none/t.json");
    refused(&train, 2, "cannot write none/t.json");
    assert!(pipe.exists());
}

/// Files that are read once may be pipes from another program.
#[test]
fn settings_and_schedules_may_be_pipes() {
    for line in [
        "config check <(echo 'depth = 2')",
        "schedule check - < <(\"$0\" schedule show gpipe --format json)",
    ] {
        let mut bash = Command::new("bash");
        let command = format!("exec \"$0\" {line}");
        let out =
            bash.args(["-c", &command, env!("CARGO_BIN_EXE_chimera")]).output().expect("bash");
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn what_is_refused_is_not_echoed_whole() {
    let folder = folder();
    let file = folder.path().join("run.toml");
    let long = "x".repeat(500_000);
    for text in [
        format!("schedule = '{long}'"),
        format!("width = '{long}'"),
        format!("{long} = 1"),
        format!("hoist = '{long}'"),
    ] {
        write(&file, text).expect("a file");
        refused(&format!("config check {}", file.display()), 2, "…");
    }
    refused(
        "train --resume '' --out x",
        2,
        "`resume` is \"\"; it must be a text that is not empty",
    );
}

/// If the summary cannot be printed, the run's files still exist.
#[test]
fn a_summary_that_cannot_be_printed_leaves_the_run_whole() {
    let folder = folder();
    let data = text(&folder);
    let full = File::options().write(true).open("/dev/full").expect("a device");
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let told = "error: rank 0: cannot write to standard output: No space left";
    for (name, stdout, code, told) in
        [("full", Stdio::from(full), 9, told), ("closed", Stdio::from(closed), 0, "")]
    {
        let run = folder.path().join(name);
        let (data, out) = (data.display(), run.display());
        let line =
            format!("train {MODEL} --steps 2 --no-save --report --json --data {data} --out {out}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        let ran = command.args(line.split(' ')).stdout(stdout).output().expect("runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(told), "{name}: {said}");
        for file in ["summary.json", "planned.trace.json", "measured.trace.json", "report.html"] {
            assert!(run.join(file).is_file(), "{name}: no {file}");
        }
    }
}

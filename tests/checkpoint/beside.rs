//! Runs that would write to the same place, or into each other's folders.
#![cfg(unix)]

use std::fs::{read, read_to_string, remove_file};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::{Ran, Running, chimera, folder, start, text};

const MODEL: &str = "--layers 2 --hidden 8 --heads 2 --context 8 --depth 1 --threads 1 \
                     --micro-batches 2 --micro-batch-size 1";

struct Place(TempDir);

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn line(&self, run: &str, options: &str) -> String {
        let (data, out) = (text(&self.0), self.at(run));
        format!("train {MODEL} --data {} --out {} {options}", data.display(), out.display())
    }

    fn train(&self, run: &str, options: &str) -> Ran {
        chimera(&self.line(run, options))
    }

    fn refused(&self, run: &str, options: &str, why: &str) {
        let ran = self.train(run, options);
        assert_eq!(ran.code, Some(2), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{options}: {}", ran.stderr);
    }

    /// Starts a run without an end that has trained a step.
    fn live(&self, run: &str, options: &str, metrics: &Path) -> Running {
        let running = start(&self.line(run, &format!("--steps 1000000 {options}")));
        wait_for(|| read(metrics).is_ok_and(|text| !text.is_empty()));
        running
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < deadline, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn stop(running: Running) {
    let status = Command::new("kill").arg(running.child.id().to_string()).status();
    assert!(status.is_ok_and(|status| status.success()));
    let ran = running.wait();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success()));
}

#[test]
fn what_a_run_at_work_writes_is_refused_to_others() {
    let place = Place(folder());
    let [metrics, trace, log] = ["m.jsonl", "t.json", "log"].map(|name| place.at(name));
    let outputs = format!(
        "--metrics {} --trace {} --trace-steps 0..9000000 --log {}",
        metrics.display(),
        trace.display(),
        log.display()
    );
    let running = place.live("a", &outputs, &metrics);
    let link = place.at("link.jsonl");
    symlink(&metrics, &link).expect("a link");
    for (option, output) in
        [("metrics", &metrics), ("metrics", &link), ("trace", &trace), ("log", &log)]
    {
        let output = format!("--steps 1 --{option} {}", output.display());
        place.refused("b", &output, "writes there, and it is at work: name another place");
    }
    assert!(!place.at("b").exists());
    stop(running);
    assert!(read_to_string(&trace).expect("a trace").contains("traceEvents"));
    let after = format!("{outputs} --steps 1");
    assert_eq!(place.train("b", &after).code, Some(0));
    for kept in ["m.jsonl.1", "t.json.1"] {
        assert!(read(place.at(kept)).is_ok_and(|text| !text.is_empty()), "{kept}");
    }
    let left = |file: &Path| PathBuf::from(format!("{}.lock", file.display())).exists();
    assert!(!left(&metrics) && !left(&trace) && !log.join("log.lock").exists());
}

#[test]
fn nothing_is_written_into_the_folder_of_another_run() {
    let place = Place(folder());
    let running = place.live("r", "", &place.at("r/metrics.jsonl"));
    let refused = || {
        for (option, output) in [
            ("trace", "r/lock"),
            ("trace", "r/config.toml"),
            ("metrics", "r/metrics.jsonl"),
            ("metrics", "r/checkpoints/m.jsonl"),
            ("log", "r"),
            ("tensorboard", "r/model/events"),
            ("save", "r/model"),
        ] {
            let options =
                format!("--steps 1 --trace-steps 0..1 --{option} {}", place.at(output).display());
            place.refused("b", &options, "keeps its files there: name another place");
        }
        for out in ["r/model", "r/checkpoints", "r/checkpoints/deep/er"] {
            place.refused(out, "--steps 1", "is in the folder of the run in");
            let made = Path::new(out).strip_prefix("r").expect("within");
            assert!(!place.at("r").join(made).join("config.toml").exists());
        }
    };
    refused();
    stop(running);
    refused();
    let own = format!("--steps 1 --trace {}", place.at("b/t.json").display());
    assert_eq!(place.train("b", &own).code, Some(0));
}

#[test]
fn pipes_in_the_folder_of_a_run_are_replaced() {
    let place = Place(folder());
    assert_eq!(place.train("r", "--steps 2 --save-every 1").code, Some(0));
    let names = ["summary.json", "pipeline.svg", "planned.trace.json", "report.html"];
    for name in names {
        let _ = remove_file(place.at("r").join(name));
        fifo(&place.at("r").join(name));
    }
    let on = place.train("r", "--steps 4 --save-every 1 --resume auto --report");
    assert_eq!(on.code, Some(0), "{}", on.stderr);
    for name in names {
        assert!(place.at("r").join(name).is_file(), "{name}");
    }
}

#[test]
fn a_pipe_in_the_place_of_the_metrics_is_replaced_while_the_run_trains() {
    let place = Place(folder());
    let metrics = place.at("r/metrics.jsonl");
    let running = place.live("r", "", &metrics);
    let pipe = place.at("r/pipe");
    fifo(&pipe);
    std::fs::rename(&pipe, &metrics).expect("moved");
    wait_for(|| {
        let found = metrics.symlink_metadata();
        found.is_ok_and(|found| !found.file_type().is_fifo() && found.len() > 0)
    });
    stop(running);
}

/// A run writes to a pipe only if a user named it.
#[test]
fn a_pipe_that_a_user_names_is_written_to() {
    let place = Place(folder());
    let pipe = place.at("pipe");
    fifo(&pipe);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        // The run opens it at the start to check it, and later to write.
        move || [read(&pipe), read(&pipe)].map(|text| text.expect("a text")).concat()
    });
    let trace = format!("--steps 2 --no-save --trace {} --trace-steps 0..1", pipe.display());
    let ran = place.train("r", &trace);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let text = reader.join().expect("a reader");
    assert!(String::from_utf8_lossy(&text).contains("traceEvents"));
    assert!(pipe.symlink_metadata().expect("a pipe").file_type().is_fifo());
}

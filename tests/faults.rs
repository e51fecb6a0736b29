//! `chimera train` when a run goes wrong: its exit code, its error file, and the files it leaves.
#![cfg(unix)] // for signals, and for devices that are files

#[cfg(target_os = "linux")]
#[path = "faults/limits.rs"]
mod limits;

mod command;

use std::fs::{create_dir_all, read, read_dir, read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use command::{Ran, Running, chimera, folder, start, text};

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 --threads 1 \
     --depth 4 --micro-batches 8 --optimizer adamw --lr-schedule cosine";

/// A run with all its files in one folder.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: folder() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command line that trains with these options, and saves.
    fn line(&self, options: &str) -> String {
        let (data, out, save) = (text(&self.folder), self.at("run"), self.at("weights"));
        let places =
            format!("--data {} --out {} --save {}", data.display(), out.display(), save.display());
        format!("train {MODEL} {places} {options}")
    }

    /// The only error file. It must be that of `rank`, and agree with the command's exit code.
    fn error(&self, ran: &Ran, rank: usize) -> Value {
        let names = read_dir(self.at("run")).expect("a folder").filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.starts_with("error.").then_some(name)
        });
        assert_eq!(names.collect::<Vec<_>>(), [format!("error.{rank}.json")], "{}", ran.stderr);
        let text = read_to_string(self.at(&format!("run/error.{rank}.json"))).expect("a file");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        let keys: Vec<&String> = error.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["class", "code", "message", "op", "peer", "pid", "rank", "step"]);
        assert_eq!((&error["code"], &error["rank"]), (&json!(ran.code), &json!(rank)));
        assert!(error["pid"].as_u64().is_some_and(|pid| pid > 1));
        let message = error["message"].as_str().expect("words");
        assert!(ran.stderr.contains(message), "{message}: {}", ran.stderr);
        error
    }

    /// The last records of `rank`: step, kind of record, name.
    fn recent(&self, rank: usize) -> Vec<(u64, String, String)> {
        let text = read_to_string(self.at(&format!("run/ops.{rank}.jsonl"))).expect("a file");
        let did = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("a whole line");
            let kinds = ["op", "reduction", "update", "wait"];
            let kind = kinds.into_iter().find(|kind| line[kind].is_string()).expect("a kind");
            assert!(line["start"].as_f64() <= line["end"].as_f64(), "{line}");
            let step = line["step"].as_u64().expect("a step");
            (step, kind.to_string(), line[kind].as_str().unwrap_or_default().to_string())
        };
        text.lines().map(did).collect()
    }

    /// The losses of the steps that were recorded, all of them numbers.
    fn losses(&self) -> Vec<f64> {
        let text = read_to_string(self.at("run/metrics.jsonl")).unwrap_or_default();
        let loss = |line: &str| -> f64 {
            let line: Value = serde_json::from_str(line).expect("a whole line");
            line["loss"].as_f64().expect("a finite loss")
        };
        text.lines().map(loss).collect()
    }

    /// The number of files of weights, without the file that names their run.
    fn n_saved(&self) -> usize {
        let Ok(files) = read_dir(self.at("weights")) else { return 0 };
        files.flatten().filter(|file| file.file_name() != "saved-by.json").count()
    }
}

/// Waits until `path` holds `what`.
fn wait_for(path: &Path, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(what)) {
        assert!(Instant::now() < deadline, "{} never says {what}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(running: &Running, name: &str) {
    let status = Command::new("kill").args([name, &running.child.id().to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_before_it_is_recorded() {
    // The rank of the last stage in the pipe whose loss is reported: Chimera's up pipe, or the only
    // one.
    for (schedule, rank) in [("chimera", 0), ("dapple", 3)] {
        let place = Place::new();
        let ran =
            chimera(&place.line(&format!("--schedule {schedule} --steps 9 --lr 1e30 --clip 0")));
        assert!(!ran.stdout.contains("validation loss"), "{}", ran.stdout);
        assert_eq!(ran.code, Some(7), "{}", ran.stderr);
        let error = place.error(&ran, rank);
        assert_eq!((&error["class"], &error["peer"]), (&json!("non-finite"), &Value::Null));
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("the loss of F(pipe "), "{message}");
        for part in ["stage 3, micro-batch ", "is not finite", "learning rate (lr)"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let losses = place.losses();
        assert_eq!(error["step"], json!(losses.len()), "the step after the last sound one");
        assert!(!losses.is_empty() && losses.iter().all(|loss| loss.is_finite()));
        assert_eq!(place.n_saved(), 0, "weights of a failed run");
        for rank in 0..4 {
            let recent = place.recent(rank);
            assert!(recent.is_sorted_by_key(|(step, ..)| step) && recent[0].0 == 0);
            let (step, kind, what) = recent.last().expect("something");
            assert_eq!(*step, losses.len() as u64, "the step that failed");
            assert_eq!((kind.as_str(), what.as_str()), ("wait", "the agreement of all ranks"));
            let has = |kind| recent.iter().any(|(_, other, _)| other == kind);
            assert!(["op", "reduction", "update", "wait"].into_iter().all(has), "{recent:?}");
        }
    }
}

#[test]
fn a_signal_ends_the_run_after_the_step_and_saves() {
    for name in ["-TERM", "-INT"] {
        let place = Place::new();
        let running = start(&place.line("--steps 1000000"));
        wait_for(&place.at("run/metrics.jsonl"), "\"step\":3,");
        signal(&running, name);
        let ran = running.wait();
        assert_eq!(ran.code, Some(75), "{}", ran.stderr);
        let n_steps = place.losses().len();
        let last = format!("stopped on request after step {}", n_steps - 1);
        assert!((4..1_000_000).contains(&n_steps) && ran.stderr.contains(&last), "{}", ran.stderr);
        assert_eq!(place.n_saved(), 2);
        let weights = read(place.at("weights/model.safetensors")).expect("weights");
        let weights = safetensors::SafeTensors::deserialize(&weights).expect("a whole file");
        let finite = |bytes: &[u8]| {
            bytes.chunks(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite())
        };
        assert!(weights.iter().all(|(_, tensor)| finite(tensor.data())));
    }
}

/// The weights after a stop equal those of a run that was to end at that step.
#[test]
fn a_stopped_run_has_trained_whole_steps() {
    let place = Place::new();
    // so that the learning rate does not depend on the number of steps
    let lasting = "--warmup 1000000";
    let running = start(&place.line(&format!("--steps 2000000 {lasting}")));
    wait_for(&place.at("run/metrics.jsonl"), "\"step\":3,");
    signal(&running, "-TERM");
    assert_eq!(running.wait().code, Some(75));
    let whole = Place::new();
    let n_steps = place.losses().len();
    assert_eq!(chimera(&whole.line(&format!("--steps {n_steps} {lasting}"))).code, Some(0));
    assert_eq!(whole.losses(), place.losses());
    let weights = |place: &Place| read(place.at("weights/model.safetensors")).expect("weights");
    assert!(weights(&place) == weights(&whole));
}

/// A signal within a step does not wait for its end. The checkpoint is of the step before, and a
/// resume computes the same bits as a run that was never stopped.
#[test]
fn a_signal_within_a_step_discards_it() {
    for (schedule, micro_batches) in [
        ("gpipe --depth 2", 400),
        ("1f1b --depth 4", 300),
        ("chimera --pipes 2 --depth 4", 300),
        ("zb-h1 --depth 2", 400),
        ("chimera --pipes 2 --depth 2 --width 2 --shard-optimizer", 200),
    ] {
        let options = format!(
            "--schedule {schedule} --micro-batches {micro_batches} --warmup 1000000 --resume auto"
        );
        let (place, whole) = (Place::new(), Place::new());
        let running = start(&place.line(&format!("{options} --steps 1000000")));
        wait_for(&place.at("run/metrics.jsonl"), "\"step\":1,");
        signal(&running, "-TERM");
        let ran = running.wait();
        let n_steps = place.losses().len();
        assert_eq!(ran.code, Some(75), "{schedule}: {}", ran.stderr);
        assert!(ran.stderr.contains("stopping: the step under way is discarded"), "{}", ran.stderr);
        let told = format!(
            "stopped on request after step {}; step {n_steps} was under way and is discarded; resume with",
            n_steps - 1
        );
        assert!(ran.stderr.contains(&told), "{schedule}: {}", ran.stderr);
        let saved = read_dir(place.at("run/checkpoints")).expect("a folder").flatten();
        let saved: Vec<_> = saved.map(|entry| entry.file_name()).collect();
        assert_eq!(saved, [&*format!("step-{n_steps:08}")], "{schedule}");
        let line = |place: &Place| place.line(&format!("{options} --steps {}", n_steps + 1));
        for place in [&place, &whole] {
            let ran = chimera(&line(place));
            assert_eq!(ran.code, Some(0), "{schedule}: {}", ran.stderr);
        }
        assert_eq!(place.losses(), whole.losses(), "{schedule}");
        let weights = |place: &Place| read(place.at("weights/model.safetensors")).expect("weights");
        assert!(weights(&place) == weights(&whole), "{schedule}");
    }
}

/// A run that is stopped in its first step has nothing to save, and starts from the beginning.
#[test]
fn a_signal_within_the_first_step_saves_nothing() {
    let place = Place::new();
    let running = start(&place.line("--steps 1 --micro-batches 100000")); // it takes minutes
    wait_for(&running.output.path().join("stdout"), "parameters");
    let first = Instant::now();
    signal(&running, "-TERM");
    let ran = running.wait();
    assert!(first.elapsed() < Duration::from_secs(30), "{:?}", first.elapsed());
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    let told = "stopped on request before the first step was done; begin again with: chimera train";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    assert!(
        !place.at("run/checkpoints").exists()
            && !place.at("weights").join("model.safetensors").exists()
    );
}

/// Without the barrier a step changes weights once it has begun, so the first signal waits for its
/// end and says so. A second signal does not wait, and reports what is left.
#[test]
fn a_second_signal_ends_the_run_at_once() {
    let place = Place::new();
    // one step of several minutes
    let long = "--steps 1 --micro-batches 100000 --clip 0 --check-finite false";
    let running = start(&place.line(long));
    wait_for(&running.output.path().join("stdout"), "parameters");
    wait_for(&running.output.path().join("stdout"), "first step: about ");
    signal(&running, "-TERM");
    wait_for(&running.output.path().join("stderr"), "press Ctrl-C again");
    // an earlier one would count as the same request
    std::thread::sleep(Duration::from_millis(1100));
    let second = Instant::now();
    signal(&running, "-INT");
    let ran = running.wait();
    assert!(second.elapsed() < Duration::from_secs(5), "{:?}", second.elapsed());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("stopping at the end of step 0, in about "), "{}", ran.stderr);
    assert!(ran.stderr.contains(": without --clip and --check-finite weights"), "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped immediately: there is no checkpoint"), "{}", ran.stderr);
    assert_eq!((place.losses().len(), place.n_saved()), (0, 0));
}

/// A step that has begun is finished, and then the run ends.
#[test]
fn a_signal_without_the_barrier_finishes_the_step() {
    let place = Place::new();
    let options =
        "--clip 0 --check-finite false --micro-batches 300 --warmup 1000000 --save-every 1";
    let running = start(&place.line(&format!("{options} --steps 1000000")));
    wait_for(&place.at("run/metrics.jsonl"), "\"step\":1,");
    signal(&running, "-TERM");
    let ran = running.wait();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    let told = format!("stopped on request after step {}; resume with", place.losses().len() - 1);
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    assert!(ran.stderr.contains("stopping at the end of "), "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_metrics_ends_the_run() {
    let place = Place::new();
    let ran = chimera(&place.line("--steps 5 --metrics /dev/full"));
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let error = place.error(&ran, 0);
    assert_eq!((&error["class"], &error["step"]), (&json!("io"), &json!(0)));
    assert_eq!(
        error["message"],
        "cannot write metrics /dev/full: No space left on device (os error 28)"
    );
    assert_eq!(place.n_saved(), 0);
}

#[test]
fn data_that_is_cut_short_ends_the_run() {
    let place = Place::new();
    let running = start(&place.line("--steps 1000000"));
    wait_for(&place.at("run/metrics.jsonl"), "\"step\":3,");
    std::fs::write(place.at("text.txt"), "short").expect("a file");
    let ran = running.wait();
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot read data file "), "{}", ran.stderr);
    assert_eq!(place.n_saved(), 0);
}

#[test]
fn weights_that_cannot_be_saved_leave_no_part_behind() {
    let place = Place::new();
    create_dir_all(place.at("weights/model.safetensors/taken")).expect("a folder");
    let ran = chimera(&place.line("--steps 2"));
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let error = place.error(&ran, 0);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(error["class"] == "io" && message.contains("model.safetensors"), "{message}");
    assert_eq!((place.n_saved(), place.losses().len()), (1, 2));
    let kept = place.at("run/model/model.safetensors");
    let told = format!("the weights are in {}", kept.display());
    assert!(kept.is_file() && ran.stderr.contains(&told), "{}", ran.stderr);

    // A model of somebody else is not replaced.
    let place = Place::new();
    for dir in ["weights/model.safetensors/taken", "run/model"] {
        create_dir_all(place.at(dir)).expect("a folder");
    }
    write(place.at("run/model/config.json"), "precious").expect("a file");
    let ran = chimera(&place.line("--steps 2"));
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let left: Vec<_> = read_dir(place.at("run/model")).expect("a folder").flatten().collect();
    assert_eq!((left.len(), read(left[0].path()).expect("a file")), (1, b"precious".to_vec()));
}

#[test]
fn a_wait_that_is_too_long_is_explained() {
    let place = Place::new();
    let ran = chimera(&place.line("--steps 100000 --timeout 0.001"));
    assert_eq!(ran.code, Some(6), "{}", ran.stderr);
    let names = read_dir(place.at("run")).expect("a folder").filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_prefix("error.")?.strip_suffix(".json")?.parse().ok()
    });
    let rank = names.last().expect("an error file");
    let error = place.error(&ran, rank);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("waited 0.0 s for "), "{message}");
    // Nothing is wrong except the short timeout, so the rank that was waited for is known.
    assert!(message.contains("; rank ") && error["peer"].is_u64(), "{message}");
    let (step, kind, _) = place.recent(rank).pop().expect("something");
    assert_eq!((json!(step), kind.as_str()), (error["step"].clone(), "wait"));
}

#[test]
fn steps_that_are_not_finite_can_be_skipped() {
    let place = Place::new();
    let options = "--depth 2 --steps 6 --lr 1e30 --clip 0 --non-finite skip --save-every 2";
    let ran = chimera(&place.line(options));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let counts = || -> Vec<u64> {
        let text = read_to_string(place.at("run/metrics.jsonl")).expect("metrics");
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
        lines.map(|l| l["skipped"].as_u64().unwrap_or(0)).collect()
    };
    let (first, n_sound) = (counts(), counts().iter().filter(|n| **n == 0).count());
    assert!((1..6).contains(&n_sound) && first.len() == 6, "{first:?}");
    assert!(first[n_sound..].iter().copied().eq(1..=6 - n_sound as u64), "{first:?}");
    for step in n_sound..6 {
        let warning = format!("warning: step {step} made no update: ");
        assert!(ran.stderr.contains(&warning), "{}", ran.stderr);
    }
    let weights = read(place.at("weights/model.safetensors")).expect("weights");
    let weights = safetensors::SafeTensors::deserialize(&weights).expect("a whole file");
    let finite = |bytes: &[u8]| {
        bytes.chunks(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite())
    };
    assert!(weights.iter().all(|(_, tensor)| finite(tensor.data())));

    // A resumed run continues the counts.
    let longer = options.replace("--steps 6", "--steps 8");
    let resumed = chimera(&place.line(&format!("{longer} --resume auto")));
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(counts()[6..], [first[5] + 1, first[5] + 2], "{}", resumed.stderr);

    let refused = chimera(&place.line("--schedule pipedream --non-finite skip --tied false"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("choose a synchronous schedule"), "{}", refused.stderr);
    let refused = chimera(&place.line("--depth 2 --non-finite skip --check-finite false"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("leave check-finite true"), "{}", refused.stderr);
}

//! `chimera train` in jobs that are killed, requeued and started twice.
#![cfg(unix)]

use std::fs::{read_to_string, write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use chimera::formats::checkpoint::{Checkpoint, Store};
use serde_json::Value;

use super::{MODEL, at};
use crate::command::{Ran, Running, chimera, folder, start, start_with, text};

pub(super) fn line(folder: &tempfile::TempDir, run: &str, options: &str) -> String {
    let (data, out) = (text(folder), folder.path().join(run));
    let model = MODEL.replace("--steps 6", "");
    format!("train {model} --depth 2 --data {} --out {} {options}", data.display(), out.display())
}

/// Step and loss of each line of the metrics, as written.
pub(super) fn losses(run: &Path) -> Vec<(u64, String)> {
    let text = read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let pair = |line: &str| {
        let step = serde_json::from_str::<Value>(line).expect("a whole line")["step"].as_u64();
        let loss = line.split_once("\"loss\":").and_then(|(_, rest)| rest.split_once(','));
        (step.expect("a step"), loss.expect("a loss").0.to_string())
    };
    text.lines().map(pair).collect()
}

pub(super) fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !what() {
        assert!(Instant::now() < deadline, "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn signal(running: &Running, name: &str) {
    let status = Command::new("kill").args([name, &running.child.id().to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// The files that the checkpoint of a step lists.
fn shards(run: &Path, step: u64) -> Value {
    let text = read_to_string(at(run, step).join("manifest.json")).expect("a manifest");
    serde_json::from_str::<Value>(&text).expect("JSON")["shards"].clone()
}

/// One job script, started again with the same line after each kill, trains as if it was never
/// killed.
#[test]
fn killed_jobs_train_as_one() {
    let folder = folder();
    let options = "--steps 400 --save-every 3 --resume auto";
    let whole = chimera(&line(&folder, "whole", options));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    assert!(whole.stdout.contains("training starts from step 0"), "{}", whole.stdout);
    let run = folder.path().join("killed");
    let metrics = run.join("metrics.jsonl");
    let n_lines = || read_to_string(&metrics).unwrap_or_default().lines().count();
    for name in ["-KILL", "-KILL", "-TERM", "-KILL"] {
        let before = n_lines();
        let running = start(&line(&folder, "killed", options));
        wait_for(|| !(before.saturating_sub(6)..=before + 7).contains(&n_lines()));
        signal(&running, name);
        let ran = running.wait();
        assert_eq!(ran.code, if name == "-TERM" { Some(75) } else { None }, "{}", ran.stderr);
        if name == "-TERM" {
            let n = losses(&run).len() as u64;
            assert!(Checkpoint::open(&at(&run, n)).is_ok(), "the step it was stopped after");
            assert!(ran.stderr.contains("; resume with: chimera train "), "{}", ran.stderr);
        }
    }
    let ran = chimera(&line(&folder, "killed", options));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("resumes from ") && ran.stdout.contains(" is next"),
        "{}",
        ran.stdout
    );
    let expected = losses(&folder.path().join("whole"));
    assert_eq!((losses(&run).len(), losses(&run) == expected), (400, true));
    assert_eq!(shards(&run, 400), shards(&folder.path().join("whole"), 400));
    // A job that is requeued again has nothing left to do.
    let ran = chimera(&line(&folder, "killed", options));
    assert_eq!(
        (ran.code, ran.stdout.contains("nothing is left")),
        (Some(0), true),
        "{}",
        ran.stderr
    );
    assert_eq!(losses(&run), expected);
}

#[test]
fn a_second_job_in_a_folder_is_refused() {
    let folder = folder();
    let first = start(&line(&folder, "run", "--steps 1000000"));
    let metrics = folder.path().join("run/metrics.jsonl");
    wait_for(|| read_to_string(&metrics).is_ok_and(|text| text.contains("\"step\":2,")));
    for options in ["--steps 9", "--steps 9 --resume auto"] {
        let second = chimera(&line(&folder, "run", options));
        assert_eq!((second.code, second.stdout.as_str()), (Some(2), ""), "{}", second.stderr);
        let named = format!("is in use by process {} on host ", first.child.id());
        assert!(second.stderr.contains(&named), "{}", second.stderr);
    }
    signal(&first, "-KILL");
    first.wait();
    assert!(folder.path().join("run/lock").exists(), "the dead process let go of its lock");
    let third = chimera(&line(&folder, "run", "--steps 9 --resume auto"));
    assert_eq!(third.code, Some(0), "{}", third.stderr);
    assert_eq!(
        (losses(&folder.path().join("run")).len(), folder.path().join("run/lock").exists()),
        (9, false)
    );
}

/// A run that ended before it saved its model saves it when the same command runs again.
#[test]
fn a_run_that_has_its_steps_still_saves() {
    let folder = folder();
    let [run, saved] = ["run", "saved"].map(|name| folder.path().join(name));
    assert_eq!(chimera(&line(&folder, "run", "--steps 4 --save-every 2 --no-save")).code, Some(0));
    let again = format!("--steps 4 --resume auto --json --save {}", saved.display());
    assert_eq!(chimera(&line(&folder, "run", &again)).code, Some(0));
    let ran = chimera(&line(&folder, "run", &again));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // The model belongs to the run of the checkpoint, whichever run saves it.
    let from = format!("--steps 4 --resume {} --save {}", at(&run, 4).display(), saved.display());
    for name in ["other", "other", "another"] {
        let ran = chimera(&line(&folder, name, &from));
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
    }
    let claim = read_to_string(saved.join("saved-by.json")).expect("whose it is");
    let claim: Value = serde_json::from_str(&claim).expect("JSON");
    assert_eq!(claim["run"].as_str(), run.canonicalize().expect("a folder").to_str());
    let summary: Value = serde_json::from_str(&ran.stdout).expect("a summary");
    assert_eq!((summary["run"].as_str(), summary["steps"].as_u64()), (run.to_str(), Some(4)));
    let exported = folder.path().join("exported");
    let export = format!("export {} --out {}", run.display(), exported.display());
    let export = chimera(&export);
    assert_eq!(export.stderr, format!("model: {}\n", at(&run, 4).display()));
    let weights = |dir: &Path| std::fs::read(dir.join("model.safetensors")).expect("weights");
    assert!(weights(&saved) == weights(&exported));
    // The output names the checkpoint that is measured instead of the newest.
    write(at(&run, 4).join("shard-0000.safetensors"), "short").expect("written");
    let data = text(&folder);
    let eval = format!("eval --model {} --data {} --json", run.display(), data.display());
    let ran = chimera(&eval);
    let report: Value = serde_json::from_str(&ran.stdout).expect("a report");
    assert_eq!(report["model"].as_str(), at(&run, 2).to_str());
    assert!(ran.stderr.contains("this checkpoint cannot be used: "), "{}", ran.stderr);
}

/// Settings that change the numbers may differ, but are reported.
#[test]
fn settings_that_change_numbers_are_told() {
    let folder = folder();
    let go = |options: &str| -> Ran {
        let ran = chimera(&line(&folder, "run", options));
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
        ran
    };
    go("--steps 2 --save-every 2");
    let told = go("--steps 4 --save-every 2 --resume auto --reduce-precision bf16").stdout;
    let change = "  from here on, reduce-precision: \"f32\" in the checkpoint, \"bf16\" now\n";
    assert!(told.contains(change) && !told.contains("here on, schedule"), "{told}");
    let told = go("--steps 6 --save-every 2 --resume auto --schedule gpipe").stdout;
    assert!(told.contains("here on, reduce-precision"), "{told}");
    assert!(!told.contains("here on, schedule"), "{told}");
    let stale = "--steps 8 --save-every 2 --resume auto --schedule pipedream-2bw --window 2 \
                 --shard-optimizer false";
    let told = go(stale).stdout;
    let change = "here on, schedule: \"gpipe\" in the checkpoint, \"pipedream-2bw\" now";
    assert!(told.contains(change), "{told}");
}

/// Appended text leaves most samples where they were, but the data differs.
#[test]
fn data_that_grew_is_refused() {
    let folder = folder();
    let (data, run) = (text(&folder), folder.path().join("run"));
    let train = |steps: u32| {
        let model = MODEL.replace("--steps 6", "");
        let (data, run) = (data.display(), run.display());
        chimera(&format!(
            "train {model} --depth 2 --data {data} --out {run} --steps {steps} --save-every 2 --resume auto"
        ))
    };
    assert_eq!(train(2).code, Some(0));
    let was = read_to_string(&data).expect("a text");
    write(&data, format!("{was}.")).expect("written");
    let ran = train(4);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let told = format!("data: {} tokens in the checkpoint, {} now", was.len(), was.len() + 1);
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    // A single changed byte is refused.
    write(&data, was.replacen('e', "f", 1)).expect("written");
    let ran = train(4);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("data: other tokens than in the checkpoint"), "{}", ran.stderr);
    write(&data, was).expect("written");
    let init = chimera(&format!("train --init {} --data {}", run.display(), data.display()));
    assert_eq!(init.code, Some(2), "{}", init.stderr);
    assert!(
        init.stderr.contains("holds checkpoints, not a model: `chimera export` makes one"),
        "{}",
        init.stderr
    );
    assert_eq!(train(4).code, Some(0));
}

#[test]
fn what_cannot_be_resumed_is_refused() {
    let folder = folder();
    let run = folder.path().join("run");
    let go = |options: &str| -> Ran { chimera(&line(&folder, "run", options)) };
    assert_eq!(go("--steps 6 --save-every 3").code, Some(0));
    let path = |step| at(&run, step).display().to_string();
    let before = losses(&run);
    for (options, code, hint) in [
        (format!("--steps 9 --resume {}", path(5)), 4, "there is no such folder"),
        (format!("--steps 9 --resume {}", run.display()), 4, "did you mean "),
        (format!("--steps 9 --resume {}", path(3)), 2, "holds a newer checkpoint than"),
        ("--steps 9 --seed 5 --resume auto".into(), 2, "seed: 1 in the checkpoint, 5 now"),
        (
            "--steps 9".into(),
            2,
            " is a run with checkpoints: --resume auto goes on with it; or choose another --out",
        ),
    ] {
        let ran = go(&options);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
        assert_eq!(losses(&run), before, "{options}");
    }
    // In another folder, an older checkpoint starts a fork.
    let fork = chimera(&line(&folder, "fork", &format!("--steps 6 --resume {}", path(3))));
    assert_eq!(fork.code, Some(0), "{}", fork.stderr);
    assert_eq!(losses(&folder.path().join("fork")), before[3..]);
    // A broken checkpoint is refused if it was named; `auto` skips it.
    write(at(&run, 6).join("shard-0000.safetensors"), "short").expect("written");
    let named = go(&format!("--steps 6 --resume {}", path(6)));
    assert_eq!(named.code, Some(4), "{}", named.stderr);
    assert!(named.stderr.contains("shard-0000.safetensors: it has 5 bytes"), "{}", named.stderr);
    let auto = go("--steps 6 --save-every 3 --resume auto");
    assert_eq!((auto.code, auto.stderr.contains("put aside")), (Some(0), true), "{}", auto.stderr);
    assert_eq!(losses(&run), before);
    for step in [3, 6] {
        write(at(&run, step).join("manifest.json"), "{}").expect("written");
    }
    let none = go("--steps 6 --resume auto");
    assert_eq!(none.code, Some(4), "{}", none.stderr);
    assert!(none.stderr.contains("no checkpoint of this run can be used"), "{}", none.stderr);
    let nowhere = chimera("train --steps 1 --resume auto");
    assert_eq!((nowhere.code, nowhere.stderr.contains("name it with --out")), (Some(2), true));
}

/// A folder that cannot be written causes a warning during the run, and an error at its end.
#[test]
fn a_place_that_cannot_be_written_to_is_told() {
    let folder = folder();
    let run = folder.path().join("run");
    std::fs::create_dir(&run).expect("a folder");
    write(run.join("checkpoints"), "").expect("a file");
    let ran = chimera(&line(&folder, "run", "--steps 6 --save-every 2"));
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    assert!(ran.stderr.contains("; training goes on\n"), "{}", ran.stderr);
    assert_eq!(losses(&run).len(), 6);
    let error = read_to_string(run.join("error.0.json")).expect("an error file");
    assert!(error.contains("cannot write checkpoint "), "{error}");
}

/// Files that cannot grow simulate a full disk: shards exceed the limit, all other files fit.
#[test]
fn a_disk_that_is_full_costs_checkpoints_and_no_step() {
    let folder = folder();
    let [run, fork] = ["run", "fork"].map(|name| folder.path().join(name));
    assert_eq!(chimera(&line(&folder, "run", "--steps 3 --save-every 3")).code, Some(0));
    let mut limited = Command::new("sh");
    let script = r#"trap '' XFSZ; ulimit -f 64; exec "$0" "$@""#; // 64 blocks of 512 bytes
    limited.args(["-c", script, env!("CARGO_BIN_EXE_chimera")]);
    let options = "--steps 6 --save-every 1 --resume auto";
    let ran = start_with(limited, &line(&folder, "run", options)).wait();
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    let reason = |step: u64| format!("step-{step:08}: File too large");
    for step in [4, 5] {
        let told = |line: &str| line.contains(&reason(step)) && line.ends_with("training goes on");
        assert!(ran.stderr.lines().any(told), "{step}: {}", ran.stderr);
    }
    let error = read_to_string(run.join("error.0.json")).expect("an error file");
    assert!(error.contains("\"code\": 9") && error.contains(&reason(6)), "{error}");
    assert_eq!(Store::of(&run).entries().expect("a folder").len(), 1);
    let from = at(&run, 3).display().to_string();
    let whole = chimera(&line(&folder, "fork", &format!("--steps 6 --resume {from}")));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    assert_eq!(losses(&fork), losses(&run)[3..]);
}

/// Checkpoints without the settings of their run. A new run here would prune them as its own older
/// checkpoints.
#[test]
fn a_folder_with_checkpoints_is_not_begun_anew() {
    let folder = folder();
    let go = |options: &str| chimera(&line(&folder, "run", options));
    assert_eq!(go("--steps 2 --save-every 2").code, Some(0));
    let run = folder.path().join("run");
    for name in ["config.toml", "metrics.jsonl"] {
        std::fs::remove_file(run.join(name)).expect("removed");
    }
    let anew = go("--steps 4 --save-every 1");
    assert_eq!(anew.code, Some(2), "{}", anew.stderr);
    assert!(anew.stderr.contains("holds checkpoints: --resume auto"), "{}", anew.stderr);
    // Nor does a run that begins with a checkpoint of another one.
    let other = chimera(&line(&folder, "other", "--steps 3 --save-every 3"));
    assert_eq!(other.code, Some(0), "{}", other.stderr);
    let checkpoint = folder.path().join("other/checkpoints/step-00000003");
    let fork = go(&format!("--steps 6 --save-every 1 --resume {}", checkpoint.display()));
    assert_eq!(fork.code, Some(2), "{}", fork.stderr);
    assert!(fork.stderr.contains("holds checkpoints: --resume auto"), "{}", fork.stderr);
    let on = go("--steps 4 --resume auto");
    assert_eq!(on.code, Some(0), "{}", on.stderr);
}

/// A power failure may leave half of the settings, or none.
#[test]
fn settings_that_are_torn_or_lost_are_told() {
    let folder = folder();
    let run = folder.path().join("run");
    let (settings, metrics) = (run.join("config.toml"), run.join("metrics.jsonl"));
    let go = || chimera(&line(&folder, "run", "--steps 4 --no-save --resume auto"));
    assert_eq!(go().code, Some(0));
    for torn in ["", "depth = 2\n", "steps = 4\nlr = "] {
        write(&settings, torn).expect("written");
        let ran = go();
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("the settings of the run are incomplete"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("another run"), "{}", ran.stderr);
        assert_eq!(read_to_string(&settings).expect("settings"), torn);
    }
    std::fs::remove_file(&settings).expect("removed");
    let ran = go();
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("no config.toml beside it"), "{}", ran.stderr);
    assert!(!settings.exists());
    std::fs::rename(&metrics, run.join("aside")).expect("renamed");
    assert_eq!(go().code, Some(0));
}

/// The model of one run is never replaced by another run's, whether that began before it, during it
/// or after it. (Only Linux shows that a killed run has ended.)
#[cfg(target_os = "linux")]
#[test]
fn runs_that_save_into_one_folder_do_not_replace_each_other() {
    let folder = folder();
    let saved = folder.path().join("saved");
    let save = format!("--save {}", saved.display());
    let endless = format!("--steps 1000000 --save-every 1 --resume auto {save}");
    let begin = |run: &str| {
        let running = start(&line(&folder, run, &endless));
        let metrics = folder.path().join(run).join("metrics.jsonl");
        wait_for(|| read_to_string(&metrics).is_ok_and(|text| text.contains("\"step\":2,")));
        running
    };
    let first = begin("a");
    let short = line(&folder, "b", &format!("--steps 2 {save}"));
    let beside = chimera(&short);
    assert_eq!(beside.code, Some(2), "{}", beside.stderr);
    assert!(beside.stderr.contains("and it is at work"), "{}", beside.stderr);
    signal(&first, "-KILL");
    first.wait();
    assert_eq!(chimera(&short).code, Some(0));
    let weights = || std::fs::read(saved.join("model.safetensors")).expect("weights");
    let before = weights();
    let after = chimera(&line(&folder, "a", &endless));
    assert_eq!(after.code, Some(2), "{}", after.stderr);
    assert!(after.stderr.contains("saved holds a model already"), "{}", after.stderr);
    assert!(weights() == before);
    // A folder that appears before a run ends is not replaced either.
    std::fs::remove_dir_all(&saved).expect("removed");
    let last = begin("c");
    write(saved.join("model.safetensors"), "precious").expect("written");
    signal(&last, "-TERM");
    let ran = last.wait();
    assert_eq!(ran.code, Some(9), "{}", ran.stderr);
    assert!(ran.stderr.contains("that this run did not save"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the weights are in "), "{}", ran.stderr);
    assert_eq!(weights(), b"precious");
    assert!(folder.path().join("c/model/model.safetensors").is_file());
}

/// A process may be killed after its last checkpoint, before it writes the run's summary.
#[test]
fn a_run_that_was_killed_at_its_end_is_concluded() {
    let folder = folder();
    let run = folder.path().join("run");
    let whole = chimera(&line(&folder, "run", "--steps 4 --save-every 2 --json"));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let summary = |ran: &Ran| serde_json::from_str::<Value>(&ran.stdout).expect("a summary");
    let whole = summary(&whole);
    for name in ["summary.json", "pipeline.svg", "planned.trace.json", "measured.trace.json"] {
        std::fs::remove_file(run.join(name)).expect("a file");
    }
    let again = "--steps 4 --resume auto --json --report";
    for _ in 0..2 {
        let ran = chimera(&line(&folder, "run", again));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let now = summary(&ran);
        assert_eq!((&now["run"], &now["steps"]), (&whole["run"], &whole["steps"]), "{now}");
        for key in ["loss", "validation_loss", "perplexity", "bubble_ratio"] {
            let [now, whole] = [&now, &whole].map(|of| of[key].as_f64().expect("a number"));
            assert!((now - whole).abs() <= 1e-12 * whole.abs(), "{key}: {now}, not {whole}"); // text of numbers rounds
        }
        assert!(now["seconds"].is_null() && now["advice"].is_null(), "{now}");
        for name in ["summary.json", "report.html"] {
            assert!(run.join(name).is_file(), "{name}");
        }
    }
}

/// Another process may ask for the model of a run that has none yet.
#[test]
fn a_run_without_a_checkpoint_says_why_it_has_no_model() {
    let folder = folder();
    let running = start(&line(&folder, "run", "--steps 1000000"));
    let run = folder.path().join("run");
    wait_for(|| run.join("metrics.jsonl").metadata().is_ok_and(|metrics| metrics.len() > 0));
    let generate = || chimera(&format!("generate --model {} --prompt a", run.display()));
    let early = generate();
    assert_eq!(early.code, Some(2), "{}", early.stderr);
    assert!(early.stderr.contains("it still trains, and has no finished "), "{}", early.stderr);
    signal(&running, "-KILL");
    running.wait();
    let late = generate();
    assert_eq!(late.code, Some(2), "{}", late.stderr);
    let wanted = "it ended before it had a finished checkpoint: train it with chimera train ";
    assert!(late.stderr.contains(wanted), "{}", late.stderr);
}

/// A run that is started again after its end still has the weights that it trained.
#[test]
fn a_run_of_a_program_that_is_done_has_its_weights() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let options = format!(
        "--depth 2 --tied --save-every 3 --data {} --out {} --resume auto --report false",
        data.display(),
        out.display()
    );
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let train = || {
        let told = std::sync::Arc::clone(&told);
        let tell = move |what: &str| told.lock().expect("one at a time").push(what.to_string());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut n_steps = 0;
        let trained = super::prepare(&options).train_in_folder(&stop, tell, |_| {
            n_steps += 1;
            Ok(())
        });
        (trained.expect("trained"), n_steps)
    };
    let sorted = |trained: chimera::run::Trained| {
        let mut weights: Vec<_> =
            trained.weights.into_iter().map(|(param, values)| (param.name, values)).collect();
        weights.sort_by(|a, b| a.0.cmp(&b.0));
        (weights, trained.n_steps, trained.checkpoint)
    };
    let (first, n_steps) = train();
    assert_eq!(n_steps, 6);
    let (again, n_steps) = train();
    assert_eq!(n_steps, 0);
    assert!(sorted(first) == sorted(again), "other weights than were trained");
    let told = told.lock().expect("one at a time").clone();
    assert_eq!(told, ["`report` has no effect: it is for the command `chimera train`"; 2]);
}

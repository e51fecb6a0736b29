//! Training without a flush after every step: on candle as on the reference device, and the reports
//! of such a run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chimera::candle::Candle;
use chimera::core::comm::Threads;
use chimera::core::device::reference::Reference;
use chimera::core::engine::{Job, Patience, Training, Worker, run_threads};
use chimera::core::ids::StageId;
use chimera::core::layers::Layers;
use chimera::core::lower::{Lowering, lower};
use chimera::core::model::{Architecture, DecoderStage, ModelConfig, cut};
use chimera::core::schedule::{Shape, find};
use chimera::core::stage::Data;

use serde_json::Value;

use super::equivalence::{Oracle, are_close};
use super::{MODEL, prepare, train};
use crate::command::{chimera, folder, text};

struct Counting;

impl Data for Counting {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let id = |i: u64| ((step * 5 + sample * 3 + i * i) % 11) as u32;
        input.extend((0..8).map(id));
        target.extend((1..9).map(id));
        Ok(())
    }

    fn n_targets(&self) -> usize {
        8
    }
}

/// Losses of six steps on a device, with two programs of three steps.
fn losses<K: Layers>(kernels: &K, schedule: &str, shape: Shape, width: usize) -> Vec<f64> {
    let config = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 4,
        hidden: 16,
        heads: 2,
        context: 8,
        vocab: 11,
        tied: false,
        llama: None,
        end_of_text: None,
    };
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let training = Training {
        seed: 3,
        steps: 6,
        lr: 1e-2,
        min_lr: 1e-3,
        warmup: 1,
        weight_decay: 0.1,
        clip: Some(1.0),
        check_finite: true,
        ..Training::default()
    };
    let stop = AtomicBool::new(false);
    let job = Job {
        program: &program,
        width,
        micro_batch_size: 2,
        training: &training,
        data: &Counting,
        patience: Patience::default(),
        stop: &stop,
        own_work: None,
        epoch: Instant::now(),
    };
    let cuts = cut(&config, config.context, shape.depth).expect("cut");
    let ran = run_threads((width * shape.depth) as u32, |comm: &mut Threads<_>| {
        let stage = |id: StageId| {
            let cut = cuts[id.index()].clone();
            Ok(DecoderStage::new(kernels.clone(), &config, 8, cut).expect("stage"))
        };
        let mut worker = Worker::new(job, kernels.clone(), comm, stage)?;
        let mut losses = worker.run(0)?;
        losses.extend(worker.run(3)?);
        Ok(losses.into_iter().map(|report| report.loss).collect::<Vec<_>>())
    });
    ran.expect("trains").remove(0)
}

/// Clones of candle's tensors share memory. A weight version that is still needed must not change.
#[test]
fn a_device_whose_clones_share_memory_keeps_versions_apart() {
    for schedule in ["pipedream", "pipedream-2bw"] {
        for (depth, n, width) in [(2, 2, 1), (4, 5, 1), (3, 3, 2)] {
            let shape = Shape { window: 3, ..Shape::new(depth, n) };
            let candle = losses(&Candle::cpu(), schedule, shape, width);
            let reference = losses(&Reference, schedule, shape, width);
            assert!(are_close(&candle, &reference), "{shape:?}: {candle:?} {reference:?}");
        }
    }
}

/// A flush after every update makes both synchronous. (Without a flush each stage clips
/// separately.)
#[test]
fn a_window_of_one_update_trains_as_one_worker() {
    let mut oracle = Oracle::new();
    for depth in [2, 4] {
        for width in [1, 2] {
            let options = |name| format!("--schedule {name} --depth {depth} --window 1");
            oracle.check(1, width, &options("pipedream"), "--clip 0");
            oracle.check(5, width, &options("pipedream-2bw"), "--clip 0");
        }
    }
}

/// The weights of 2BW are one step old, however deep the pipeline. The age of PipeDream's grows
/// with the depth.
#[test]
fn staleness_of_2bw_does_not_depend_on_the_depth() {
    let oracle = Oracle::new();
    let of = |schedule: &str, depth: usize| {
        let model = MODEL.replace("--steps 5", "--steps 8");
        let options = "--micro-batches 8 --window 3 --clip 0 --lr 0.02";
        oracle.losses(&format!("{model} {options} --schedule {schedule} --depth {depth}"))
    };
    let two = of("pipedream-2bw", 2);
    assert!(two.len() == 8 && two[7] < two[0], "nothing is learnt: {two:?}");
    assert!(are_close(&of("pipedream-2bw", 4), &two) && are_close(&of("pipedream-2bw", 8), &two));
    assert!(!are_close(&of("dapple", 2), &two));
    assert!(!are_close(&of("pipedream", 2), &of("pipedream", 4)));
}

#[test]
fn every_step_of_a_window_is_reported() {
    let folder = folder();
    let options = format!("{MODEL} --data {} --depth 2", text(&folder).display());
    for schedule in ["pipedream", "pipedream-2bw"] {
        let (reports, trained) =
            train(&format!("{options} --schedule {schedule} --window 3 --micro-batches 4"));
        let steps: Vec<_> = reports.iter().map(|r| (r.step, r.stop)).collect();
        assert_eq!(steps, (0..5).map(|step| (step, false)).collect::<Vec<_>>());
        assert_eq!(trained.last.as_ref(), reports.last());
        assert_eq!((trained.n_steps, reports.len()), (5, 5));
        assert!(reports.iter().all(|r| r.loss > 0.0 && r.grad_norm > 0.0 && r.lr > 0.0));
        assert_eq!((trained.drawn_step, trained.is_bordered), (Some(0), false));
        let cells = trained.timelines[0].events.len();
        assert!(trained.timelines.len() == 1 && cells >= 2 * 2 * 12, "one whole window of {cells}");
    }
}

#[test]
fn a_run_that_is_stopped_ends_with_its_window() {
    let folder = folder();
    let options = format!("{MODEL} --data {} --depth 2", text(&folder).display());
    let options = options.replace("--steps 5", "--steps 8");
    let run = prepare(&format!("{options} --schedule pipedream --window 3"));
    let (steps, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let observe = |report: &chimera::core::engine::StepReport| {
        stop.store(true, Ordering::Relaxed);
        steps.lock().expect("one writer").push((report.step, report.stop));
        Ok(())
    };
    let trained = run.train(&stop, observe).expect("trains");
    assert_eq!((trained.n_steps, trained.has_discarded), (6, false));
    let expected: Vec<_> = (0..6).map(|step| (step, step == 5)).collect();
    assert_eq!(steps.into_inner().expect("steps"), expected);
}

/// A window cannot be discarded, but one that has not begun can be skipped.
#[test]
fn no_window_is_begun_by_a_run_that_is_to_stop() {
    let folder = folder();
    let options = format!("{MODEL} --data {} --depth 2", text(&folder).display());
    for schedule in ["pipedream --window 3", "dapple --clip 0 --check-finite false", "dapple"] {
        let run = prepare(&format!("{options} --schedule {schedule}"));
        let trained = run.train(&AtomicBool::new(true), |_| Ok(())).expect("trains nothing");
        assert_eq!((trained.n_steps, trained.last), (0, None), "{schedule}");
    }
}

#[test]
fn the_command_learns_and_writes_a_line_per_step() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let model = MODEL.replace("--steps 5", "--steps 30");
    let ran = chimera(&format!(
        "train {model} --data {} --schedule pipedream-2bw --depth 2 --out {}",
        data.display(),
        out.display(),
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("pipedream-2bw, a flush every 4 steps"), "{}", ran.stdout);
    assert!(ran.stdout.contains("the last window of 4 steps as it ran"), "{}", ran.stdout);
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let lines: Vec<_> = metrics.lines().map(line).collect();
    assert!(lines.iter().map(|l| l["step"].as_u64()).eq((0..30).map(Some)));
    let loss = |at: usize| lines[at]["loss"].as_f64().expect("a loss");
    assert!(loss(29) < 0.8 * loss(0), "{} to {}", loss(0), loss(29));
}

#[test]
fn what_cannot_be_trained_says_what_can() {
    for (options, code, words) in [
        (
            "--schedule pipedream --tied",
            3,
            "choose an untied head (--tied false), or a synchronous",
        ),
        ("--schedule pipedream-2bw --depth 4 --micro-batches 3", 2, "nearest: 4 micro-batches"),
        ("--schedule pipedream --tied false --non-finite skip", 2, "choose a synchronous schedule"),
        ("--border free --tied true", 3, "choose an untied head (--tied false)"),
        ("--schedule pipedream --window 0", 2, "`window` is 0; it must be a whole number from 1"),
    ] {
        let ran = chimera(&format!("train {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{options}");
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
}

#[test]
fn its_optimizer_is_not_shared_out() {
    for options in ["--schedule pipedream", "--border free --clip 0"] {
        let ran = chimera(&format!("train {options} --tied false --shard-optimizer"));
        assert_eq!(ran.code, Some(2), "{options}");
        assert!(ran.stderr.contains("choose a synchronous schedule"), "{}", ran.stderr);
    }
}

/// Whole windows and a shorter one, and a run that continues from a checkpoint, with and without a
/// border.
#[test]
fn a_free_border_leaves_the_weights_as_they_are() {
    let folder = folder();
    let data = text(&folder);
    let weights = |name: &str, options: &str| {
        let out = folder.path().join(name);
        let ran = chimera(&format!(
            "train {MODEL} --data {} --depth 2 --tied false --lr-schedule constant --warmup 2 --out {} {options}",
            data.display(),
            out.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        std::fs::read(out.join("model/model.safetensors")).expect("weights")
    };
    // Gradients are clipped in no step, in most steps, or in all.
    for (schedule, name) in [
        ("zb-h2", "zb-h2"),
        ("zb-h2 --clip 1", "clipped"),
        ("chimera --width 2 --clip 0.01", "chimera"),
        ("1f1b --recompute full --split-backward true", "1f1b"),
    ] {
        let bound = weights(&format!("bound-{name}"), &format!("--schedule {schedule}"));
        let free = format!("--schedule {schedule} --border free --window 2");
        assert!(weights(&format!("free-{name}"), &free) == bound, "{schedule}");
        let first = format!("{free} --steps 3 --save-every 2 --resume auto");
        let rest = format!("--schedule {schedule} --save-every 2 --resume auto");
        weights(&format!("halves-{name}"), &first);
        assert!(weights(&format!("halves-{name}"), &rest) == bound, "{schedule}, resumed");
    }
}

/// Gradients are clipped in every step, so after the second wrong window in a row comes one with
/// borders.
#[test]
fn repeated_windows_are_counted_over_a_resume() {
    let folder = folder();
    let data = text(&folder);
    let run = |name: &str, options: &str| {
        let out = folder.path().join(name);
        let ran = chimera(&format!(
            "train {MODEL} --data {} --depth 2 --tied false --schedule zb-h2 --border free --window 2 --clip 0.001 \
             --lr-schedule constant --warmup 1 --save-every 4 --resume auto --out {} {options}",
            data.display(),
            out.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
        let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let repeated: Vec<_> = lines.map(|line| line["repeated"].as_u64().unwrap_or(0)).collect();
        (repeated, ran.stderr)
    };
    let (whole, _) = run("whole", "--steps 8");
    assert_eq!(whole, [1, 1, 2, 2, 2, 2, 3, 3], "the third window is trained with borders");
    run("halves", "--steps 4");
    let (halves, told) = run("halves", "--steps 8");
    assert_eq!(halves, whole);
    assert!(!told.contains("steps from 4 on") && told.contains("steps from 6 on"), "{told}");
    // A run with a border also continues the count.
    let (bordered, _) = run("halves", "--steps 9 --border step");
    assert_eq!(bordered.last(), Some(&3));
}

/// If all windows are trained again with borders, their steps are drawn and traced like any other.
#[test]
fn steps_with_a_border_are_drawn_and_traced() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let trace = folder.path().join("trace.json");
    let options = format!(
        "{MODEL} --data {} --depth 2 --tied false --schedule zb-h2 --border free --window 4 --clip 0.001",
        data.display()
    );
    let ran = chimera(&format!(
        "train {options} --steps 8 --out {} --trace {} --trace-steps 2..8",
        out.display(),
        trace.display()
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("the last step with a border as it ran"), "{}", ran.stdout);
    let steps = |path: &std::path::Path| {
        let trace = std::fs::read_to_string(path).expect("a trace");
        let trace: Value = serde_json::from_str(&trace).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events").clone();
        let name = |event: &Value| event["name"].as_str().expect("a name").to_string();
        let steps = events.iter().filter(|e| e["cat"] == "step" && e["pid"] == 0);
        steps.map(name).collect::<Vec<_>>()
    };
    assert_eq!(steps(&trace), (2..8).map(|step| format!("step {step}")).collect::<Vec<_>>());
    for name in ["measured.trace.json", "planned.trace.json"] {
        assert_eq!(steps(&out.join(name))[..1], ["step 7"], "{name}");
    }
    assert!(out.join("pipeline.svg").exists());
    let summary = std::fs::read_to_string(out.join("summary.json")).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(summary["bubble_by_cause"].is_object(), "{summary}");

    // A window without borders is preferred to those with borders.
    let (reports, trained) = train(&options);
    assert!(reports[..4].iter().all(|report| report.is_bordered));
    assert_eq!((trained.drawn_step, trained.is_bordered), (Some(3), true));
    assert_eq!(trained.timelines.len(), 4, "each step of the one whole window");
    let (_, trained) = train(&format!("{options} --clip 0"));
    assert_eq!((trained.drawn_step, trained.is_bordered), (Some(0), false));
}

/// `--non-finite skip` does the same with and without a border.
#[test]
fn steps_are_skipped_without_a_border() {
    let folder = folder();
    let data = text(&folder);
    let steps = |options: &str| {
        let out = folder.path().join(options.replace(' ', "-"));
        let ran = chimera(&format!(
            "train {MODEL} --data {} --schedule zb-h2 --depth 2 --tied false --lr 1e30 --clip 0 --steps 7 --non-finite skip \
             --out {} {options}",
            data.display(),
            out.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let text = std::fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let of = |line: &Value| (line["loss"].clone(), line["skipped"].clone());
        (lines.map(|line| of(&line)).collect::<Vec<_>>(), ran.stderr)
    };
    let ((bound, _), (free, told)) = (steps("--border step"), steps("--border free --window 3"));
    assert_eq!(free, bound);
    assert!(bound.iter().any(|(_, skipped)| skipped.as_u64() > Some(1)), "{bound:?}");
    assert!(told.contains("were trained again, one by one"), "{told}");
}

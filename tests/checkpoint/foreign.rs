//! A resumed run does not touch files that it did not write.

use std::fs::{
    copy, create_dir_all, read, read_dir, read_to_string, remove_dir_all, remove_file, write,
};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{Ran, chimera, folder, start, text};

const MODEL: &str = "--layers 2 --hidden 8 --heads 2 --context 8 --depth 1 --threads 1 \
                     --micro-batches 2 --micro-batch-size 1";

#[test]
fn files_of_others_are_left_as_they_are() {
    let folder = folder();
    let (data, place) = (text(&folder), folder.path());
    let train = |options: &str| -> Ran {
        chimera(&format!("train {MODEL} --data {} {options}", data.display()))
    };
    let at = |name: &str| place.join(name);
    let (own, other) = (at("own"), at("other"));
    let save = format!("--steps 4 --save-every 2 --out {}", own.display());
    assert_eq!(train(&save).code, Some(0));
    assert_eq!(train(&format!("--steps 3 --out {}", other.display())).code, Some(0));
    let contents = || ["config.toml", "metrics.jsonl"].map(|name| read(other.join(name)).ok());
    let before = contents();
    let checkpoint = own.join("checkpoints/step-00000004");
    let fork = format!("--steps 6 --resume {} --out {}", checkpoint.display(), other.display());
    let ran = train(&fork);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(contents(), before);
    let prose = at("prose.txt");
    write(&prose, "In the beginning\nwas the word\n").expect("a file");
    let on = format!("--steps 6 --out {} --resume auto", own.display());
    let before = read(&prose).expect("a file");
    assert_eq!(train(&format!("{on} --trace {}", prose.display())).code, Some(0));
    assert_eq!(read(at("prose.txt.1")).expect("a file"), before);
}

/// A run continues with metrics that it wrote itself.
#[test]
fn metrics_that_a_run_never_wrote_are_kept() {
    let folder = folder();
    let (data, metrics) = (text(&folder), folder.path().join("m.jsonl"));
    let kept = folder.path().join("m.jsonl.1");
    let train = |options: &str| {
        let (data, out) = (data.display(), folder.path().join("run"));
        let ran =
            chimera(&format!("train {MODEL} --data {data} --out {} {options}", out.display()));
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
        // As if the run was killed before its end: a finished run without checkpoints is not
        // trained again.
        remove_file(out.join("summary.json")).expect("a summary");
        remove_dir_all(out.join("model")).expect("a model");
    };
    let n_lines = || read_to_string(&metrics).expect("metrics").lines().count();
    let named = format!("--resume auto --metrics {}", metrics.display());
    // Without any checkpoint to go on from, and with one.
    for (before, on, n_steps) in [
        ("--steps 3", "--steps 3", 3),
        ("--steps 4 --save-every 2 --resume auto", "--steps 6 --save-every 2", 2),
    ] {
        train(before);
        let others = "{\"step\":0,\"loss\":1.0}\n{\"step\":9,\"loss\":1.0}\n";
        write(&metrics, others).expect("a file");
        train(&format!("{on} {named}"));
        assert_eq!((read_to_string(&kept).expect("a file").as_str(), n_lines()), (others, n_steps));
        remove_file(&kept).expect("a file");
    }
    train(&format!("--steps 8 {named}"));
    assert_eq!((n_lines(), kept.exists()), (4, false));
}

#[test]
fn a_resume_that_is_refused_changes_nothing() {
    let folder = folder();
    let (data, own) = (text(&folder), folder.path().join("own"));
    let line = format!("train {MODEL} --data {} --out {}", data.display(), own.display());
    assert_eq!(chimera(&format!("{line} --steps 4 --save-every 2")).code, Some(0));
    // Two steps of the metrics are then later than the newest checkpoint.
    remove_dir_all(own.join("checkpoints/step-00000004")).expect("a checkpoint");
    let contents = || ["config.toml", "metrics.jsonl"].map(|name| read(own.join(name)).ok());
    let before = contents();
    let (trace, events) = (folder.path().join("t.json"), folder.path().join("events"));
    let others = format!("--trace {} --tensorboard {}", trace.display(), events.display());
    for refused in ["--trace none/t.json".into(), format!("{others} --metrics none/m.jsonl")] {
        let ran = chimera(&format!("{line} --steps 6 --resume auto --lr 0.5 {refused}"));
        assert_eq!(ran.code, Some(2), "{refused}: {}", ran.stderr);
        assert!(contents() == before, "{refused}");
        let n_events = read_dir(&events).map_or(0, Iterator::count);
        assert_eq!((trace.exists(), n_events), (false, 0), "{refused}");
    }
}

#[test]
fn a_model_gives_way_to_the_run_that_saved_it_alone() {
    let folder = folder();
    let data = text(&folder);
    let at = |name: &str| folder.path().join(name);
    let (precious, weights) = (at("precious"), |dir: &Path| read(dir.join("model.safetensors")));
    let train = |run: &str, options: &str, save: &str| -> Ran {
        let (data, run, save) = (data.display(), at(run), at(save));
        let places = format!("--data {data} --out {} --save {}", run.display(), save.display());
        chimera(&format!("train {MODEL} {places} {options}"))
    };
    assert_eq!(train("own", "--steps 4 --save-every 2", "precious").code, Some(0));
    assert_eq!(train("other", "--steps 3 --save-every 3", "elsewhere").code, Some(0));
    let before = weights(&precious).expect("weights");
    for (run, options) in [
        ("new", "--steps 3 --seed 7 --resume auto"),
        ("other", "--steps 3 --resume auto"),
        ("other", "--steps 6 --resume auto"),
        ("other", "--steps 6 --resume auto"), // nor after it was refused
    ] {
        let ran = train(run, options, "precious");
        assert_eq!(ran.code, Some(2), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains("precious holds a model already"), "{}", ran.stderr);
        assert!(weights(&precious).expect("weights") == before, "{options}");
    }
    assert_eq!(train("own", "--steps 6 --save-every 2 --resume auto", "precious").code, Some(0));
    assert!(weights(&precious).expect("weights") != before);
    // A folder's steps of another run do not matter to this run.
    create_dir_all(at("steps")).expect("a folder");
    write(at("steps/steps"), "6\n").expect("a file");
    assert_eq!(train("own", "--steps 6 --resume auto", "steps").code, Some(0));
    assert!(weights(&at("steps")).is_ok());
}

#[test]
fn a_model_in_the_folder_of_a_new_run_is_not_replaced() {
    let folder = folder();
    let data = text(&folder);
    let [first, run] = ["first", "run"].map(|name| folder.path().join(name));
    let train = |out: &Path, options: &str| -> Ran {
        let (data, out) = (data.display(), out.display());
        chimera(&format!("train {MODEL} --data {data} --out {out} {options}"))
    };
    assert_eq!(train(&first, "--steps 1").code, Some(0));
    let model = run.join("model");
    create_dir_all(&model).expect("a folder");
    for name in ["config.json", "model.safetensors", "steps"] {
        copy(first.join("model").join(name), model.join(name)).expect("copied");
    }
    let weights = || read(model.join("model.safetensors")).expect("weights");
    let before = weights();
    let refused = |options: &str| {
        let ran = train(&run, &format!("--init {} {options}", model.display()));
        assert_eq!(ran.code, Some(2), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains("name another folder with --save"), "{}", ran.stderr);
        assert!(weights() == before, "{options}");
    };
    for options in ["--steps 2", "--steps 2 --resume auto"] {
        refused(options);
        assert_eq!(read_dir(&run).map_or(0, Iterator::count), 1, "{options}");
    }
    // A run that was asked to leave the model alone leaves it alone for good.
    remove_file(model.join("steps")).expect("a file");
    let apart = format!("--init {} --no-save --steps 2 --save-every 2", model.display());
    assert_eq!(train(&run, &apart).code, Some(0));
    for options in ["--steps 2 --resume auto", "--steps 4 --resume auto"] {
        refused(options);
    }
}

#[test]
fn a_run_goes_on_from_the_bare_name_of_its_checkpoint() {
    let folder = folder();
    let (data, own) = (text(&folder), folder.path().join("own"));
    let line = format!("train {MODEL} --data {}", data.display());
    let first = chimera(&format!("{line} --out {} --steps 4 --save-every 2", own.display()));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let line = format!("{line} --out .. --steps 6 --resume step-00000004");
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
    let on = command.args(line.split_whitespace()).current_dir(own.join("checkpoints")).output();
    let on = on.expect("runs");
    assert!(on.status.success(), "{}", String::from_utf8_lossy(&on.stderr));
    let metrics = read_to_string(own.join("metrics.jsonl")).expect("metrics");
    assert_eq!(metrics.lines().count(), 6);
}

#[test]
fn a_trace_stays_when_its_steps_are_over() {
    let folder = folder();
    let (data, trace) = (text(&folder), folder.path().join("trace.json"));
    let train = |steps: u32| {
        let out = folder.path().join("run");
        let ran = chimera(&format!(
            "train {MODEL} --data {} --out {} --save-every 2 --resume auto --trace {} \
             --trace-steps 1..3 --steps {steps}",
            data.display(),
            out.display(),
            trace.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        read(&trace).expect("a trace")
    };
    let written = train(4);
    assert!(written.len() > 1000);
    assert_eq!(train(6), written);
}

#[test]
fn outputs_do_not_replace_the_files_of_the_run() {
    let folder = folder();
    let (data, own) = (text(&folder), folder.path().join("own"));
    let line = format!("train {MODEL} --data {} --out {}", data.display(), own.display());
    let first = chimera(&format!("{line} --steps 2 --save-every 2"));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let contents = || ["config.toml", "metrics.jsonl"].map(|name| read(own.join(name)).ok());
    let before = contents();
    for (option, place) in [
        ("metrics", "config.toml"),
        ("trace", "./checkpoints/../config.toml"),
        ("metrics", "lock"),
        ("trace", "error.0.json"),
        ("trace", "checkpoints/trace.json"),
        ("log", "checkpoints"),
        ("tensorboard", "checkpoints/events"),
        ("save", "checkpoints/step-00000002"),
        ("save", "checkpoints/step-00000009"),
    ] {
        let place = own.join(place);
        // If no step is left, only weights are written.
        let steps = if option == "save" { &["--steps 2", "--steps 4"][..] } else { &["--steps 4"] };
        for more in steps {
            let output = format!("{more} --resume auto --{option} {}", place.display());
            let ran = chimera(&format!("{line} {output}"));
            assert_eq!(ran.code, Some(2), "{output}: {}", ran.stderr);
            let told = "the run keeps its own files there";
            assert!(ran.stderr.contains(told), "{output}: {}", ran.stderr);
            assert!(contents() == before, "{output}");
        }
    }
    let names = own.join("checkpoints").read_dir().expect("a folder");
    assert_eq!(names.count(), 1);
    let ran = chimera(&format!("{line} --steps 4 --resume auto --trace ./both --metrics both"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("name two files"), "{}", ran.stderr);
}

/// Neither model beside a run is taken for the model that the run trained.
#[test]
fn a_model_beside_a_run_does_not_hide_it() {
    let folder = folder();
    let data = text(&folder);
    let [own, early, late] = ["own", "early", "late"].map(|name| folder.path().join(name));
    let line = format!("train {MODEL} --data {} --out {}", data.display(), own.display());
    assert_eq!(chimera(&format!("{line} --steps 2 --save-every 2")).code, Some(0));
    let export = |to: &Path| chimera(&format!("export {} --out {}", own.display(), to.display()));
    assert_eq!(export(&early).code, Some(0));
    for name in ["config.json", "model.safetensors"] {
        copy(early.join(name), own.join(name)).expect("copied");
    }
    let on = chimera(&format!("{line} --steps 4 --save-every 2 --resume auto"));
    assert_eq!(on.code, Some(0), "{}", on.stderr);
    let ran = export(&late);
    assert_eq!(ran.stderr, format!("model: {}\n", own.join("model").display()));
    let weights = |dir: &Path| read(dir.join("model.safetensors")).expect("weights");
    assert!(weights(&late) == weights(&own.join("model")) && weights(&late) != weights(&early));
    for to in [own.clone(), own.join("checkpoints/step-00000004")] {
        let ran = export(&to);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        let told = format!("{} is the folder of a run or a checkpoint", to.display());
        assert!(ran.stderr.contains(&told), "{}", ran.stderr);
    }
}

#[test]
fn an_interrupted_first_save_hides_no_older_run() {
    let folder = folder();
    let data = text(&folder);
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        let ran = command.args(line.split_whitespace()).current_dir(folder.path()).output();
        let ran = ran.expect("runs");
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{line}: {told}");
        told
    };
    run(&format!("train {MODEL} --data {} --steps 1", data.display()));
    create_dir_all(folder.path().join("runs/0002/checkpoints/step-00000003")).expect("a folder");
    assert!(run("export --out exported").contains("model: runs/0001/model"));
}

/// Two runs share a file of settings, which names the metrics.
#[test]
fn metrics_of_another_run_are_neither_cut_nor_torn() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let data = text(&folder);
    let settings = at("base.toml");
    let metrics = at("m.jsonl");
    write(&settings, format!("metrics = '{}'\nsave-every = 2\n", metrics.display()))
        .expect("a file");
    let line = |run: &str, options: &str| {
        let (settings, data, out) = (settings.display(), data.display(), at(run));
        format!("train {MODEL} --config {settings} --data {data} --out {} {options}", out.display())
    };
    let train = |run: &str, options: &str| -> Ran {
        let ran = chimera(&line(run, options));
        assert_eq!(ran.code, Some(0), "{run} {options}: {}", ran.stderr);
        ran
    };
    train("a", "--steps 4");
    train("b", "--steps 8");
    let of_b = read(&metrics).expect("metrics");
    let ran = train("a", "--steps 6 --resume auto");
    assert!(ran.stderr.contains("m.jsonl held the metrics of the run in "), "{}", ran.stderr);
    assert!(ran.stderr.contains("it begins anew at step 4"), "{}", ran.stderr);
    assert!(
        read(at("m.jsonl.2")).expect("kept") == of_b,
        "the metrics of another run were changed"
    );
    let n_lines = || read_to_string(&metrics).expect("metrics").lines().count();
    assert_eq!(n_lines(), 2);
    train("a", "--steps 8 --resume auto");
    assert_eq!((n_lines(), at("m.jsonl.3").exists()), (4, false), "its own it goes on with");
    let running = start(&line("b", "--steps 1000000 --resume auto"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let of_b = format!("{}\"", at("b").canonicalize().expect("a folder").display());
    let writer = || read_to_string(at("m.jsonl.written-by.json")).unwrap_or_default();
    while !writer().contains(&of_b) {
        assert!(Instant::now() < deadline, "it never trains");
        sleep(Duration::from_millis(2));
    }
    let beside = chimera(&line("a", "--steps 10 --resume auto"));
    assert_eq!(beside.code, Some(2), "{}", beside.stderr);
    assert!(beside.stderr.contains("writes there, and it is at work"), "{}", beside.stderr);
    let status = Command::new("kill").arg(running.child.id().to_string()).status();
    assert!(status.is_ok_and(|status| status.success()));
    assert_eq!(running.wait().code, Some(75));
}

/// An output may replace neither a run's own files, some of which it writes at its end, nor its
/// inputs.
#[test]
fn outputs_do_not_take_the_place_of_other_files() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let settings = folder.path().join("run.toml");
    write(&settings, "steps = 2\n").expect("a file");
    let before = read(&data).expect("a file");
    let refused = |output: &str, reason: &str| {
        let (settings, data, run) = (settings.display(), data.display(), out.display());
        let line = format!("train {MODEL} --config {settings} --data {data} --out {run} {output}");
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(2), "{output}: {}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{output}: {}", ran.stderr);
    };
    for output in [
        "metrics RUN/summary.json",
        "trace RUN/model",
        "trace RUN/model/t.json",
        "trace RUN/measured.trace.json",
        "log RUN/summary.json",
        "save RUN/summary.json",
        "tensorboard RUN/rejoin",
    ] {
        let output = output.replace("RUN", &out.display().to_string());
        refused(&format!("--{output}"), "the run keeps its own files there");
    }
    for option in ["metrics", "trace", "save", "log"] {
        refused(&format!("--{option} {}", data.display()), "the run reads that (data)");
    }
    refused(&format!("--trace {}", settings.display()), "the run reads that (config)");
    refused(&format!("--metrics {}.json", data.display()), "the run reads that (data)");
    assert!(read(&data).expect("a file") == before);
    assert_eq!(read_to_string(&settings).expect("a file"), "steps = 2\n");
}

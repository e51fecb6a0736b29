//! Impossible trainings are refused before anything is written, with a setting that would work.

use std::fs::{File, create_dir, read_dir, write};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::command::{Ran, chimera, folder, text};

/// Checks that options are refused as wrong usage with a message that contains `hint`, before the
/// run's folder is created.
fn refuse(options: &str, hint: &str) {
    let folder = folder();
    let out = folder.path().join("run");
    let ran = chimera(&format!("train --steps 1 --out {} {options}", out.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
    assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    assert!(!out.exists(), "{options}");
}

/// If nobody reads the message, the exit code still shows the class of the error.
#[test]
fn an_error_that_nobody_reads_keeps_its_exit_code() {
    for (line, code) in [("simulate nothing", 2), ("schedule check none.json", 3)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        command.args(line.split(' ')).stdout(Stdio::null()).stderr(writer);
        assert_eq!(command.status().expect("starts").code(), Some(code), "{line}");
    }
}

fn file(folder: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = folder.path().join(name);
    write(&path, bytes).expect("a file");
    path.display().to_string()
}

#[test]
fn shapes_that_no_schedule_has() {
    refuse("--depth 3", "nearest: depth 2 or 4");
    refuse("--depth 8 --layers 8 --pipes 6", "nearest: 2, 4, 8 pipes");
    refuse("--pipes 3", "nearest: ");
    refuse("--depth 0", "`depth` is 0; it must be a whole number from 1");
    refuse("--micro-batches 0", "`micro-batches` is 0; it must be a whole number from 1");
    refuse("--micro-batches -4", "`micro-batches` is -4;");
    refuse("--width 0", "`width` is 0;");
    refuse("--schedule chimaera", "`schedule` is \"chimaera\": did you mean `chimera`?");
    refuse("--schedule zbv", "did you mean `zb-v`?");
    refuse("--schedule nothing", "it must be one of gpipe, 1f1b,");
    refuse("--scaling tripling", "it must be one of auto, direct, doubling, halving");
    refuse("--scaling halving --micro-batch-size 3", "choose an even one");
    for subcommand in ["simulate chimera", "schedule show chimera"] {
        for (options, hint) in [
            ("--depth 3", "nearest: depth 2 or 4"),
            ("--depth 8 --pipes 6", "nearest: 2, 4, 8 pipes"),
            ("--micro-batches 0", "at least one micro-batch"),
            ("--micro-batches -1", "`-1` is not a whole number from 1 to 8388608"),
            ("--micro-batches nan", "`nan` is not a whole number from 1 to 8388608"),
            ("--depth -1", "`-1` is not a whole number from 1 to 8192"),
            ("--in-turn 5000000000", "`5000000000` is not a whole number from 1 to 4294967295"),
            ("--depth 1000000000", "depth 1000000000"),
            ("--micro-batches 4294967295", "are more than"),
            ("--forward -1", "from 0"),
            ("--message nan", "from 0"),
        ] {
            let ran = chimera(&format!("{subcommand} {options}"));
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
            assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
        }
    }
    for (line, hint) in [
        ("dualpipe --depth 5 --micro-batches 10", "nearest: depth 4 or 6"),
        ("dualpipe --micro-batches 7", "nearest: 8 micro-batches"),
        ("dualpipe --micro-batches 9", "nearest: 8 or 10 micro-batches"),
        ("dualpipe-v --micro-batches 7", "nearest: 8 micro-batches"),
        ("dualpipe-v --depth 8192 --micro-batches 20000", "are more than"),
        (
            "gpipe --depth 4096 --micro-batches 16384",
            "134217728 ops are more than 16777216: they would take about 50 GiB of memory rather than 6",
        ),
        ("gpipe --depth 8193", "nearest: depth 8192"),
        ("gpipe --micro-batches 4294967295", "nearest: at most 2097152 micro-batches"),
        ("zb-v --depth 1024 --micro-batches 2000", "nearest: at most 1024 micro-batches"),
        ("pipedream --window 0", "nearest: a window of 1"),
        ("pipedream --window 4294967295", "nearest: a window of 524288"),
        ("1f1b --in-turn 0", "nearest: 1 in turn"),
    ] {
        let ran = chimera(&format!("simulate {line}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(ran.stderr.contains(hint), "{line}: {}", ran.stderr);
    }
    for (line, hint) in [
        ("simulate chimer", "unknown schedule `chimer`: did you mean `chimera`?"),
        ("schedule show 1fb1", "unknown schedule `1fb1`: did you mean `1f1b`?"),
        ("schedule compare gpipe 1fb1", "unknown schedule `1fb1`: did you mean `1f1b`?"),
        (
            "simulate nothing",
            "choose one of gpipe, 1f1b, dapple, seq1f1b, gems, chimera, interleaved, Interleaved1F1B, zb-h1",
        ),
    ] {
        let unknown = chimera(line);
        assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(unknown.stderr.contains(hint), "{line}: {}", unknown.stderr);
    }
}

#[test]
fn models_that_cannot_be_built_or_cut() {
    refuse("--hidden 10 --heads 3", "choose heads from 1, 2, 5, 10");
    refuse("--layers 2 --depth 4", "choose at least 4 layers, or fewer stages");
    refuse("--hoist 3", "hoist 3 moves recomputations: choose recompute full or selective too");
    refuse("--preset huge", "it must be one of tiny,");
    refuse("--vocab 0", "`vocab` is 0;");
    refuse("--lr -0.1", "`lr` is -0.1;");
    refuse("--lr nan", "`lr` is nan;");
    refuse("--layers 10000 --hidden 100000 --heads 1", "iB are free: choose ");
}

#[test]
fn devices_and_options_that_are_not_there() {
    refuse("--device tpu9", "unknown device `tpu9`: choose cpu, cuda");
    refuse("--device cpu,cpu --depth 4", "2 devices for 4 worker(s)");
    #[cfg(not(feature = "cuda"))]
    refuse("--device cuda:1", "not in this build: install chimera with `--features cuda`");
    #[cfg(not(feature = "wgpu"))]
    refuse("--device wgpu", "not in this build: install chimera with `--features wgpu`");
    refuse("--scheduel gems", "'--schedule'");
    refuse("--depth four", "--depth");
    let nothing = chimera("");
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.stderr.contains("train"), "{}", nothing.stderr);
}

#[test]
fn empty_paths_are_no_paths() {
    for option in ["log", "tensorboard", "out", "metrics", "trace", "data", "save", "resume"] {
        refuse(&format!("--{option} \"\""), "it must be a text that is not empty");
    }
    for option in ["log", "tensorboard", "metrics", "trace", "save"] {
        refuse(&format!("--{option} -"), "name a file or folder, not standard input or output");
    }
}

#[test]
fn negative_numbers_are_refused_for_what_they_are() {
    let whole = "`-1` is not a whole number from 0";
    for (line, hint) in [
        ("generate --prompt a --tokens -1", whole),
        ("generate --prompt a --seed -1", whole),
        ("generate --prompt a --top-p -1", "it must be a number above 0 and up to 1"),
        ("eval --data x --stride -1", whole),
        (
            "plan --ranks 4 --batch 4 --memory 1GiB --flops 1e9 --top -1",
            "`-1` is not a whole number from 1 to",
        ),
        (
            "plan --ranks 4 --batch 4 --memory -1GiB --flops 1e9",
            "`-1GiB` is not a whole number of bytes",
        ),
        ("slurm run.toml --nodes -1", "`-1` is not a whole number from 1 to"),
        ("simulate chimera --lost -1", "`-1` is not a rank: ranks are numbered from 0"),
        ("simulate chimera --lost -1,2", "`-1` is not a rank: ranks are numbered from 0"),
        ("simulate chimera --speeds -1,1", "-1 is not from 0.001 to 1000"),
        ("selftest --time -1", "--time -1 is not in 0..=1e6"),
        ("profile --threads -1,2", "`-1` is not a whole number from 1 to 1024"),
        ("profile --micro-batch-size -1", "`-1` is not a whole number from 1 to 1048576"),
        ("comm bench --ranks -1", "`-1` is not a whole number from 2 to 256"),
        ("train --data-weights -1,2", "`data-weights` is \"-1,2\": -1 is not above 0"),
        ("train --speeds -1,2", "`speeds` is \"-1,2\"; it must be speeds from 0.001"),
        // Text may begin like an option.
        ("generate --model none --prompt \"- item\"", "none: there is no such folder"),
        ("generate --model none --prompt a --stop ---", "none: there is no such folder"),
    ] {
        let ran = chimera(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{line}: {}", ran.stderr);
    }
}

#[test]
fn data_that_cannot_be_trained_on() {
    let folder = folder();
    refuse("--data /nonexistent/text", "/nonexistent/text: No such file");
    refuse(&format!("--data {}", folder.path().display()), "is not a regular file: name each file");
    refuse(&format!("--data {}", file(&folder, "empty", b"")), "empty is empty");
    let short = file(&folder, "short", &[b'a'; 33]);
    refuse(&format!("--context 16 --data {short}"), "sequence 16 needs at least 34");
    let good = text(&folder);
    refuse(&format!("--data {} {}", good.display(), file(&folder, "none", b"")), "none is empty");
    let short = file(&folder, "shorter", &[b'a'; 27]);
    refuse(&format!("--model bert --context 16 --data {short}"), "sequence 16 needs at least 28");
    refuse(&format!("--vocab 100 --data {}", good.display()), "choose vocab 120 or more");
}

#[test]
fn token_ids_beyond_the_vocabulary_are_named_with_their_position() {
    let folder = folder();
    let mut ids = vec![7u16; 1000];
    (ids[321], ids[700]) = (300, 400);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let narrow = file(&folder, "ids.bin", &bytes);
    let hint = "ids.bin: token 321 has id 300, but the vocabulary has 256 ids: choose vocab 401";
    refuse(&format!("--data {narrow}"), hint);
    let hint = "token 321 has id 300, but of 260 ids a BERT keeps the last 4 for [PAD], [CLS], [SEP] and [MASK]: \
                choose vocab 405";
    refuse(&format!("--model bert --data {narrow}"), hint);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| (u32::from(*id) << 16).to_le_bytes()).collect();
    let wide = file(&folder, "ids.u32.bin", &bytes);
    refuse(&format!("--data {wide}"), "token 0 has id 458752");
    let torn = file(&folder, "torn.bin", &[0; 999]);
    refuse(&format!("--data {torn}"), "999 bytes, not a multiple of the 2");
}

/// Trains for a moment.
fn train(folder: &TempDir, out: &Path, more: &str) -> Ran {
    let model = "--layers 2 --depth 2 --hidden 4 --heads 1 --context 4 --steps 1";
    let (data, out) = (text(folder), out.display());
    chimera(&format!("train {model} --data {} --out {out} {more}", data.display()))
}

/// Only options of the command line cause warnings: a file may serve several schedules.
#[test]
fn options_without_effect_are_warned_of() {
    let folder = folder();
    let settings = file(&folder, "run.toml", b"schedule = '1f1b'\nwaves = 3");
    let out = folder.path().join("run");
    let ran = train(&folder, &out, &format!("--config {settings} --pipes 4 --in-turn 1"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    let wanted =
        "warning: `pipes` has no effect: 1f1b does not read it, chimera and auto on mirrored do";
    assert_eq!(told, [wanted]);
    let unread = "--rank-memory 2 --optimizer sgd --beta1 0.5 --lr-schedule constant --decay-steps 3 --kfac-every 2 \
        --warmup 2 --trace-steps 0..1 --trace-kernels";
    let ran = train(&folder, &folder.path().join("other"), unread);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    for (told, wanted) in told.iter().zip([
        "`rank-memory` has no effect: it is for recompute auto",
        "`decay-steps` has no effect: it is for learning rates that fall",
        "`beta1` has no effect: it is for optimizer adamw",
        "`kfac-every` has no effect: it is for optimizer kfac",
        "`trace-steps` has no effect: it is for runs with trace",
        "`trace-kernels` has no effect: it is for runs with trace",
        "`warmup` 2 does not end within the 1 steps of the training",
    ]) {
        assert!(told.contains(wanted), "{told}");
    }
    assert_eq!(told.len(), 7, "{told:?}");
}

#[test]
fn metrics_and_trace_have_files_of_their_own() {
    let folder = folder();
    let file = folder.path().join("both");
    let places = format!("--metrics {0} --trace {0} --trace-steps 0..1", file.display());
    let refused = train(&folder, &folder.path().join("run"), &places);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("name two files"), "{}", refused.stderr);
    assert!(!file.exists());
}

#[test]
fn a_folder_holds_one_run() {
    let folder = folder();
    let out = folder.path().join("run");
    let metrics = folder.path().join("metrics");
    let elsewhere = format!("--metrics {}", metrics.display());
    assert_eq!(train(&folder, &out, &elsewhere).code, Some(0));
    let read = || (std::fs::read(out.join("config.toml")).ok(), std::fs::read(&metrics).ok());
    let before = read();
    assert!(before.0.is_some() && before.1.is_some());
    for more in ["", "--metrics new"] {
        let again = train(&folder, &out, more);
        assert_eq!((again.code, again.stdout.as_str()), (Some(2), ""), "{more}");
        let hint = "another run? choose another --out: ";
        assert!(again.stderr.contains(hint), "{}", again.stderr);
    }
    assert!(read() == before, "the first run is overwritten");
    assert_eq!(train(&folder, &folder.path().join("other"), "").code, Some(0));
}

#[test]
fn metrics_and_traces_that_exist_are_kept() {
    let folder = folder();
    let (metrics, trace) = (folder.path().join("x.jsonl"), folder.path().join("t.json"));
    let places =
        format!("--metrics {} --trace {} --trace-steps 0..1", metrics.display(), trace.display());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    std::fs::write(&metrics, "mine").expect("a file");
    std::fs::write(folder.path().join("t.json.1"), "also mine").expect("a file");
    std::fs::write(&trace, "mine").expect("a file");
    let first = train(&folder, &folder.path().join("first"), &places);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let told = format!("warning: {0} existed and is kept as {0}.1", metrics.display());
    assert!(first.stderr.contains(&told), "{}", first.stderr);
    let kept = ["x.jsonl.1", "t.json.1", "t.json.2"].map(read);
    assert_eq!(kept, ["mine", "also mine", "mine"]);
    let before = read("x.jsonl");
    assert!(before.starts_with("{\"step\":0,") && read("t.json").contains("traceEvents"));
    assert_eq!(train(&folder, &folder.path().join("second"), &places).code, Some(0));
    assert_eq!((read("x.jsonl.2"), read("t.json.3").len() > 100), (before, true));
    let dir = folder.path().join("dir");
    create_dir(&dir).expect("a folder");
    let refused = train(
        &folder,
        &folder.path().join("third"),
        &format!("--trace {} --trace-steps 0..1", dir.display()),
    );
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot write") && dir.is_dir(), "{}", refused.stderr);
}

#[test]
fn a_start_that_is_refused_puts_back_what_it_renamed() {
    let folder = folder();
    let [metrics, trace] = ["x.jsonl", "t.json"].map(|name| folder.path().join(name));
    write(&metrics, "mine").expect("a file");
    write(&trace, "mine").expect("a file");
    for (metrics, trace) in
        [(metrics.clone(), "none/t.json".into()), ("none/x.jsonl".into(), trace.clone())]
    {
        let places = format!(
            "--metrics {} --trace {} --trace-steps 0..1",
            metrics.display(),
            trace.display()
        );
        let refused = train(&folder, &folder.path().join("run"), &places);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(!refused.stderr.contains("is kept as"), "{}", refused.stderr);
    }
    for file in [&metrics, &trace] {
        assert_eq!(std::fs::read_to_string(file).expect("a file"), "mine");
    }
    let names = read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("one").path());
    assert_eq!(names.filter(|path| path.extension().is_some_and(|end| end == "1")).count(), 0);
}

#[test]
fn places_that_cannot_be_written_to() {
    let folder = folder();
    let (file, dir) = (folder.path().join("file"), folder.path().join("dir"));
    File::create(&file).expect("a file");
    create_dir(&dir).expect("a folder");
    let out = folder.path().join("run");
    for (out, more, hint) in [
        (&file, String::new(), "cannot make folder"),
        (&out, format!("--metrics {}", dir.display()), "cannot write"),
        (&out, format!("--metrics {}/x", file.display()), "cannot write"),
        (&out, format!("--save {}", file.display()), "cannot save into"),
        (&out, format!("--save {}/x", file.display()), "cannot save into"),
    ] {
        let refused = train(&folder, out, &more);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{more}");
        assert!(refused.stderr.contains(hint), "{}", refused.stderr);
        assert_eq!(read_dir(out).map_or(0, Iterator::count), 0, "{more}");
    }
    assert_eq!(train(&folder, &out, "").code, Some(0));
}

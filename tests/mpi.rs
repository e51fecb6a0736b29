//! Training by ranks that `mpirun` starts: the same bits as by threads, and an end with a cause when something
//! breaks. `cargo xtask mpi` runs it; `MPIRUN` names the launcher.
#![cfg(unix)]

mod command;

use std::collections::BTreeMap;
use std::fs::{read, read_dir, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use command::{Ran, Running, chimera, folder, start_with, text};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 \
                     --steps 5 --threads 1";

/// The options of a run into the folder `name`.
fn options(folder: &TempDir, name: &str, options: &str) -> String {
    let (data, out) = (text(folder), folder.path().join(name));
    format!("train {MODEL} --data {} --out {} {options}", data.display(), out.display())
}

/// Starts `n` ranks with the words of `line`.
fn start_ranks(n: usize, line: &str) -> Running {
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command.args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_chimera")]).envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ]);
    start_with(command, line)
}

fn ranks(n: usize, line: &str) -> Ran {
    start_ranks(n, line).wait()
}

/// What the steps of a run came to, without times: the text of every number is that of its bits.
fn losses(run: &Path) -> Vec<(u64, String, String)> {
    let text = read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let numbers = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a whole line");
        let number = |key: &str| line[key].to_string();
        (line["step"].as_u64().expect("a step"), number("loss"), number("grad_norm"))
    };
    text.lines().map(numbers).collect()
}

/// The error files of a run, by rank.
fn errors(run: &Path) -> BTreeMap<u64, Value> {
    let files = read_dir(run).expect("a folder").map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("error."))
    };
    let parse = |path: PathBuf| {
        let text = read_to_string(path).expect("an error file");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        (error["rank"].as_u64().expect("a rank"), error)
    };
    files.filter(named).map(parse).collect()
}

#[test]
fn ranks_train_as_threads_do_to_the_bit() {
    let folder = folder();
    for (nth, shape) in [
        "--schedule dapple --depth 2",
        "--schedule dapple --depth 2 --width 2",
        "--schedule chimera --depth 2 --width 2 --tied",
        "--schedule chimera --depth 2 --width 2 --shard-optimizer --check-replicas 2",
        "--schedule chimera --depth 4 --pipes 2 --eval-every 2",
        "--schedule chimera --depth 4 --pipes 4",
        "--schedule chimera --depth 4 --pipes 4 --width 2",
        "--schedule auto --depth 2 --search-time 1",
        "--schedule pipedream-2bw --depth 2 --window 2",
    ]
    .into_iter()
    .enumerate()
    {
        let n = if shape.contains("depth 4") { 4 } else { 2 };
        let n = if shape.contains("width 2") { 2 * n } else { n };
        let run = |name: &str, transport: &str| {
            let out = folder.path().join(format!("{name}{nth}"));
            let save = out.join("weights");
            let more = format!("{shape} --transport {transport} --save {}", save.display());
            let line = options(&folder, &format!("{name}{nth}"), &more);
            let ran = if name == "mpi" { ranks(n, &line) } else { chimera(&line) };
            assert_eq!(ran.code, Some(0), "{shape}: {}", ran.stderr);
            (losses(&out), read(save.join("model.safetensors")).expect("weights"), ran.stdout)
        };
        let (alone, together) = (run("threads", "threads"), run("mpi", "auto"));
        assert_eq!((alone.0.len(), &together.0), (5, &alone.0), "{shape}");
        assert!(together.1 == alone.1, "{shape}: other weights");
        let who = format!("{n} ranks over MPI (");
        assert!(together.2.starts_with(&who), "{shape}: {}", together.2);
        assert_eq!(together.2.matches("step     0").count(), 1, "one rank prints");
    }
}

/// Ranks that share an adapter train as threads on it do, to the bit, and as the CPU does, and so do ranks of which
/// some compute on the CPU.
#[cfg(feature = "wgpu")]
#[test]
fn ranks_train_on_adapters() {
    let folder = folder();
    let run = |name: &str, n: usize, more: &str| {
        let line = options(&folder, name, more);
        let ran = if n > 1 { ranks(n, &line) } else { chimera(&line) };
        assert_eq!(ran.code, Some(0), "{more}: {}", ran.stderr);
        losses(&folder.path().join(name))
    };
    let number = |text: &String| text.parse::<f64>().expect("a number");
    for schedule in ["zb-h1", "chimera"] {
        let shape = format!("--schedule {schedule} --depth 4 --check-replicas 1");
        let on = |device: &str| format!("{shape} --device {device}");
        let cpu = run(&format!("{schedule}-cpu"), 1, &on("cpu"));
        let threads = run(&format!("{schedule}-threads"), 1, &on("wgpu"));
        let ranks = run(&format!("{schedule}-ranks"), 4, &on("wgpu"));
        let mixed = run(&format!("{schedule}-mixed"), 4, &on("cpu,wgpu,wgpu,cpu"));
        assert_eq!((ranks.len(), &ranks), (5, &threads), "{schedule}");
        for gpu in [&ranks, &mixed] {
            for (cpu, gpu) in cpu.iter().zip(gpu) {
                assert!((number(&cpu.1) - number(&gpu.1)).abs() < 1e-4, "{cpu:?} {gpu:?}");
            }
        }
    }
    let unlike = "--schedule chimera --depth 4 --device cpu,cpu,wgpu,wgpu";
    let refused = ranks(4, &options(&folder, "unlike", unlike));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let told = "stage 0 has replicas on worker 0 (cpu) and worker 3 (wgpu (";
    assert_eq!(refused.stderr.matches(told).count(), 1, "{}", refused.stderr);
}

/// A training that is stopped and goes on under other ranks, and then in threads, is one training.
#[test]
fn checkpoints_go_from_ranks_to_ranks() {
    let folder = folder();
    let line = |name: &str, steps: u64, more: &str| {
        let all = "--warmup 1 --lr-schedule constant --save-every 2 --resume auto";
        options(&folder, name, &format!("{all} {more}"))
            .replace("--steps 5", &format!("--steps {steps}"))
    };
    let whole = chimera(&line("whole", 6, "--depth 2 --transport threads"));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let first = ranks(2, &line("parts", 2, "--depth 2"));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stdout.contains("checkpoint: "), "{}", first.stdout);
    let second = ranks(2, &line("parts", 4, "--depth 2"));
    assert!(second.stdout.contains("step 2 is next"), "{} {}", second.stdout, second.stderr);
    let third = chimera(&line("parts", 6, "--depth 2 --transport threads"));
    assert!(third.stdout.contains("step 4 is next"), "{} {}", third.stdout, third.stderr);
    let expected = losses(&folder.path().join("whole"));
    assert_eq!(expected.len(), 6);
    assert_eq!(losses(&folder.path().join("parts")), expected);
    // Another number of workers for the same samples of a step.
    let fourth = ranks(4, &line("parts", 8, "--depth 2 --width 2 --micro-batches 4"));
    assert_eq!(fourth.code, Some(0), "{}", fourth.stderr);
    assert_eq!(losses(&folder.path().join("parts")).len(), 8);
}

/// Ranks that cannot train together say why, once, and write nothing.
#[test]
fn what_does_not_fit_is_refused() {
    let folder = folder();
    let out = folder.path().join("run");
    for (n, more, code, told) in [
        (
            4,
            "--depth 3",
            2,
            "there are 4 ranks, but width 1 x depth 3 needs 3: start as many, or choose --width 1 \
             --depth 4, or --width 2 --depth 2, or --width 4 --depth 1",
        ),
        (2, "--depth 2 --min-lr 9", 2, "min-lr 9 is above lr"),
        (2, "--depth 2 --resume nowhere", 4, "there is no such folder"),
    ] {
        let ran = ranks(n, &options(&folder, "run", more));
        assert_eq!((ran.code, ran.stdout.contains("step")), (Some(code), false), "{}", ran.stderr);
        assert_eq!(ran.stderr.matches(told).count(), 1, "{}", ran.stderr);
        assert!(!out.join("config.toml").exists());
    }
    let one = chimera(&options(&folder, "run", "--depth 2 --transport mpi"));
    assert_eq!(one.code, Some(2));
    assert!(one.stderr.contains("there are 1 ranks"), "{}", one.stderr);
}

/// The pid of a rank of the run that writes into `out`.
fn pid_of(rank: usize, out: &Path) -> u32 {
    let is_rank = |pid: &u32| {
        let of = |name: &str| read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let said =
            |bytes: Vec<u8>, what: &str| bytes.split(|b| *b == 0).any(|w| w == what.as_bytes());
        let ranks = [format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")];
        let environment = of("environ");
        said(of("cmdline"), &out.display().to_string())
            && ranks.iter().any(|name| said(environment.clone(), name))
    };
    let all = read_dir("/proc").expect("processes").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_rank).expect("a rank")
}

/// A rank that is killed at any moment takes the others with it: each says which it was, and nobody hangs.
#[test]
fn a_killed_rank_is_named_by_all_others() {
    let is_mpich = std::env::var("MPIRUN").is_ok_and(|launcher| launcher.contains("mpiexec"));
    if is_mpich {
        return; // its launcher kills the others before they can say anything
    }
    for (victim, n_steps) in [(0usize, 3), (1, 2), (3, 7)] {
        let folder = folder();
        let out = folder.path().join("run");
        let line = options(&folder, "run", "--depth 4").replace("--steps 5", "--steps 1000000");
        let running = start_ranks(4, &line);
        let deadline = Instant::now() + Duration::from_secs(60);
        let n_lines =
            || read_to_string(out.join("metrics.jsonl")).unwrap_or_default().lines().count();
        while n_lines() < n_steps {
            assert!(Instant::now() < deadline, "it never trains");
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = pid_of(victim, &out);
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().is_ok());
        let killed = Instant::now();
        let ran = running.wait();
        assert_ne!(ran.code, Some(0));
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        let errors = errors(&out);
        let survivors: Vec<u64> = (0..4).filter(|rank| *rank != victim as u64).collect();
        assert_eq!(errors.keys().copied().collect::<Vec<_>>(), survivors, "{}", ran.stderr);
        for error in errors.values() {
            assert_eq!((&error["code"], &error["peer"]), (&5.into(), &victim.into()), "{error}");
        }
        assert!(
            ran.stderr.contains(&format!("rank {victim} ended before it sent")),
            "{}",
            ran.stderr
        );
    }
}

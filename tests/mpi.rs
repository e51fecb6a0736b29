//! Training by ranks that `mpirun` starts: the same bits as by threads, and an end with a cause when something
//! breaks. `cargo xtask mpi` runs it; `MPIRUN` names the launcher.
#![cfg(unix)]

mod command;

use std::collections::BTreeMap;
use std::fs::{create_dir, create_dir_all, read, read_dir, read_link, read_to_string, write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use chimera::core::lower::{Instr, Lowering, Sync, lower};
use chimera::core::schedule::{Shape, find};
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

/// The launcher, which starts `n` ranks.
fn launcher(n: usize) -> Command {
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command.args(["-n", &n.to_string()]).envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ]);
    command
}

const CHIMERA: &str = env!("CARGO_BIN_EXE_chimera");

/// Starts `n` ranks with the words of `line`.
fn start_ranks(n: usize, line: &str) -> Running {
    let mut command = launcher(n);
    command.arg(CHIMERA);
    start_with(command, line)
}

/// The launcher of MPICH kills the others before they can say anything.
fn is_mpich() -> bool {
    std::env::var("MPIRUN").is_ok_and(|launcher| launcher.contains("mpiexec"))
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

/// MPI adds in an order of its own, the same for all replicas.
#[test]
fn sums_of_mpi_differ_by_rounding_and_never_between_replicas() {
    let folder = folder();
    for (nth, shape) in ["--schedule chimera --depth 2 --width 2 --tied", "--depth 4 --pipes 4"]
        .into_iter()
        .enumerate()
    {
        let run = |name: &str, more: &str| {
            let name = format!("{name}{nth}");
            let ran =
                ranks(4, &options(&folder, &name, &format!("{shape} --check-replicas 1 {more}")));
            assert_eq!(ran.code, Some(0), "{shape}: {}", ran.stderr);
            losses(&folder.path().join(name))
        };
        let (own, theirs) = (run("own", ""), run("theirs", "--mpi-allreduce"));
        assert_eq!((own.len(), theirs.len()), (5, 5), "{shape}");
        // Of two parts the sum is the same in any order, of four it tells who has added.
        assert!(!shape.contains("--pipes 4") || own != theirs, "{shape}: core's sums");
        for ((_, own, _), (_, theirs, _)) in own.iter().zip(&theirs) {
            let [own, theirs] = [own, theirs].map(|loss| loss.parse::<f64>().expect("a number"));
            assert!((own - theirs).abs() < 1e-5 * own, "{shape}: {own} and {theirs}");
        }
    }
    let refused = chimera(&options(&folder, "alone", "--transport threads --mpi-allreduce"));
    assert!(refused.stderr.contains("start ranks with mpirun"), "{}", refused.stderr);
    let refused =
        ranks(2, &options(&folder, "both", "--depth 2 --mpi-allreduce --shard-optimizer"));
    assert!(refused.stderr.contains("choose one of them"), "{}", refused.stderr);
}

/// A training that is stopped and goes on under other ranks, and then in threads, is one training.
#[test]
fn checkpoints_go_from_ranks_to_ranks() {
    let folder = folder();
    let line = |name: &str, steps: u64, more: &str| {
        let all = "--warmup 1 --lr-schedule constant --save-every 2 --keep 9 --resume auto";
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
    // Whichever rank finds a damaged file, all take the checkpoint before.
    for (nth, step) in [(0, 6), (1, 4)] {
        let newest = folder.path().join(format!("parts/checkpoints/step-{:08}", step + 2));
        let shard = newest.join(format!("shard-{nth:04}.safetensors"));
        let mut bytes = read(&shard).expect("a shard");
        *bytes.last_mut().expect("values") ^= 1;
        write(&shard, bytes).expect("written");
        let fifth = ranks(2, &line("parts", step, "--depth 2"));
        assert_eq!(fifth.code, Some(0), "{}", fifth.stderr);
        assert_eq!(fifth.stderr.matches("its content is not").count(), 1, "{}", fifth.stderr);
        assert!(fifth.stdout.contains(&format!("step {step} is next")), "{}", fifth.stdout);
    }
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
        let is_chimera =
            read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(CHIMERA));
        is_chimera
            && said(of("cmdline"), &out.display().to_string())
            && ranks.iter().any(|name| said(environment.clone(), name))
    };
    let all = read_dir("/proc").expect("processes").flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_rank).expect("a rank")
}

/// Waits until so many steps are trained.
fn wait_for_steps(out: &Path, n_steps: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let n_lines = || read_to_string(out.join("metrics.jsonl")).unwrap_or_default().lines().count();
    while n_lines() < n_steps {
        assert!(Instant::now() < deadline, "it never trains");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// A rank that is killed at any moment takes the others with it: each says which it was, and nobody hangs.
#[test]
fn a_killed_rank_is_named_by_all_others() {
    if is_mpich() {
        return;
    }
    for (victim, n_steps) in [(0usize, 3), (1, 2), (3, 7)] {
        let folder = folder();
        let out = folder.path().join("run");
        let line = options(&folder, "run", "--depth 4").replace("--steps 5", "--steps 1000000");
        let running = start_ranks(4, &line);
        wait_for_steps(&out, n_steps);
        signal("-KILL", pid_of(victim, &out));
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

/// Index of the first instruction of a rank that is of this kind.
fn index(rank: usize, is_it: fn(&Instr) -> bool) -> usize {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    let how = Lowering { sync: Sync::EagerOpt, barrier: true, ..Lowering::default() };
    let program = lower(&timetable, &how).expect("proven");
    program.rows()[rank].iter().position(is_it).expect("an instruction")
}

/// One point of each kind of `cargo xtask kill-sweep`, which strikes all.
#[test]
fn a_struck_rank_is_named_and_the_run_goes_on() {
    if is_mpich() {
        return;
    }
    let sends = |rank| format!("sent 3.{} 0", index(rank, |i| matches!(i, Instr::Send(..))));
    let sums = |rank| format!("sent 3.{} 0", index(rank, |i| matches!(i, Instr::Reduce(_))));
    let agrees = |rank| format!("exchange 3.{} 0", index(rank, |i| *i == Instr::Agree));
    let steps = |rank| format!("at 3.{}", index(rank, |i| matches!(i, Instr::Step(_))));
    let folder = folder();
    let line = |name: &str| {
        let all = "--depth 4 --micro-batches 4 --save-every 2 --resume auto --timeout 3";
        options(&folder, name, all)
            .replace("--steps 5", "--steps 6")
            .replace("--hidden 16", "--hidden 32")
    };
    assert_eq!(ranks(4, &line("whole")).code, Some(0));
    let expected = losses(&folder.path().join("whole"));
    for (nth, (rank, signal, point)) in [
        (1, "KILL", sends(1)),
        (2, "KILL", sums(2)),
        (3, "KILL", agrees(3)),
        (0, "KILL", steps(0)),
        (2, "KILL", "disk 5".into()),
        (1, "KILL", "leave".into()),
        (2, "STOP", sends(2)),
        (0, "STOP", "disk 12".into()),
    ]
    .into_iter()
    .enumerate()
    {
        let (name, case) = (format!("struck{nth}"), format!("rank {rank} {signal} {point}"));
        let (out, file) = (folder.path().join(&name), folder.path().join(format!("at{nth}")));
        let mut command = launcher(4);
        let strike = format!("{rank} {signal} {point} {}", file.display());
        command.arg(CHIMERA).env("CHIMERA_STRIKE", strike);
        let ran = start_with(command, &line(&name)).wait();
        assert!(file.exists() && ran.code != Some(0), "{case}: {:?} {}", ran.code, ran.stderr);
        let mut errors = errors(&out);
        if signal == "STOP" {
            errors.remove(&(rank as u64)); // the launcher wakes it up to end it, and it may say so too
        }
        let survivors: Vec<u64> = (0..4).filter(|other| *other != rank as u64).collect();
        assert_eq!(errors.keys().copied().collect::<Vec<_>>(), survivors, "{case}: {}", ran.stderr);
        let code = if signal == "KILL" { 5 } else { 6 };
        for error in errors.values() {
            assert_eq!(
                (&error["code"], &error["peer"]),
                (&code.into(), &rank.into()),
                "{case}: {error}"
            );
        }
        let again = ranks(4, &line(&name));
        assert_eq!(again.code, Some(0), "{case}: {}", again.stderr);
        assert_eq!(losses(&out), expected, "{case}");
    }
}

/// Starts ranks that leave their exit codes in `codes`, which a launcher makes one of.
fn start_with_codes(n: usize, line: &str, codes: &Path) -> Running {
    let mut command = launcher(n);
    // A trap for which the command is not interrupted, and which it does not inherit.
    let script = "trap : TERM INT; \"$@\"; echo $? > \"$CODES/$OMPI_COMM_WORLD_RANK$PMI_RANK\"";
    command.args(["sh", "-c", script, "sh", CHIMERA]).env("CODES", codes);
    start_with(command, line)
}

/// By rank.
fn exit_codes(codes: &Path, n: usize) -> Vec<Option<i32>> {
    let code = |rank: usize| read_to_string(codes.join(rank.to_string())).ok()?.trim().parse().ok();
    (0..n).map(code).collect()
}

/// What SLURM and a user do.
#[test]
fn a_signal_to_all_ranks_saves_and_ends_all_with_75() {
    let folder = folder();
    let (out, codes) = (folder.path().join("run"), folder.path().join("codes"));
    create_dir(&codes).expect("a folder");
    let line = |name: &str, steps: usize| {
        let all = "--depth 2 --resume auto --lr-schedule constant --warmup 1";
        options(&folder, name, all).replace("--steps 5", &format!("--steps {steps}"))
    };
    let running = start_with_codes(2, &line("run", 1_000_000), &codes);
    wait_for_steps(&out, 3);
    for rank in 0..2 {
        signal("-TERM", pid_of(rank, &out));
    }
    let ran = running.wait();
    assert_eq!(exit_codes(&codes, 2), [Some(75), Some(75)], "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("stopped on request").count(), 1, "{}", ran.stderr);
    assert!(errors(&out).is_empty());
    let n_steps = losses(&out).len();
    let saved: Vec<_> = read_dir(out.join("checkpoints")).expect("a folder").flatten().collect();
    assert_eq!(saved.len(), 1);
    assert!(saved[0].path().ends_with(format!("step-{n_steps:08}")), "{saved:?}");
    assert_eq!(ranks(2, &line("run", n_steps + 3)).code, Some(0));
    assert_eq!(ranks(2, &line("whole", n_steps + 3)).code, Some(0));
    assert_eq!(losses(&out), losses(&folder.path().join("whole")));
}

/// A lead that fails when all is trained does not leave the others with success.
#[test]
fn what_fails_at_the_end_fails_on_all_ranks() {
    let folder = folder();
    let (out, codes) = (folder.path().join("run"), folder.path().join("codes"));
    create_dir(&codes).expect("a folder");
    let save = folder.path().join("weights");
    create_dir_all(save.join("model.safetensors/taken")).expect("a folder");
    let line = options(&folder, "run", &format!("--depth 2 --save {}", save.display()));
    let ran = start_with_codes(2, &line, &codes).wait();
    assert_eq!(exit_codes(&codes, 2), [Some(9), Some(9)], "{}", ran.stderr);
    let errors = errors(&out);
    assert_eq!(errors.len(), 2, "{}", ran.stderr);
    assert!(errors.values().all(|error| error["class"] == "io"), "{errors:?}");
    assert_eq!(ran.stderr.matches("cannot write").count(), 1, "{}", ran.stderr);
}

/// Settings are compared before a rank does anything by them.
#[test]
fn ranks_with_other_settings_say_which() {
    let folder = folder();
    let all = options(&folder, "run", "--depth 2");
    let others = ["--schedule auto --search-time 1", "--lr 0.5", "--seed 2"];
    let expected = [
        "schedule: rank 0 = \"chimera\", rank 1 = \"auto\"",
        "lr: rank 0 = ",
        "seed: rank 0 = 1, rank 1 = 2",
    ];
    for (other, told) in others.into_iter().zip(expected) {
        for swapped in [false, true] {
            let own = format!("{all} {other}");
            let (first, second) = if swapped { (&own, &all) } else { (&all, &own) };
            let ran = ranks(1, &format!("{first} : -n 1 {CHIMERA} {second}"));
            assert_eq!(ran.code, Some(10), "{other}: {}", ran.stderr);
            let told = if swapped { told.split(':').next().unwrap_or_default() } else { told };
            assert!(ran.stderr.contains(told), "{other}: {}", ran.stderr);
            assert_eq!(
                ran.stderr.matches("the ranks are not of one run").count(),
                1,
                "{}",
                ran.stderr
            );
        }
    }
}

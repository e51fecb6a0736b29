//! The ends of jobs: refused, stopped, or by a fault of one rank.

use std::fs::{create_dir, create_dir_all, read_dir, read_to_string, write};
use std::path::Path;
use std::process::Command;

use crate::command::{Running, chimera, folder, start_with};
use crate::{CHIMERA, errors, launcher, losses, options, pid_of, ranks, signal, wait_for_steps};

/// Ranks that cannot train together report why, once, and write nothing.
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

/// Starts ranks that leave their exit codes in `codes`, since a launcher returns only one.
fn start_with_codes(n: usize, line: &str, codes: &Path) -> Running {
    start_with(with_codes(n, codes), line)
}

/// A launcher command whose ranks leave their exit codes in `codes`.
fn with_codes(n: usize, codes: &Path) -> Command {
    let mut command = launcher(n);
    // The trap keeps the shell from being interrupted, and the command does not inherit it.
    let script = "trap : TERM INT; \"$@\"; echo $? > \"$CODES/$OMPI_COMM_WORLD_RANK$PMI_RANK\"";
    command.args(["sh", "-c", script, "sh", CHIMERA]).env("CODES", codes);
    command
}

/// The exit codes by rank.
fn exit_codes(codes: &Path, n: usize) -> Vec<Option<i32>> {
    let code = |rank: usize| read_to_string(codes.join(rank.to_string())).ok()?.trim().parse().ok();
    (0..n).map(code).collect()
}

/// SLURM and users send a signal to all ranks.
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
    for told in ["stopping: the step under way is discarded", "stopped on request"] {
        assert_eq!(ran.stderr.matches(told).count(), 1, "{}", ran.stderr);
    }
    assert!(errors(&out).is_empty());
    let n_steps = losses(&out).len();
    let saved: Vec<_> = read_dir(out.join("checkpoints")).expect("a folder").flatten().collect();
    assert_eq!(saved.len(), 1);
    assert!(saved[0].path().ends_with(format!("step-{n_steps:08}")), "{saved:?}");
    assert_eq!(ranks(2, &line("run", n_steps + 3)).code, Some(0));
    assert_eq!(ranks(2, &line("whole", n_steps + 3)).code, Some(0));
    assert_eq!(losses(&out), losses(&folder.path().join("whole")));
}

/// A rank that is stopped within a step stops all others: the step is discarded, and a resume is
/// exact.
#[test]
fn a_signal_to_one_rank_discards_the_step_on_all() {
    for (n, told, schedule) in [
        (2, 1, "1f1b --depth 2 --micro-batches 300"),
        (2, 0, "zb-h1 --depth 2 --micro-batches 300"),
        (4, 3, "chimera --depth 2 --width 2 --shard-optimizer --micro-batches 100"),
    ] {
        let folder = folder();
        let (out, codes) = (folder.path().join("run"), folder.path().join("codes"));
        create_dir(&codes).expect("a folder");
        let line = |name: &str, steps: usize| {
            let all = format!("--schedule {schedule} --resume auto --warmup 1000000");
            options(&folder, name, &all).replace("--steps 5", &format!("--steps {steps}"))
        };
        let mut command = with_codes(n, &codes);
        let struck = format!("{told} TERM at 2.40 {}", folder.path().join("struck").display());
        command.env("CHIMERA_STRIKE", struck);
        let ran = start_with(command, &line("run", 1_000_000)).wait();
        assert_eq!(exit_codes(&codes, n), vec![Some(75); n], "{schedule}: {}", ran.stderr);
        let n_steps = losses(&out).len();
        let stopped =
            format!("after step {}; step {n_steps} was under way and is discarded", n_steps - 1);
        assert_eq!(ran.stderr.matches(&stopped).count(), 1, "{schedule}: {}", ran.stderr);
        assert!(errors(&out).is_empty());
        let saved: Vec<_> =
            read_dir(out.join("checkpoints")).expect("a folder").flatten().collect();
        assert_eq!(saved.len(), 1);
        assert!(saved[0].path().ends_with(format!("step-{n_steps:08}")), "{saved:?}");
        for name in ["run", "whole"] {
            let ran = ranks(n, &line(name, n_steps + 1));
            assert_eq!(ran.code, Some(0), "{schedule}: {}", ran.stderr);
        }
        assert_eq!(losses(&out), losses(&folder.path().join("whole")), "{schedule}");
    }
}

/// An all-reduce of MPI cannot be cancelled, so the step is finished.
#[test]
fn a_signal_among_sums_of_mpi_finishes_the_step() {
    let folder = folder();
    let (out, codes) = (folder.path().join("run"), folder.path().join("codes"));
    create_dir(&codes).expect("a folder");
    let all = "--schedule chimera --depth 2 --mpi-allreduce --micro-batches 200";
    let line = options(&folder, "run", all).replace("--steps 5", "--steps 1000000");
    let mut command = with_codes(2, &codes);
    let struck = format!("0 TERM at 2.40 {}", folder.path().join("struck").display());
    command.env("CHIMERA_STRIKE", struck);
    let ran = start_with(command, &line).wait();
    assert_eq!(exit_codes(&codes, 2), [Some(75), Some(75)], "{}", ran.stderr);
    assert!(ran.stderr.contains("stopping at the end of step "), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("MPI's all-reduce has to be finished by all ranks"),
        "{}",
        ran.stderr
    );
    let stopped = format!("stopped on request after step {}; resume with", losses(&out).len() - 1);
    assert!(ran.stderr.contains(&stopped), "{}", ran.stderr);
}

/// If rank 0 fails after the training, the other ranks do not end with success.
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

/// Ranks that do not understand a rank with another command name it.
#[test]
fn a_rank_with_another_command_is_named() {
    let folder = folder();
    let line = options(&folder, "run", "--depth 2");
    let ran = ranks(1, &format!("{line} : -n 1 {CHIMERA} comm bench"));
    assert_eq!(ran.code, Some(10), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 1 sent something unreadable"), "{}", ran.stderr);
}

/// Settings are compared before a rank acts on them.
#[test]
fn ranks_with_other_settings_say_which() {
    let folder = folder();
    let all = options(&folder, "run", "--depth 2");
    let other_text = folder.path().join("other.txt");
    write(&other_text, "Another text, of which some tokens are others. ".repeat(200))
        .expect("written");
    let data = format!("--data {}", other_text.display());
    let others = ["--schedule auto --search-time 1", "--lr 0.5", "--seed 2", &data];
    let expected = [
        "schedule: rank 0 = \"chimera\", rank 1 = \"auto\"",
        "lr: rank 0 = ",
        "seed: rank 0 = 1, rank 1 = 2",
        "data: rank 0 = ",
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

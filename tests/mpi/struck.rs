//! A rank that is lost.

use std::time::{Duration, Instant};

use chimera::core::lower::{Lowering, Sync, lower};
use chimera::core::program::Instr;
use chimera::core::schedule::{Shape, find};

use crate::command::{folder, start_with};
use crate::{
    CHIMERA, errors, launcher, losses, options, pid_of, ranks, signal, start_ranks,
    survivors_speak, wait_for_steps,
};

/// A rank that is killed at any moment ends the others: each reports which rank it was, and none
/// hangs.
#[test]
fn a_killed_rank_is_named_by_all_others() {
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
        let told = format!("rank {victim} ended before it sent");
        if survivors_speak() {
            assert_eq!(errors.keys().copied().collect::<Vec<_>>(), survivors, "{}", ran.stderr);
            assert!(ran.stderr.contains(&told), "{}", ran.stderr);
        }
        for error in errors.values() {
            assert_eq!((&error["code"], &error["peer"]), (&5.into(), &victim.into()), "{error}");
        }
    }
}

/// Index of a rank's first instruction of this kind.
fn index(rank: usize, is_it: fn(&Instr) -> bool) -> usize {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    let how = Lowering { sync: Sync::EagerOpt, barrier: true, ..Lowering::default() };
    let program = lower(&timetable, &how).expect("proven");
    program.rows()[rank].iter().position(is_it).expect("an instruction")
}

/// Some of the points of `cargo xtask kill-sweep`, which tests all.
#[test]
fn a_struck_rank_is_named_and_the_run_goes_on() {
    let sends = |rank| format!("sent 3.{} 0", index(rank, |i| matches!(i, Instr::Send(..))));
    let sums = |rank| format!("sent 3.{} 0", index(rank, |i| matches!(i, Instr::Reduce(_))));
    let agrees = |rank| format!("gather 3.{} 1", index(rank, |i| *i == Instr::Agree));
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
        (2, "PANIC", steps(2)),
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
        let ran = start_with(command, &line(&name)).end();
        assert!(file.exists() && ran.code != Some(0), "{case}: {:?} {}", ran.code, ran.stderr);
        let mut errors = errors(&out);
        if signal != "KILL" {
            errors.remove(&(rank as u64)); // the launcher wakes it to end it, so it may report too
        }
        let survivors: Vec<u64> = (0..4).filter(|other| *other != rank as u64).collect();
        let speakers: Vec<_> = errors.keys().copied().collect();
        assert!(!survivors_speak() || speakers == survivors, "{case}: {speakers:?} {}", ran.stderr);
        let code =
            [("KILL", 5), ("STOP", 6), ("PANIC", 101)].iter().find(|(name, _)| *name == signal);
        let code = code.map(|(_, code)| *code);
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

//! Trainings that are killed and stopped at random moments, and resume as if they had not been.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use xtask::measure::figures;

use super::Attempt;
use super::files::TINY;
use super::process::{Flaw, Under, must, words};

const STEPS: u64 = 24;
/// Factor on the time that other commands may take: every step is saved, at the lowest priority.
const PATIENCE: u32 = 12;
/// Milliseconds within which a signal comes.
const SOON: usize = 900;

/// Interrupts one training up to five times. It must end with the numbers of an uninterrupted one.
pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&["text"], &attempt.folder)?;
    let schedule = attempt.random.of(&["chimera", "1f1b", "zb-h1", "gpipe"]);
    let every = 1 + attempt.random.below(5);
    let line = |out: &str| {
        let run = format!(
            "--data text --schedule {schedule} --steps {STEPS} --save-every {every} --out {out}"
        );
        words(&format!("train {TINY} {run} --resume auto"))
    };
    let under = Under::default();
    attempt.limits.patience *= PATIENCE;
    attempt.run(&line("whole"))?;
    for _ in 0..1 + attempt.random.below(5) {
        let signal = attempt.random.of(&["KILL", "KILL", "TERM", "INT", "STOP"]);
        let wait = Duration::from_millis(attempt.random.below(SOON) as u64);
        attempt.n_commands += 1;
        let child = attempt.limits.start(&line("broken"), &under, &attempt.folder)?;
        sleep(wait);
        let send = |signal: &str| {
            Command::new("kill").args(["-s", signal, &child.id().to_string()]).output()
        };
        send(signal)?;
        if signal == "STOP" {
            sleep(Duration::from_millis(100));
            send("CONT")?;
        }
        let outcome = attempt.limits.end(child, &attempt.folder)?;
        // Before its handlers exist, a signal ends a process in the default way.
        if !outcome.was_killed() {
            outcome.check(&under).with_context(|| format!("after {signal}"))?;
        }
    }
    let ended = attempt.run(&line("broken"))?;
    must(ended.is_success(), Flaw::Lost, "it cannot go on")?;
    let numbers = |run| figures(&attempt.folder.join(run), ["step", "loss", "grad_norm", "lr"]);
    let (whole, broken) = (numbers("whole")?, numbers("broken")?);
    let is_same = whole.len() as u64 == STEPS && whole == broken;
    let (n_whole, n_broken) = (whole.len(), broken.len());
    must(is_same, Flaw::Lost, format!("the numbers differ: {n_whole} steps, {n_broken}"))
}

//! Commands under system limits: on processes, memory, open files and file sizes.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::Result;

use super::Attempt;
use super::failing::{disturbed, n_trainings};
use super::files::{ALL, TINY, open_to_all};
use super::process::{Under, words};

/// Commands of all kinds. None uses wgpu, whose drivers take any amount of address space.
const COMMANDS: [&str; 14] = [
    "generate --model model --tokens 3 --prompt ab",
    "eval --model model --data text",
    "export model --out ex",
    "prepare text --tokenizer tokenizer.json --out x.bin",
    "plan --ranks 2 --batch 8 --memory 1GiB --flops 1e10 --search-time 1 --data text --layers 4 --hidden 16 --heads 2 --context 16",
    "schedule show auto --search-time 0.2",
    "schedule compare 1f1b chimera",
    "schedule export chimera --format svg --out x.svg",
    "simulate chimera --trace x.json",
    "report run --out x.html",
    "top --once run",
    "checkpoint verify run/checkpoints/step-00000004",
    "checkpoint export run/checkpoints/step-00000004 --out x.safetensors",
    "config show",
];
const OF_TRAINING: &str = "--save-every 1 --eval-every 1";
const OF_OFFLOADING: &str = "--schedule gpipe --offload auto --memory-cap 2";
/// The first user id for cases. A limit on processes counts all processes of a user, and does not
/// hold for root.
const FIRST_USER: u64 = 61_000;
const N_USERS: u64 = 1_000;

pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    let under = draw(attempt)?;
    if attempt.random.once_in(3) {
        let number = attempt.random.below(n_trainings());
        return disturbed(attempt, number, &under);
    }
    attempt.fixtures.copy(&ALL, &attempt.folder)?;
    open_to_all(&attempt.folder)?;
    let mut commands = COMMANDS.map(String::from).to_vec();
    for options in [OF_TRAINING, OF_OFFLOADING] {
        commands.push(format!("train {TINY} --data text --steps 2 --out r {options}"));
    }
    let command = attempt.random.of(&commands);
    attempt.run_under(&words(&command), &under)?;
    Ok(())
}

/// Draws a limit.
fn draw(attempt: &mut Attempt<'_>) -> Result<Under> {
    let user = FIRST_USER + attempt.number % N_USERS;
    let is_root = fs::metadata(&attempt.folder)?.uid() == 0;
    let random = &mut attempt.random;
    // Without memory an allocation ends the process by SIGABRT.
    let (limit, codes, is_mute) = match random.below(if is_root { 4 } else { 3 }) {
        0 => (format!("--as={}", (48 + random.below(600)) << 20), &[134][..], false),
        1 => (format!("--nofile={}", 4 + random.below(40)), &[][..], false),
        2 => (format!("--fsize={}", random.below(60_000)), &[][..], true),
        _ => (format!("--nproc={}", 1 + random.below(16)), &[][..], false),
    };
    let as_user = format!("setpriv --reuid {user} --regid {user} --clear-groups");
    let mut starter = if is_root { words(&as_user) } else { Vec::new() };
    starter.extend(["prlimit".into(), limit]);
    Ok(Under { starter, codes, is_mute, ..Under::default() })
}

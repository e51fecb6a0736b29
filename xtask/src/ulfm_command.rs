//! Deaths that a run of the command survives over Open MPI 5: `cargo xtask mpi --ulfm`.

use std::fs::{self, read_to_string};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::read;
use crate::kill_sweep::named_points;

/// Four ranks of Chimera, of which each stage has two replicas.
const OPTIONS: &str = "train --depth 4 --micro-batches 4 --layers 4 --hidden 32 --heads 2 --context 64 \
     --micro-batch-size 2 --threads 1 --steps 6 --save-every 2 --resume auto --survive respawn";
/// Every so manyth point of the kill sweep is struck.
const EVERY: usize = 12;
/// Two ranks that hold different stages, struck at once.
const PAIRS: [(usize, usize); 4] = [(0, 1), (1, 3), (2, 0), (3, 2)];

/// Strikes ranks of runs that `launch` starts by their arguments: each run must end well, with the losses and weights of
/// the undisturbed one.
pub(crate) fn run(launch: impl Fn() -> Command) -> Result<()> {
    let data = TempDir::new()?;
    let text: String =
        (0..2000u32).map(|i| format!("{} ", i.wrapping_mul(2654435761) >> 20)).collect();
    let file = data.path().join("text");
    fs::write(&file, text)?;
    let train = |strike: &str| -> Result<TempDir> {
        let folder = TempDir::new()?;
        let strike = strike.replace("FILE", &folder.path().join("struck").display().to_string());
        let mut command = launch();
        command.args(OPTIONS.split_whitespace()).arg("--data").arg(&file);
        command.arg("--out").arg(folder.path().join("run")).env("CHIMERA_STRIKE", strike);
        read(&mut command)?;
        Ok(folder)
    };
    let undisturbed = train("")?;
    let (mut n_struck, mut n_missed) = (0, 0);
    let single = named_points()?.into_iter().step_by(EVERY).flat_map(|(rank, point)| {
        ["KILL", "PANIC"].map(|blow| format!("{rank} {blow} {point} FILE"))
    });
    let pairs = PAIRS.map(|(a, b)| format!("{a} KILL at 3.5 FILE;{b} KILL at 3.5 FILE"));
    for strike in single.chain(pairs) {
        let struck = train(&strike).with_context(|| format!("struck: {strike}"))?;
        let is_struck = struck.path().join("struck").exists();
        *(if is_struck { &mut n_struck } else { &mut n_missed }) += 1;
        same(struck.path(), undisturbed.path()).with_context(|| format!("struck: {strike}"))?;
    }
    println!(
        "{n_struck} runs of the command with ranks struck ended with the undisturbed losses and weights; {n_missed} more ended \
         before the point"
    );
    Ok(())
}

/// Refuses losses or weights that differ.
fn same(struck: &Path, undisturbed: &Path) -> Result<()> {
    ensure!(losses(struck)? == losses(undisturbed)?, "other losses");
    let weights = |folder: &Path| fs::read(folder.join("run/model/model.safetensors"));
    ensure!(weights(struck)? == weights(undisturbed)?, "other weights");
    Ok(())
}

/// The steps of a run without their times.
fn losses(folder: &Path) -> Result<Vec<String>> {
    let text = read_to_string(folder.join("run/metrics.jsonl"))?;
    let of = |line: &str| -> Result<String> {
        let line: Value = serde_json::from_str(line)?;
        Ok(format!("{} {} {}", line["step"], line["loss"], line["grad_norm"]))
    };
    text.lines().map(of).collect()
}

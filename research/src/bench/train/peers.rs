//! The peers that also train these models: how to build and call each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use xtask::command::{cargo, program, read, root, run as run_command, target};

/// Another trainer of the same model.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
pub(super) enum Peer {
    /// Plain PyTorch, and its pipeline runtime over gloo
    Torch,
    /// PyTorch, compiled by torch.compile
    TorchCompile,
    /// Modules of candle-nn, differentiated by candle
    Candle,
    /// Modules of burn, on its CPU backend flex
    Burn,
}

/// The crate of the peers in Rust, outside of the workspace since burn takes minutes to build.
const CRATE: &str = "research/peers/train/Cargo.toml";
const TORCH: &str = "research/peers/torch_train.py";

/// Peers that exist and are built.
pub(super) struct Peers {
    python: String,
    data: PathBuf,
    /// Folder of the Rust programs.
    programs: PathBuf,
    versions: Vec<String>,
}

impl Peers {
    /// Builds the peers, and fails if a requirement is missing.
    pub(super) fn ready(peers: &[Peer], python: &str, data: PathBuf) -> Result<Peers> {
        let is_asked = |all: &[Peer]| all.iter().any(|peer| peers.contains(peer));
        let mut versions = Vec::new();
        if is_asked(&[Peer::Torch, Peer::TorchCompile]) {
            versions.push(format!("torch {}", torch_version(python)?.trim()));
        }
        let builds = target()?.join("peers");
        if is_asked(&[Peer::Candle, Peer::Burn]) {
            let mut build = cargo(["build", "--release", "--locked", "--manifest-path", CRATE]);
            build.env("CARGO_TARGET_DIR", &builds);
            // They choose vector instructions at run time only in products.
            run_command(build.env("RUSTFLAGS", "-C target-cpu=native"))?;
            versions.push("candle 0.11.1, burn 0.22.1".into());
        }
        Ok(Peers { python: python.into(), data, programs: builds.join("release"), versions })
    }

    /// Names and versions, to be printed after other text.
    pub(super) fn versions(&self) -> String {
        self.versions.iter().map(|version| format!(", {version}")).collect()
    }

    /// Tokens per second of one run, of a model that must have `n_params` parameters. candle and
    /// burn have no pipeline.
    pub(super) fn tokens_per_s(
        &self,
        peer: Peer,
        words: &[String],
        [depth, threads]: [u16; 2],
        n_params: u64,
    ) -> Result<f64> {
        let [depth, threads] = [depth, threads].map(|n| n.to_string());
        let mut command = match peer {
            Peer::Torch | Peer::TorchCompile => {
                let mut command = Command::new(&self.python);
                command.arg(TORCH).args(["--depth", &depth, "--threads", &threads]);
                command.args(["--schedule", "1F1B"]);
                if peer == Peer::TorchCompile {
                    command.arg("--compile");
                }
                command
            }
            Peer::Candle => Command::new(self.programs.join(program("candle"))),
            Peer::Burn => Command::new(self.programs.join(program("burn"))),
        };
        command.args(words).arg("--data").arg(&self.data).current_dir(root());
        let output = read(command.env("RAYON_NUM_THREADS", threads))?;
        let last = output.trim().lines().next_back().unwrap_or_default();
        let result: Value = serde_json::from_str(last).context("the peer's output")?;
        ensure!(
            result["parameters"].as_u64() == Some(n_params),
            "{peer:?} trains another model: it has {} parameters, not {n_params}",
            result["parameters"]
        );
        result["tokens_per_s"].as_f64().context("the peer's output without tokens_per_s")
    }
}

fn torch_version(python: &str) -> Result<String> {
    let mut command = Command::new(python);
    match read(command.args(["-c", "import torch; print(torch.__version__)"])) {
        Ok(version) => Ok(version),
        Err(e) => bail!("these peers need torch: {python} -m pip install torch numpy\n{e:#}"),
    }
}

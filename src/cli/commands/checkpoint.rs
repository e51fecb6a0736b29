//! `chimera checkpoint`: shows checkpoints, checks that they are whole, and extracts weights.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use crate::cli::parts::terminal::console::{print, require_folder};
use crate::cli::parts::terminal::output::written_path;
use crate::formats::checkpoint::{Checkpoint, Manifest, Store};

/// Lists, verifies and exports the checkpoints of a run
#[derive(Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Lists the checkpoints of a run, oldest first
    Ls {
        /// Folder of the run
        run: PathBuf,
    },
    /// Verifies the hashes of a checkpoint; exit code 4 if it is damaged
    Verify {
        /// Folder of the checkpoint
        checkpoint: PathBuf,
    },
    /// Writes the weights of a checkpoint as one safetensors file
    ///
    /// The tensors keep their names in the checkpoint. `chimera export` writes a folder with the names of Hugging Face.
    Export {
        /// Folder of the checkpoint
        checkpoint: PathBuf,
        /// File for the weights; it must not exist
        #[arg(short, long, value_name = "FILE", value_parser = written_path())]
        out: PathBuf,
    },
}

impl CheckpointCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            CheckpointCommand::Ls { run } => list(run),
            CheckpointCommand::Verify { checkpoint } => {
                let checkpoint = Checkpoint::open(&checkpoint)?;
                let Manifest { step, shards, .. } = checkpoint.manifest();
                let n_tensors = checkpoint.shapes().len();
                let (mib, n_files) = (mib(checkpoint.manifest()), shards.len());
                let path = checkpoint.path().display();
                print(format!(
                    "{path}: step {step}, {n_tensors} tensors in {n_files} file(s), {mib:.1} MiB, all as written"
                ))
            }
            CheckpointCommand::Export { checkpoint, out } => {
                ensure!(!out.exists(), "{} is there already: choose another --out", out.display());
                let checkpoint = Checkpoint::open(&checkpoint)?;
                let written = checkpoint.export(&out)?;
                print(format!("weights: {}, {} bytes", out.display(), written.bytes))
            }
        }
    }
}

fn list(run: PathBuf) -> Result<()> {
    let place = || format!("cannot read {}", run.display());
    require_folder(&run)?;
    let entries = Store::of(&run).entries().with_context(place)?;
    ensure!(!entries.is_empty(), "{} holds no checkpoints", run.display());
    let mut table = format!("{:>8}  {:>9}  {:>5}  path\n", "step", "MiB", "files");
    for entry in entries {
        let path = entry.path();
        let cells = match Manifest::read(&path) {
            Ok(manifest) => format!("{:>9.1}  {:>5}", mib(&manifest), manifest.shards.len()),
            Err(_) if !entry.is_whole => format!("{:>16}", "not finished"),
            Err(_) => format!("{:>16}", "cannot be used"),
        };
        writeln!(table, "{:>8}  {cells}  {}", entry.step, path.display())?;
    }
    print(table)
}

fn mib(manifest: &Manifest) -> f64 {
    let bytes: u64 = manifest.shards.iter().map(|shard| shard.bytes).sum();
    bytes as f64 / f64::from(1u32 << 20)
}

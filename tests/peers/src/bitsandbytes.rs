//! Weights in fewer bits, compared with those of the package `bitsandbytes`.

use std::path::PathBuf;

use anyhow::Result;

use crate::transformers::{Peer, chimera};
use xtask::command::given_python;

/// The options of the comparison.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Python that has torch, transformers and bitsandbytes [default: a fresh one in target/bitsandbytes, which
    /// downloads them]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// Trains adapters of a random Llama for a step that changes nothing, with its weights in each
/// format, and compares the weights of the saved model.
pub(crate) fn run(args: &Args) -> Result<()> {
    let packages = ["torch", "transformers", "bitsandbytes"];
    let python = given_python(args.python.as_deref(), "bitsandbytes", &packages)?;
    let peer = Peer { python, script: "tests/peers/bitsandbytes_weights.py".into() };
    println!("{}", peer.ask(&["version"])?.trim());
    let folder = tempfile::tempdir()?;
    let theirs = folder.path().join("theirs").display().to_string();
    peer.ask(&["draw", &theirs])?;
    for format in ["bf16", "int8", "nf4", "nf4-double"] {
        let [run, ours] =
            ["run", "ours"].map(|what| folder.path().join(format!("{what}-{format}")));
        let (run, ours) = (run.display().to_string(), ours.display().to_string());
        chimera(&format!(
            "train --init {theirs} --lora 1 --frozen-weights {format} --steps 1 --lr 0 --warmup 0 --depth 2 \
             --micro-batches 2 --micro-batch-size 1 --save {ours} --out {run}"
        ))?;
        print!("{}", peer.ask(&["compare", &theirs, &ours, format])?);
    }
    Ok(())
}

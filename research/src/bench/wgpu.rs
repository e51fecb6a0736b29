//! The portable backend: matrix products and an MLP on an adapter, compared with burn's, and tokens
//! per second of training compared with the CPU.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use xtask::command::{cargo, program, read, run as run_command, target};
use xtask::measure::{METRICS, sources, tokens_per_s};
use xtask::vulkan;

/// A model that a software adapter trains in seconds.
const SHAPE: &str = "--layers 4 --hidden 128 --heads 4 --context 128 --vocab 256 --micro-batches 4 \
                     --micro-batch-size 2 --depth 4 --schedule chimera --threads 1";
/// Builds both programs at once, so that shared dependencies are built once.
const BUILD: [&str; 10] = [
    "build", "--release", "--package=chimera-backend-wgpu", "--example", "speed",
    "--package=chimera-pipeline", "--features", "chimera-pipeline/wgpu", "--bin", "chimera",
];
/// burn's part, outside of the workspace since burn takes minutes to build.
const PEER: &str = "research/peers/burn/Cargo.toml";
/// Steps at the start that are not measured.
const WARM_UP: usize = 2;

/// Subject of a measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of the adapter, as `chimera devices` lists them
    #[arg(long, default_value_t = 0)]
    adapter: usize,
    /// Optimizer steps of a training; the first two are not measured
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u16).range(4..))]
    steps: u16,
    /// Also measures burn, which takes minutes to build, on the adapter that it considers best
    #[arg(long)]
    burn: bool,
}

/// Measures and prints the result.
pub(crate) fn run(args: &Args) -> Result<()> {
    vulkan::needs()?;
    let (target, number) = (target()?, args.adapter.to_string());
    run_command(&mut cargo(BUILD))?;
    let peer = target.join("burn");
    if args.burn {
        let build = ["build", "--release", "--manifest-path", PEER];
        run_command(cargo(build).env("CARGO_TARGET_DIR", &peer))?;
    }
    let release = target.join("release");
    let speed = release.join("examples").join(program("speed"));
    run_command(Command::new(speed).arg(&number))?;
    if args.burn {
        run_command(&mut Command::new(peer.join("release").join(program("burn-peer"))))?;
    }
    let chimera = release.join(program("chimera"));
    for device in ["cpu".to_owned(), format!("wgpu:{number}")] {
        println!("training on {device}: {:.0} tokens/s", train(&chimera, &device, args.steps)?);
    }
    Ok(())
}

/// Tokens per second of a pipeline of four workers.
fn train(chimera: &Path, device: &str, steps: u16) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let (data, metrics) = (sources(folder.path())?, folder.path().join(METRICS));
    let mut command = Command::new(chimera);
    command.arg("train").args(SHAPE.split_whitespace());
    command.args(["--device", device, "--steps", &steps.to_string()]);
    command.arg("--data").arg(data).arg("--metrics").arg(&metrics);
    read(command.arg("--out").arg(folder.path().join("run")))?;
    tokens_per_s(&metrics, WARM_UP)
}

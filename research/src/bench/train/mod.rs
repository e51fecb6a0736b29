//! Tokens per second of training on CPU, compared with the same model in PyTorch, candle and burn.
//!
//! Runs of Chimera and of the peers alternate, so that changes of the machine's speed affect all.

mod model;
mod peers;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::model::{Kind, model, words_of};
use self::peers::{Peer, Peers};
use self::table::{Measured, table};
use xtask::command::{chimera, read, root};
use xtask::measure::{METRICS, median, sources, tokens_per_s};

/// Steps at the start that are not measured.
const WARM_UP: usize = 2;

/// Runs to measure, and peers to compare with.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Text to train on [default: the sources of chimera-core]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The model
    #[arg(long, default_value = "gpt2")]
    model: Kind,
    /// Number formats of products, each in turn; may be repeated
    #[arg(long = "precision", default_value = "f32")]
    precisions: Vec<Precision>,
    /// Ways in which the two cores share the work; may be repeated [default: all]
    #[arg(long = "way", value_name = "WAY")]
    ways: Vec<Way>,
    /// Also measures the same model in other frameworks; may be repeated. The first run builds
    /// candle and burn, which takes minutes
    #[arg(long = "peer", value_name = "PEER")]
    peers: Vec<Peer>,
    /// Python that has torch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Repetitions of each run; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Optimizer steps per run; the first two are not measured
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u16).range(4..))]
    steps: u16,
    /// Prints the table as Markdown
    #[arg(long)]
    markdown: bool,
}

/// Number format of products.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

/// Division of the work among cores.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Way {
    /// Two workers of a pipeline, with a thread each.
    Pipeline,
    /// One worker with two threads.
    Threads,
    /// One worker with one thread.
    Thread,
}

/// One row of the table.
struct Run {
    name: &'static str,
    way: Way,
    by: Trainer,
}

#[derive(Clone, Copy, PartialEq)]
enum Trainer {
    /// Chimera, under a schedule.
    Chimera(&'static str),
    Peer(Peer),
}

/// All runs, in the order of a round. Peers are compared with the first of Chimera's runs that
/// shares the cores in the same way.
const RUNS: [Run; 13] = [
    run_of("chimera, 2 workers", Way::Pipeline, Trainer::Chimera("chimera")),
    run_of("1f1b, 2 workers", Way::Pipeline, Trainer::Chimera("1f1b")),
    run_of("torch 1F1B, 2 processes", Way::Pipeline, Trainer::Peer(Peer::Torch)),
    run_of("1 worker, 2 threads", Way::Threads, Trainer::Chimera("1f1b")),
    run_of("torch, 2 threads", Way::Threads, Trainer::Peer(Peer::Torch)),
    run_of("torch.compile, 2 threads", Way::Threads, Trainer::Peer(Peer::TorchCompile)),
    run_of("candle, 2 threads", Way::Threads, Trainer::Peer(Peer::Candle)),
    run_of("burn, 2 threads", Way::Threads, Trainer::Peer(Peer::Burn)),
    run_of("1 worker, 1 thread", Way::Thread, Trainer::Chimera("1f1b")),
    run_of("torch, 1 thread", Way::Thread, Trainer::Peer(Peer::Torch)),
    run_of("torch.compile, 1 thread", Way::Thread, Trainer::Peer(Peer::TorchCompile)),
    run_of("candle, 1 thread", Way::Thread, Trainer::Peer(Peer::Candle)),
    run_of("burn, 1 thread", Way::Thread, Trainer::Peer(Peer::Burn)),
];

const fn run_of(name: &'static str, way: Way, by: Trainer) -> Run {
    Run { name, way, by }
}

impl Run {
    /// Workers or processes, and threads of each.
    fn cores(&self) -> [u16; 2] {
        match self.way {
            Way::Pipeline => [2, 1],
            Way::Threads => [1, 2],
            Way::Thread => [1, 1],
        }
    }
}

/// Measures and prints the table.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = match &args.data {
        Some(path) => path.canonicalize().with_context(|| format!("{}", path.display()))?,
        None => sources(folder.path())?,
    };
    let peers = Peers::ready(&args.peers, &args.python, data.clone())?;
    let chimera = chimera()?;
    let model = model(args.model);
    let is_asked = |run: &&Run| {
        let by = match run.by {
            Trainer::Chimera(_) => true,
            Trainer::Peer(peer) => args.peers.contains(&peer),
        };
        by && (args.ways.is_empty() || args.ways.contains(&run.way))
    };
    let all = RUNS.iter().filter(is_asked);
    let mut rates: Vec<(&Run, Vec<Vec<f64>>)> =
        all.map(|run| (run, vec![Vec::new(); args.precisions.len()])).collect();
    for round in 0..args.rounds {
        for (run, rates) in &mut rates {
            for (precision, rates) in args.precisions.iter().zip(rates) {
                let mut words = words_of(&model);
                let [depth, threads] = run.cores();
                words.extend(["--steps".into(), args.steps.to_string()]);
                words.extend(["--precision".into(), format!("{precision:?}").to_lowercase()]);
                let rate = match run.by {
                    Trainer::Chimera(schedule) => {
                        words.extend(["--depth".into(), depth.to_string()]);
                        words.extend(["--threads".into(), threads.to_string()]);
                        words.extend(["--schedule".into(), schedule.into()]);
                        ours(&chimera, folder.path(), &data, &words)?
                    }
                    Trainer::Peer(peer) => {
                        peers.tokens_per_s(peer, &words, [depth, threads], model.n_params())?
                    }
                };
                eprintln!("round {}: {}, {precision:?}: {rate:.0} tokens/s", round + 1, run.name);
                rates.push(rate);
            }
        }
    }
    let medians = |rates: Vec<Vec<f64>>| rates.into_iter().map(median).collect();
    let measured = rates.into_iter().map(|(run, rates)| Measured { run, rates: medians(rates) });
    let measured: Vec<_> = measured.collect();
    println!(
        "{} of {} parameters, {} steps, median of {} rounds{}",
        model.architecture,
        model.n_params(),
        args.steps,
        args.rounds,
        peers.versions()
    );
    print!("{}", table(&measured, &args.precisions, args.markdown));
    Ok(())
}

/// Tokens per second of one run of Chimera, by the optimizer of the peers.
fn ours(chimera: &Path, folder: &Path, data: &Path, words: &[String]) -> Result<f64> {
    let metrics = folder.join(METRICS);
    let mut command = Command::new(chimera);
    command.arg("train").args(words).arg("--data").arg(data).current_dir(root());
    command.args(["--optimizer", "adamw"]);
    command.arg("--metrics").arg(&metrics).arg("--out").arg(tempfile::tempdir_in(folder)?.path());
    read(command.args(["--no-save", "true"]))?;
    let rate = tokens_per_s(&metrics, WARM_UP);
    fs::remove_file(&metrics)?;
    rate
}

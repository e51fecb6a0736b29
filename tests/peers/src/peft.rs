//! Adapters of the package `peft`: trained there and here from the same matrices, they have the same
//! losses, and each side reads what the other wrote.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::transformers::{Peer, chimera, kinds, losses_of, name, numbers};
use xtask::command::given_python;

/// Largest difference of two values, in parts of the largest.
const TOLERANCE: f64 = 1e-5;
/// Tokens per sample of the random models.
const SEQUENCE: usize = 16;
/// The pipelines that train each adapter. Every model has layers for two stages.
const WAYS: [&str; 3] = [
    "--depth 1 --micro-batches 1 --micro-batch-size 8",
    "--depth 2 --schedule chimera --micro-batches 4 --micro-batch-size 2",
    "--depth 2 --schedule 1f1b --micro-batches 8 --micro-batch-size 1",
];

/// The options of the comparison.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Python that has torch, transformers and peft [default: a fresh one in target/peft, which downloads them]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Number of random models and adapters: Llama, Qwen2, Mistral and GPT-2
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    drawn: usize,
    /// Seed of the random configurations
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Draws models and adapters, trains them on both sides, and compares losses and logits.
pub(crate) fn run(args: &Args) -> Result<()> {
    let packages = ["torch", "transformers", "peft"];
    let python = given_python(args.python.as_deref(), "peft", &packages)?;
    let peer = Peer { python, script: "tests/peers/peft_adapters.py".into() };
    println!("{}", peer.ask(&["version"])?.trim());
    let folder = tempfile::tempdir()?;
    let theirs = folder.path().join("theirs");
    let (seed, drawn) = (args.seed.to_string(), args.drawn.to_string());
    peer.ask(&["draw", &theirs.display().to_string(), &seed, &drawn])?;
    for kind in kinds(&theirs)? {
        let expected: Value = serde_json::from_slice(&std::fs::read(kind.join("expected.json"))?)?;
        let (losses, logits) = (numbers(&expected["losses"])?, numbers(&expected["logits"])?);
        let ids = numbers(&expected["ids"])?;
        let ids: Vec<String> = ids.iter().map(|id| (*id as u32).to_string()).collect();
        for (nth, way) in WAYS.into_iter().enumerate() {
            let run = kind.join(format!("run-{nth}"));
            let what = format!("{}, {way}", name(&kind));
            compare(&format!("{what}: losses"), &losses_here(&kind, &run, way)?, &losses)?;
            let adapter = run.join("model/adapter");
            let there = peer.logits_of(&kind.join("model"), &adapter, &ids)?;
            compare(&format!("{what}: logits, read there"), &there, &logits)?;
        }
    }
    Ok(())
}

/// Losses of training steps of the adapter beside a model, on all the tokens there.
fn losses_here(kind: &Path, run: &Path, way: &str) -> Result<Vec<f64>> {
    let (kind, out) = (kind.display(), run.display());
    let model = format!("--init {kind}/model --adapter {kind}/adapter");
    let data =
        format!("--data {kind}/ids.bin --validation-data {kind}/ids.bin --sequence {SEQUENCE}");
    let rate = "--optimizer adamw --lr 1e-2 --lr-schedule constant --warmup 0 --beta2 0.95";
    let rest = "--weight-decay 0.1 --clip 1 --steps 20";
    chimera(&format!("train {model} {data} {way} {rate} {rest} --out {out}"))?;
    losses_of(run)
}

impl Peer {
    /// Logits of a model with an adapter, computed there.
    fn logits_of(&self, model: &Path, adapter: &Path, ids: &[String]) -> Result<Vec<f64>> {
        let (model, adapter) = (model.display().to_string(), adapter.display().to_string());
        let words = ["logits", &model, &adapter].into_iter().chain(ids.iter().map(String::as_str));
        numbers(&serde_json::from_str(&self.ask(&words.collect::<Vec<_>>())?)?)
    }
}

fn compare(what: &str, ours: &[f64], theirs: &[f64]) -> Result<()> {
    ensure!(ours.len() == theirs.len(), "{what}: {} values, not {}", ours.len(), theirs.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).fold(0.0, f64::max);
    let difference = largest(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    let part = difference / largest(&mut theirs.iter().copied());
    println!("{what}: {} values differ by at most {part:.1e} of the largest", ours.len());
    ensure!(part <= TOLERANCE, "{what}: more than {TOLERANCE:e}");
    Ok(())
}

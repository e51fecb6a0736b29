//! Checkpoints. A resumed training equals one that was never interrupted. Whatever happens to its
//! files, it continues from sound ones or reports why it cannot.

#[cfg(unix)]
#[path = "checkpoint/again.rs"]
mod again;
#[path = "checkpoint/beside.rs"]
mod beside;
#[path = "checkpoint/broken.rs"]
mod broken;
#[path = "checkpoint/folder.rs"]
mod folder;
#[path = "checkpoint/foreign.rs"]
mod foreign;
#[path = "checkpoint/formats.rs"]
mod formats;
#[path = "checkpoint/kill.rs"]
mod kill;
#[path = "checkpoint/mixture.rs"]
mod mixture;
#[path = "checkpoint/ranks.rs"]
mod ranks;
#[path = "checkpoint/resume.rs"]
mod resume;
#[path = "checkpoint/run.rs"]
mod run;

mod command;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use chimera::core::engine::StepReport;
use chimera::formats::checkpoint::{Checkpoint, Disk, Store};
use chimera::run::outside::OnDisk;
use chimera::run::{Run, Trained};
use chimera::settings::{Config, Layers};

const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 \
                     --micro-batches 4 --steps 6 --threads 1";

/// The run that `chimera train` would prepare from these options.
fn prepare(options: &str) -> Run {
    Run::prepare(config(options)).unwrap_or_else(|refusal| panic!("{options}: {refusal}"))
}

/// The settings that follow from these options.
fn config(options: &str) -> Config {
    let layers = Layers::parse(&format!("{MODEL} {options}")).expect("options");
    layers.resolve(&OnDisk).expect("settings")
}

/// Trains in this process, from a checkpoint if one is given, and saves into a run's folder.
fn train(
    options: &str,
    from: Option<&Path>,
    into: &Path,
    disk: Disk,
) -> anyhow::Result<(Vec<StepReport>, Trained)> {
    let mut run = prepare(options);
    if let Some(path) = from {
        run.resume(Some(Checkpoint::open(path)?))?;
    }
    run.save_into(Store::of(into).on(disk), |_| ());
    let reports = Mutex::new(Vec::new());
    let trained = run.train(&AtomicBool::new(false), |report| {
        reports.lock().expect("one writer").push(report.clone());
        Ok(())
    })?;
    Ok((reports.into_inner().expect("one writer"), trained))
}

/// The checkpoint of a step.
fn at(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:08}"))
}

/// Losses, norms and rates to the bit.
fn numbers(reports: &[StepReport]) -> Vec<[u64; 4]> {
    let numbers =
        |r: &StepReport| [r.step, r.loss.to_bits(), r.grad_norm.to_bits(), r.lr.to_bits()];
    reports.iter().map(numbers).collect()
}

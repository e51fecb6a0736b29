//! `chimera train`: with any schedule a pipeline trains like one worker, and the files of a run are
//! exact.

#[path = "training/asynchronous.rs"]
mod asynchronous;
#[path = "training/bert.rs"]
mod bert;
#[path = "training/equivalence.rs"]
mod equivalence;
#[path = "training/evaluation.rs"]
mod evaluation;
#[path = "training/files.rs"]
mod files;
#[cfg(target_os = "linux")]
#[path = "training/memory.rs"]
mod memory;
#[path = "training/messages.rs"]
mod messages;
#[path = "training/need.rs"]
mod need;
#[path = "training/optimizers.rs"]
mod optimizers;
#[path = "training/sequence.rs"]
mod sequence;
#[path = "training/sharding.rs"]
mod sharding;
#[path = "training/sinks.rs"]
mod sinks;
#[path = "training/trace.rs"]
mod trace;
#[path = "training/wire.rs"]
mod wire;

mod command;
#[path = "command/metrics.rs"]
mod metrics;

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use chimera::core::engine::StepReport;
use chimera::run::outside::OnDisk;
use chimera::run::{Run, Trained};
use chimera::settings::Layers;

/// A model small enough to be trained hundreds of times.
const MODEL: &str = "--layers 8 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 --steps 5 --threads 1 \
     --depth 4 --micro-batches 8 --optimizer adamw --lr-schedule cosine";

/// The run that `chimera train` would prepare from these options.
fn prepare(options: &str) -> Run {
    let layers = Layers::parse(options).expect("options");
    let config = layers.resolve(&OnDisk).expect("settings");
    Run::prepare(config).unwrap_or_else(|refusal| panic!("{options}: {refusal}"))
}

/// Trains in this process. Returns the reports of all steps, and the results.
fn train(options: &str) -> (Vec<StepReport>, Trained) {
    let reports = Mutex::new(Vec::new());
    let observe = |report: &StepReport| {
        reports.lock().expect("one writer").push(report.clone());
        Ok(())
    };
    let trained = prepare(options).train(&AtomicBool::new(false), observe);
    let trained = trained.unwrap_or_else(|fault| panic!("{options}: {fault}"));
    (reports.into_inner().expect("one writer"), trained)
}

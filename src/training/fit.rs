//! Refusing a run that cannot fit into memory before it starts to fill it.

use anyhow::{Result, ensure};
use chimera_core::ids::WorkerId;
use chimera_core::lower::Program;
use chimera_core::model::{Cut, Gpt2Config};

use crate::settings::Config;

/// What a run needs, in bytes.
struct Need {
    /// Weights in all their versions, gradients and two moments, four bytes an element each.
    state: f64,
    /// Residuals of the micro-batches that workers hold at once.
    residuals: f64,
}

/// Refuses a run whose weights, gradients, moments and residuals exceed the memory that is free.
pub(super) fn check(
    config: &Config,
    model: &Gpt2Config,
    cuts: &[Cut],
    program: &Program,
) -> Result<()> {
    let need = need(config, model, cuts, program);
    if let Some(free) = free_bytes() {
        let gib = |bytes: f64| bytes / f64::from(1u32 << 30);
        ensure!(
            need.state + need.residuals <= free,
            "the run needs {:.1} GiB for weights, gradients and moments and {:.1} GiB for residuals, but \
             {:.1} GiB are free: choose fewer layers, a smaller preset or width, fewer pipes, or a \
             smaller micro-batch-size",
            gib(need.state),
            gib(need.residuals),
            gib(free),
        );
    }
    Ok(())
}

fn need(config: &Config, model: &Gpt2Config, cuts: &[Cut], program: &Program) -> Need {
    let tokens = (config.micro_batch_size as f64) * config.context as f64;
    let (mut state, mut residuals) = (0.0, 0.0);
    let versions = program.weight_versions().iter().map(|n| f64::from(*n));
    for ((w, peak), versions) in program.peaks().iter().enumerate().zip(versions) {
        let stages = program.placement().stages_of(WorkerId(w as u16));
        let cuts: Vec<&Cut> = stages.iter().map(|s| &cuts[s.index()]).collect();
        let params = cuts.iter().flat_map(|cut| model.params(cut));
        state += params.map(|p| p.n_elements() as f64 * 4.0 * (3.0 + versions)).sum::<f64>();
        let largest = cuts.iter().map(|cut| model.residual_elements(cut)).max();
        residuals += peak * tokens * 4.0 * largest.unwrap_or(0) as f64;
    }
    let width = config.width as f64;
    Need { state: state * width, residuals: residuals * width }
}

/// Memory that can be had without swapping, where the system tells.
fn free_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0)
}

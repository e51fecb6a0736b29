//! Refusing a run that cannot fit into memory before it starts to fill it.

use anyhow::{Result, ensure};
use chimera_core::ids::WorkerId;
use chimera_core::lower::Program;
use chimera_core::model::{Cut, Gpt2Config};

use crate::settings::Config;

/// Refuses if weights, gradients and moments alone exceed the memory that is free.
///
/// Residuals come on top, so a run that passes may still be too large; but one that does not pass
/// would surely be killed.
pub(super) fn check(
    config: &Config,
    model: &Gpt2Config,
    cuts: &[Cut],
    program: &Program,
) -> Result<()> {
    let params_of = |w: usize| -> u64 {
        let stages = program.placement().stages_of(WorkerId(w as u16));
        let params = stages.iter().flat_map(|s| model.params(&cuts[s.index()]));
        params.map(|p| p.n_elements() as u64).sum()
    };
    let group: u64 = (0..config.depth).map(params_of).sum();
    // Weights, gradients and two moments, four bytes each.
    let bytes = group * config.width as u64 * 16;
    if let Some(free) = free_bytes() {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        ensure!(
            bytes <= free,
            "weights, gradients and moments take {:.1} GiB ({} parameters, {:.1} copies), but {:.1} GiB \
             are free: choose a smaller preset, fewer layers, fewer pipes, or a smaller width",
            gib(bytes),
            model.n_params(),
            group as f64 * config.width as f64 / model.n_params() as f64,
            gib(free),
        );
    }
    Ok(())
}

/// Memory that can be had without swapping, where the system tells.
fn free_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

//! The memory check: refuses a run that cannot fit into memory before it starts.

use std::ops::Add;
use std::path::Path;

use anyhow::{Result, ensure};
use chimera_core::lower::Recompute;
use chimera_core::notation::size;
use chimera_device::{AnyKernels, Devices};
use chimera_plan::plan::{Need, Plan};
use chimera_settings::Config;

use super::available_memory::free_memory;

/// Refuses a run that needs more than the available memory. `here` is the share of its ranks on this host.
pub(crate) fn check<K: AnyKernels>(plan: &Plan, devices: &Devices<K>, here: f64) -> Result<()> {
    let (config, workers) = (&plan.course.config, plan.needs.iter().zip(&plan.devices));
    let on_host =
        workers.map(|(need, device)| need_on_host(need, devices.uses_host_memory(*device)));
    let need = on_host.fold(Need::default(), Need::add).times(config.schedule.width as f64 * here);
    refuse_on_host(config, &need)?;
    for (device, ranks) in devices.shared() {
        let of = |rank: &usize| plan.needs[rank % plan.needs.len()];
        let need = ranks.iter().map(of).fold(Need::default(), Need::add);
        if let Some(free) = device.free_bytes() {
            let need = Need { copy: 0.0, ..need }; // checkpoints are written from the host's memory
            refuse(config, &need, free as f64, "", &device.name())?;
        }
    }
    Ok(())
}

/// Returns the host memory that a worker needs. If the device has memory of its own, that is only
/// the copy for checkpoints.
fn need_on_host(need: &Need, uses_host_memory: bool) -> Need {
    if uses_host_memory { *need } else { Need { copy: need.copy, ..Need::default() } }
}

/// Refuses a run of a caller's model whose ranks need more than the available memory: that of their
/// devices, if known, or else that of this host.
pub(crate) fn check_own(config: &Config, needs: &[(Need, Option<u64>)]) -> Result<()> {
    for (need, free) in needs {
        if let Some(free) = free {
            let need = Need { copy: 0.0, ..*need };
            refuse(config, &need, *free as f64, "", "the device of a rank")?;
        }
    }
    let on_host = needs.iter().map(|(need, free)| need_on_host(need, free.is_none()));
    refuse_on_host(config, &on_host.fold(Need::default(), Need::add))
}

fn refuse_on_host(config: &Config, need: &Need) -> Result<()> {
    let Some(free) = free_memory(Path::new("/")) else { return Ok(()) };
    let limit = if free.by_limit { " within the memory limit of its control group" } else { "" };
    refuse(config, need, free.bytes, limit, "this host")
}

fn refuse(config: &Config, need: &Need, free: f64, limit: &str, place: &str) -> Result<()> {
    ensure!(
        need.total() <= free,
        "the run needs {need} on {place}, but {} are free{limit}: choose {}fewer layers, a smaller preset or \
         width, fewer pipes, or a smaller micro-batch-size",
        size(free),
        if config.passes.recompute == Recompute::None { "recompute full, " } else { "" },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For example a software adapter of wgpu.
    #[test]
    fn a_device_without_memory_of_its_own_needs_all_of_the_host() {
        let need = Need { state: 8.0, copy: 4.0, activations: 2.0, working: 1.0 };
        assert_eq!(need_on_host(&need, true), need);
        assert_eq!(need_on_host(&need, false), Need { copy: 4.0, ..Need::default() });
    }
}

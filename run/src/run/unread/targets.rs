//! Layers that adapters name, and the format of frozen ones.

use anyhow::{Result, bail, ensure};
use chimera_core::device::WeightFormat;
use chimera_core::stage::Param;
use chimera_device::Device;
use chimera_settings::Config;

/// Refuses targets of adapters that the model does not have. An adapter from elsewhere may name more.
pub(super) fn check_targets(config: &Config) -> Result<()> {
    let Some(lora) = config.lora().filter(|_| config.model.adapter.is_none()) else {
        return Ok(());
    };
    let layers = config.model().linear_layers();
    let Some(target) = lora.unused_target(&layers) else { return Ok(()) };
    bail!(
        "lora-targets: no linear layer of a block is named `{target}`; there are {}",
        layers.join(", ")
    )
}

/// Refuses a format of frozen weights that nothing is held in, or that a device does not have.
pub(super) fn check_frozen_weights(config: &Config, params: &[Vec<Param>]) -> Result<()> {
    let format = config.model.frozen_weights.unwrap_or_default();
    if format == WeightFormat::F32 {
        return Ok(());
    }
    let name = format.name();
    ensure!(
        params.iter().flatten().any(|param| param.packing.is_some()),
        "frozen-weights {name} is for frozen matrices of linear layers, and none is frozen: train adapters with \
         `lora`, or freeze such matrices with `freeze`"
    );
    let devices = Device::named(&config.devices.device, config.schedule.depth)?;
    let other = devices.into_iter().find(|device| !device.is_host());
    match other {
        None => Ok(()),
        Some(other) => bail!(
            "frozen-weights {name} is for the processor, and {other} only multiplies weights in f32: choose `device cpu`, or \
             leave `frozen-weights` out"
        ),
    }
}

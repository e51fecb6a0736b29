//! Settings of adapters that have no effect or are not computed, and the format of frozen weights.

use anyhow::{Result, bail, ensure};
use chimera_core::device::WeightFormat;
use chimera_core::stage::Param;
use chimera_device::Device;
use chimera_settings::Config;

/// Refuses settings of adapters that nothing reads, and adapters that a device does not have.
fn check_adapters(config: &Config) -> Result<()> {
    let [rate, is_dora] = [config.model.lora_dropout > 0.0, config.model.dora];
    let option = if is_dora { "dora" } else { "lora-dropout" };
    ensure!(
        config.model.lora.is_some() || !(rate || is_dora),
        "`{option}` is for adapters, and none is trained: choose their rank with `lora`, or leave \
         `{option}` out"
    );
    if !is_dora {
        return Ok(());
    }
    let devices = Device::named(&config.devices.device, config.schedule.depth)?;
    match devices.into_iter().find(|device| !device.is_host()) {
        None => Ok(()),
        Some(other) => bail!(
            "magnitudes of outputs are for the processor, and {other} has none: choose `device cpu`, or leave \
             `dora` out"
        ),
    }
}

/// Refuses targets of adapters that the model does not have, and settings of adapters that cannot be
/// met. An adapter from elsewhere may name more targets.
pub(super) fn check_targets(config: &Config) -> Result<()> {
    check_adapters(config)?;
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

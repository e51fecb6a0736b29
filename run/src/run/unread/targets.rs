//! Layers that adapters name.

use anyhow::{Result, bail};
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

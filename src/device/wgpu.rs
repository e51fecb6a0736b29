//! Adapters of wgpu by number.

use anyhow::{Context, Result, ensure};
use chimera_backend_wgpu::{Adapter, Options, Wgpu, adapters as find};

/// All that there are.
pub(super) fn adapters() -> Result<Vec<Adapter>> {
    let adapters = find();
    ensure!(
        !adapters.is_empty(),
        "wgpu finds no adapter: install the driver of the GPU, or without one a software Vulkan \
         (Debian: apt-get install mesa-vulkan-drivers)"
    );
    Ok(adapters)
}

/// Opens one.
pub(super) fn open(number: usize) -> Result<Wgpu> {
    let adapters = adapters()?;
    let adapter = adapters.get(number).with_context(|| {
        let n = adapters.len();
        format!("there is no adapter wgpu:{number}: `chimera devices` lists the {n} there are")
    })?;
    Ok(adapter.open(Options::default())?)
}

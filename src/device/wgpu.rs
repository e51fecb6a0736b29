//! wgpu adapters by number.

use std::any::Any;

use anyhow::{Context, Result, ensure};
use chimera_backend_wgpu::{Adapter, Options, Wgpu, adapters as find};
use chimera_core::device::Device;
use chimera_device::{Backend, Numbers};

/// An adapter of wgpu.
#[derive(Clone, Debug)]
pub struct WgpuAdapter(Wgpu);

impl Backend for WgpuAdapter {
    fn list() -> Result<Vec<String>> {
        let line = |(number, adapter): (usize, &Adapter)| {
            format!("wgpu:{number}: {adapter}\n{}", products(adapter))
        };
        Ok(adapters()?.iter().enumerate().map(line).collect())
    }

    /// Adapters of the same model as the first are assigned in turn. (This leaves out a software
    /// Vulkan next to a GPU.)
    fn number(local: usize) -> Result<Option<usize>> {
        let models: Vec<String> = adapters()?.iter().map(Adapter::model).collect();
        let alike: Vec<usize> = (0..models.len()).filter(|i| models[*i] == models[0]).collect();
        Ok(Some(alike[local % alike.len()]))
    }

    fn open(number: usize, _: Numbers) -> Result<WgpuAdapter> {
        let adapters = adapters()?;
        let adapter = adapters.get(number).with_context(|| {
            let n = adapters.len();
            format!("there is no adapter wgpu:{number}: `chimera devices` lists the {n} there are")
        })?;
        let product = adapter.speeds()?.and_then(|speeds| speeds.best());
        Ok(WgpuAdapter(adapter.open(Options { product, ..Options::default() })?))
    }

    fn kernels(&self) -> &dyn Any {
        &self.0
    }

    fn name(&self) -> String {
        Device::name(&self.0)
    }

    fn model(&self) -> String {
        self.0.model().into()
    }

    fn uses_host_memory(&self) -> bool {
        self.0.is_software()
    }
}

/// Returns all adapters, at least one.
fn adapters() -> Result<Vec<Adapter>> {
    let adapters = find();
    ensure!(
        !adapters.is_empty(),
        "wgpu finds no adapter: install the driver of the GPU, or without one a software Vulkan \
         (Debian: apt-get install mesa-vulkan-drivers)"
    );
    Ok(adapters)
}

/// Names the matrix product that an adapter gets, and the reason, as a line of the listing.
fn products(adapter: &Adapter) -> String {
    match adapter.speeds() {
        Ok(Some(speeds)) => {
            let measured = speeds.to_string();
            let measured: Vec<&str> = measured.lines().collect();
            let best = speeds.best().map_or(String::new(), |best| best.to_string());
            format!("  matrix products by {best}, of {} GFLOP/s", measured.join(", "))
        }
        Ok(None) => {
            "  matrix products by the kind of the adapter: measurements cannot be kept".into()
        }
        Err(error) => format!("  {error}"),
    }
}

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

/// The number of the adapter that the `local`-th worker takes: adapters of the first one's model are dealt out
/// in turn. (A software Vulkan beside a GPU is none of them.)
pub(super) fn in_turn(local: usize) -> Result<usize> {
    let models: Vec<String> = adapters()?.iter().map(Adapter::model).collect();
    let alike: Vec<usize> = (0..models.len()).filter(|i| models[*i] == models[0]).collect();
    Ok(alike[local % alike.len()])
}

/// Which matrix product it gets, and why, as a line of the listing.
pub(super) fn products(adapter: &Adapter) -> String {
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

/// Opens one.
pub(super) fn open(number: usize) -> Result<Wgpu> {
    let adapters = adapters()?;
    let adapter = adapters.get(number).with_context(|| {
        let n = adapters.len();
        format!("there is no adapter wgpu:{number}: `chimera devices` lists the {n} there are")
    })?;
    let product = adapter.speeds()?.and_then(|speeds| speeds.best());
    Ok(adapter.open(Options { product, ..Options::default() })?)
}

//! GPUs of CUDA by number.

use anyhow::{Result, anyhow, ensure};
use chimera_backend_candle::gpu::cuda::{self, Cuda, Device};
use chimera_backend_candle::gpu::{Element, Gpu};
use chimera_core::device::DeviceError;

pub(super) use chimera_backend_candle::gpu::cuda::libraries;

use super::Precision;

/// All that there are.
pub(super) fn devices() -> Result<Vec<Device>> {
    count()?;
    cuda::devices().map_err(usage)
}

/// How many there are: one at least.
pub(super) fn count() -> Result<usize> {
    let n = cuda::count().map_err(usage)?;
    ensure!(n > 0, "this machine has no GPU that CUDA can use");
    Ok(n)
}

/// A stream of its own on one.
pub(super) fn open(number: usize, precision: Precision) -> Result<Gpu<Cuda>> {
    let activations = match precision {
        Precision::F32 => Element::F32,
        Precision::Bf16 => Element::Bf16,
    };
    let driver = Cuda::new(number, activations).map_err(usage)?;
    Ok(Gpu::new(driver, activations))
}

/// What a machine lacks before the start is a matter of its setup; only memory is not.
fn usage(error: DeviceError) -> anyhow::Error {
    match error {
        DeviceError::OutOfMemory { .. } => error.into(),
        DeviceError::Failed { .. } => anyhow!("{error} (docs/gpu.md says what CUDA needs)"),
    }
}

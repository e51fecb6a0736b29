//! GPUs of CUDA by number.

use anyhow::{Result, anyhow, ensure};
use chimera_backend_cuda::gpu::cuda::{Cuda, Device, devices as find};
use chimera_backend_cuda::gpu::{Element, Gpu};
use chimera_core::kernels::DeviceError;

use super::Precision;

/// All that there are.
pub(super) fn devices() -> Result<Vec<Device>> {
    let devices = find().map_err(usage)?;
    ensure!(!devices.is_empty(), "this machine has no GPU that CUDA can use");
    Ok(devices)
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

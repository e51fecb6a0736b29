//! CUDA GPUs by number.

use std::any::Any;

use anyhow::{Result, anyhow, ensure};
use chimera_backend_cuda::cuda::{self, Cuda};
use chimera_backend_cuda::{Format, Gpu};
use chimera_core::device::{Device, DeviceError};
use chimera_device::{Backend, Numbers, Precision, Usage};

/// The kernels of a CUDA GPU.
pub(super) type CudaGpu = Gpu<Cuda>;

/// A stream of a CUDA GPU.
#[derive(Clone, Debug)]
pub struct CudaStream(CudaGpu);

impl Backend for CudaStream {
    fn has_streams() -> bool {
        true
    }

    fn list() -> Result<Vec<String>> {
        count()?;
        let gpus = cuda::devices().map_err(usage)?;
        let gpus = gpus.iter().map(|gpu| format!("cuda:{}: {gpu}", gpu.ordinal));
        Ok(gpus.chain([format!("cuda: {}", cuda::libraries())]).collect())
    }

    fn number(local: usize) -> Result<Option<usize>> {
        Ok(Some(local % count()?))
    }

    fn open(number: usize, numbers: Numbers) -> Result<CudaStream> {
        let format = match numbers.precision {
            Precision::F32 => Format::F32,
            Precision::Tf32 => Format::Tf32,
            Precision::Bf16 => Format::Bf16,
        };
        Ok(CudaStream(Gpu::new(Cuda::new(number, format).map_err(usage)?)))
    }

    fn kernels(&self) -> &dyn Any {
        &self.0
    }

    fn poisoned(self) -> CudaStream {
        CudaStream(self.0.poisoned())
    }

    fn generic(self) -> CudaStream {
        CudaStream(self.0.generic())
    }

    fn name(&self) -> String {
        Device::name(&self.0)
    }

    fn model(&self) -> String {
        let name = Device::name(&self.0); // begins with the number
        format!("cuda {}", name.split_once(' ').map_or("", |(_, model)| model))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.0.driver().free_bytes().ok()
    }

    fn usage(&self) -> Option<Usage> {
        let cuda::Usage { n_launches, n_waits, peak_bytes, reserved_bytes, .. } =
            self.0.driver().usage().ok()?;
        Some(Usage { n_launches, n_waits, peak_bytes, reserved_bytes })
    }

    fn held_peak(&self) -> Option<u64> {
        Some(self.0.driver().held_peak())
    }

    fn reset_peak(&self) {
        let reset = self.0.driver().reset_peak();
        let _ = reset; // a failing device shows elsewhere
    }
}

/// Number of GPUs, at least one.
fn count() -> Result<usize> {
    let n = cuda::count().map_err(usage)?;
    ensure!(n > 0, "this machine has no GPU that CUDA can use");
    Ok(n)
}

/// Marks an error before the start as one of the machine's setup, unless memory is short.
fn usage(error: DeviceError) -> anyhow::Error {
    match error {
        DeviceError::OutOfMemory { .. } => error.into(),
        _ => anyhow!("{error} (see docs/gpu.md for the requirements of CUDA)"),
    }
}

//! The GPUs of a machine, and the versions of its CUDA libraries.

use std::fmt;

use chimera_core::device::Result;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::toolkit::capability::has_tensor_cores;
use super::toolkit::compile;
use super::toolkit::libraries::DRIVER;
use super::{failed, product, said};

/// A GPU of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Number of the device, as in `cuda:0`.
    pub ordinal: usize,
    /// The manufacturer's name for it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether its driver has stream-ordered memory pools; otherwise memory is kept in blocks.
    pub has_pools: bool,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), gib) = (self.capability, self.memory_bytes as f64 / 1024f64.powi(3));
        let formats = if has_tensor_cores(self.capability) { "f32 or bf16" } else { "f32 alone" };
        write!(f, "{}, {gib:.1} GiB, sm_{major}{minor}; kernels in {formats}", self.name)?;
        if !self.has_pools { write!(f, "; no memory pools") } else { Ok(()) }
    }
}

/// Returns the GPUs of this machine.
///
/// # Errors
/// If there is no driver, or it does not start.
pub fn devices() -> Result<Vec<Device>> {
    use sys::CUdevice_attribute_enum as Attribute;
    let device = |ordinal: usize| {
        let device = result::device::get(ordinal as i32)?;
        // SAFETY: the driver has just returned the device. None of this needs a context.
        unsafe {
            let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
            let minor = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
            let pools = Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
            let read = |attribute| result::device::get_attribute(device, attribute);
            Ok(Device {
                ordinal,
                name: result::device::get_name(device)?,
                capability: (read(major)?, read(minor)?),
                memory_bytes: result::device::total_mem(device)? as u64,
                has_pools: read(pools)? != 0,
            })
        }
    };
    let all = (0..count()?).map(device).collect::<std::result::Result<_, DriverError>>();
    all.map_err(|e| failed("cuda", "start", said(&e)))
}

/// Returns the number of GPUs of this machine.
///
/// # Errors
/// If there is no driver, or it does not start.
pub fn count() -> Result<usize> {
    DRIVER.require().map_err(|reason| failed("cuda", "start", reason))?;
    let n = result::init().and_then(|()| result::device::get_count());
    n.map(|n| n.max(0) as usize).map_err(|e| failed("cuda", "start", said(&e)))
}

/// Describes the compiler and the matrix library that were found.
pub fn libraries() -> String {
    let said = |version: std::result::Result<String, String>| version.unwrap_or_else(|none| none);
    let nvrtc = compile::version().map(|(major, minor)| format!("NVRTC {major}.{minor}"));
    let blas = product::version().map(|version| format!("cuBLAS {version}"));
    format!("{}, {}", said(nvrtc), said(blas))
}

//! The kinds of devices in this build. Each kind is a row of the table in `kinds`, and has a file
//! in this folder that implements `Backend`.

#[cfg(feature = "candle")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod kinds;
#[cfg(feature = "candle")]
pub mod selftest;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use chimera_device::{
    Compute, CoreWatch, Device, NoThread, OpenedBy, Precision, Usage, available, machine, n_cores,
    start_threads, thread_pool,
};

pub use kinds::Kernels;

/// An open device of this build. Clones share it.
pub type OpenDevice = chimera_device::OpenDevice<Kernels>;
/// The open devices of some ranks of this process.
pub type Devices = chimera_device::Devices<Kernels>;

impl OpenedBy<Kernels> for Device {}

#[cfg(all(test, feature = "candle"))]
mod tests {
    use super::*;

    #[test]
    fn workers_share_the_device_that_they_have_in_common() {
        let devices = Device::list::<Kernels>("cpu, cpu", 2).unwrap();
        assert!(Devices::open(&devices, 2, Precision::F32).unwrap().one().is_some());
    }
}

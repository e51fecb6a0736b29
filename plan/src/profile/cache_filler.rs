//! Filling of caches, for their state at the time of a step's update.

use chimera_core::device::DeviceError;
use chimera_core::layers::Layers;

use super::stage_pass::numbers;

/// More than most caches hold: 64 MiB.
const ELEMENTS: usize = 1 << 24;

/// A large block of memory. Reading it evicts older data from a device's caches.
pub(super) struct CacheFiller<K: Layers> {
    device: K,
    memory: K::Tensor,
}

impl<K: Layers> CacheFiller<K> {
    pub(super) fn new(device: &K) -> Result<CacheFiller<K>, DeviceError> {
        let memory = device.upload_vec(&[ELEMENTS], numbers(ELEMENTS, 0.0))?;
        Ok(CacheFiller { device: device.clone(), memory })
    }

    /// Reads all of it.
    pub(super) fn fill(&self) -> Result<(), DeviceError> {
        self.device.squared_norms(&[&self.memory]).map(drop)
    }
}

//! What a kind of device implements to be trained on, and what is done on a device whatever its kind.

use std::any::Any;

use anyhow::Result;
use chimera_core::layers::Layers;

use super::precision::Precision;

/// The kernels of a kind of device: how its devices are found and opened, and what an open one tells of itself.
#[cfg_attr(not(any(feature = "candle", feature = "wgpu")), expect(dead_code))]
pub(super) trait Backend: Any {
    /// Whether each rank has a stream of its own, so that tensors go from one device to another.
    fn has_streams() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// The devices of this machine, a line or more each that begins with the name for `--device`.
    fn list() -> Result<Vec<String>>
    where
        Self: Sized;

    /// The number of the device that the `local`-th worker of a machine takes, if devices have numbers.
    fn number(local: usize) -> Result<Option<usize>>
    where
        Self: Sized;

    /// Opens the device of this number.
    fn open(number: usize, precision: Precision) -> Result<Self>
    where
        Self: Sized;

    /// Makes the device fill memory with values that are not numbers before it is written, if it can.
    fn poisoned(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Makes the device take kernels that any of its kind has, beside which those for some chips are tested.
    fn generic(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// The device in words.
    fn name(&self) -> String;

    /// What the device is, whatever its number: the same call gives the same bits on devices of one model.
    fn model(&self) -> String;

    /// Whether tensors lie in the host's memory, which is then what can run out.
    fn uses_host_memory(&self) -> bool {
        false
    }

    /// Bytes of the device's own memory that nobody uses, if it says so.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Makes the file to which activations are moved, where the device moves them to one.
    fn open_offload_file(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// What this stream has done and what its device holds, if they are counted.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// The most bytes that this stream has held since the last reset, if they are counted.
    fn held_peak(&self) -> Option<u64> {
        None
    }

    /// Lets peaks begin anew.
    fn reset_peak(&self) {}
}

/// What devices that count have done and used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Layers and matrix products started.
    pub n_launches: u64,
    /// Times that the host waited for a device.
    pub n_waits: u64,
    /// The most bytes in use on a device so far.
    pub peak_bytes: u64,
    /// Bytes that all devices hold for use, so that they need not be allocated.
    pub reserved_bytes: u64,
}

/// What is done on a device, whatever its kernels are.
pub trait Compute {
    /// What comes of it.
    type Output;

    /// Does it, with the kernels of each rank: at least one.
    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output;
}

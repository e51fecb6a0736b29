//! The trait that a kind of device implements, and the trait of a computation that runs on any
//! kind.

use std::any::Any;

use anyhow::Result;
use chimera_core::layers::Layers;

use super::numbers::Numbers;

/// The kernels of a kind of device: how its devices are found and opened, and the properties of an
/// open one.
pub trait Backend {
    /// Returns true if each rank has a stream of its own, so that tensors can move between devices.
    fn has_streams() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Lists the devices of this machine, each in one or more lines that begin with the name for
    /// `--device`.
    fn list() -> Result<Vec<String>>
    where
        Self: Sized;

    /// Returns the number of the device for the `local`-th worker of a machine, if devices have
    /// numbers.
    fn number(local: usize) -> Result<Option<usize>>
    where
        Self: Sized;

    /// Opens the device of this number.
    fn open(number: usize, numbers: Numbers) -> Result<Self>
    where
        Self: Sized;

    /// Makes the device fill memory with NaN before it is written, if it can.
    fn poisoned(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Makes the device use kernels that run on any device of its kind; those for some chips are
    /// tested against them.
    fn generic(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// Returns the kernels themselves.
    fn kernels(&self) -> &dyn Any;

    /// Describes the device in words.
    fn name(&self) -> String;

    /// Describes the device without its number: devices of one model return the same bits for the
    /// same call.
    fn model(&self) -> String;

    /// Returns the [way](super::Bf16Products) in which the host multiplies bf16, if it does.
    fn bf16_products(&self) -> Option<&'static str> {
        None
    }

    /// Returns true if tensors lie in the host's memory, which can then run out.
    fn uses_host_memory(&self) -> bool {
        false
    }

    /// Free bytes of the device's own memory, if it reports them.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Creates the file that activations are moved to, if the device offloads them to a file.
    fn open_offload_file(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Returns the counts of this stream and its device, if they are kept.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns the peak bytes of this stream since the last reset, if they are counted.
    fn held_peak(&self) -> Option<u64> {
        None
    }

    /// Resets the peaks.
    fn reset_peak(&self) {}
}

/// Counts of work and memory, of devices that keep them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Layers and matrix products started.
    pub n_launches: u64,
    /// Number of times the host waited for a device.
    pub n_waits: u64,
    /// Peak bytes in use on a device so far.
    pub peak_bytes: u64,
    /// Bytes that all devices hold in reserve, so that they need not be allocated.
    pub reserved_bytes: u64,
}

/// A computation on devices of any kind.
pub trait Compute {
    /// The result of the computation.
    type Output;

    /// Runs it with the kernels of each rank, of which there is at least one.
    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output;
}

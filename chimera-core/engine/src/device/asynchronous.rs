//! Devices that compute asynchronously, while their rank goes on.

use super::{Device, Result};

/// A copy from the device to the host, in progress while the device works on.
pub trait Fetch: Send {
    /// Returns true if the copy is complete.
    fn is_there(&mut self) -> Result<bool>;

    /// Waits for the copy and appends its words to `into`.
    fn finish(self: Box<Self>, into: &mut Vec<f32>) -> Result<()>;
}

/// The order of two independent pieces of work, for a device with several queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// The next calls belong to the first piece.
    First,
    /// The next calls belong to the second piece, which need not wait for the first.
    Second,
    /// The next calls wait for both pieces.
    Over,
}

/// Asynchronous work, and the transfer of tensors between ranks in one process. `T` is the device's
/// tensor type.
pub trait Asynchronous<T> {
    /// Begins a [`download_words`](Device::download_words) of the tensor as it is now. Returns
    /// `None` on devices where an asynchronous copy saves no time.
    fn fetch(&self, _tensor: &T) -> Result<Option<Box<dyn Fetch>>> {
        Ok(None)
    }

    /// Marks `tensor` as ready once the work requested so far is done, before it goes to another
    /// rank in this process. An asynchronous device records an event.
    fn record_ready(&self, _tensor: &T) -> Result<()> {
        Ok(())
    }

    /// Moves a tensor of another rank in this process to this device, if it lies elsewhere.
    fn import(&self, tensor: T) -> Result<T> {
        Ok(tensor)
    }

    /// Makes work requested from here on wait until a tensor of another rank is
    /// [ready](Asynchronous::record_ready).
    fn wait_ready(&self, _tensor: &T) -> Result<()> {
        Ok(())
    }

    /// Begins all work requested of the device so far. The engine calls this before it waits for
    /// other ranks, for devices that batch work before they begin it.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Declares that the next calls are one of two pieces of work that may run concurrently.
    /// Neither piece uses a result of the other. A device with one queue runs one after the other.
    fn overlap(&self, _: Overlap) -> Result<()> {
        Ok(())
    }
}

/// Calls [`Asynchronous::record_ready`] if the device is asynchronous.
pub(crate) fn record_ready<D: Device>(device: &D, tensor: &D::Tensor) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.record_ready(tensor))
}

/// Calls [`Asynchronous::import`] if the device is asynchronous; otherwise returns the tensor.
pub(crate) fn imported<D: Device>(device: &D, tensor: D::Tensor) -> Result<D::Tensor> {
    match device.asynchronous() {
        Some(device) => device.import(tensor),
        None => Ok(tensor),
    }
}

/// Calls [`Asynchronous::wait_ready`] if the device is asynchronous.
pub(crate) fn wait_ready<D: Device>(device: &D, tensor: &D::Tensor) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.wait_ready(tensor))
}

/// Calls [`Asynchronous::flush`] if the device is asynchronous.
pub(crate) fn flush<D: Device>(device: &D) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.flush())
}

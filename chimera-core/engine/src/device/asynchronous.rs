//! Devices that work on their own while their rank goes on.

use super::{Device, Result};

/// A copy to the host that is under way while the device works on.
pub trait Fetch: Send {
    /// Whether it is there.
    fn is_there(&mut self) -> Result<bool>;

    /// Waits for it, and puts it behind what `into` holds.
    fn finish(self: Box<Self>, into: &mut Vec<f32>) -> Result<()>;
}

/// Where a device with several queues is, of two pieces of work that run beside each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// The first piece comes next.
    First,
    /// The second piece comes next, and need not wait for the first one.
    Second,
    /// What comes next waits for both.
    Over,
}

/// The work of a device that works on its own, and tensors that ranks in one process hand each other. `T` is a tensor of
/// the device.
pub trait Asynchronous<T> {
    /// Begins a [`download_words`](Device::download_words) of a tensor as it is now, on devices on which this gains
    /// time.
    fn fetch(&self, _tensor: &T) -> Result<Option<Box<dyn Fetch>>> {
        Ok(None)
    }

    /// Marks `tensor` as ready behind the work that was asked for so far, before it goes to another rank in this
    /// process. A device that works on its own records an event.
    fn record_ready(&self, _tensor: &T) -> Result<()> {
        Ok(())
    }

    /// Brings a tensor that another rank in this process made to this device, if it lies elsewhere.
    fn import(&self, tensor: T) -> Result<T> {
        Ok(tensor)
    }

    /// Makes work that is asked for from here on wait until a tensor of another rank is
    /// [ready](Asynchronous::record_ready).
    fn wait_ready(&self, _tensor: &T) -> Result<()> {
        Ok(())
    }

    /// Begins everything that was asked of the device so far. The engine calls this before it waits for other ranks,
    /// on devices that gather work before they begin it.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Says of what is asked for next that it is a piece of work beside another one. Neither piece uses what the other makes. A
    /// device that has one queue does one after the other.
    fn overlap(&self, _: Overlap) -> Result<()> {
        Ok(())
    }
}

/// [`Asynchronous::record_ready`] of a device that has it.
pub(crate) fn record_ready<D: Device>(device: &D, tensor: &D::Tensor) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.record_ready(tensor))
}

/// [`Asynchronous::import`] of a device that has it.
pub(crate) fn imported<D: Device>(device: &D, tensor: D::Tensor) -> Result<D::Tensor> {
    match device.asynchronous() {
        Some(device) => device.import(tensor),
        None => Ok(tensor),
    }
}

/// [`Asynchronous::wait_ready`] of a device that has it.
pub(crate) fn wait_ready<D: Device>(device: &D, tensor: &D::Tensor) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.wait_ready(tensor))
}

/// [`Asynchronous::flush`] of a device that has it.
pub(crate) fn flush<D: Device>(device: &D) -> Result<()> {
    device.asynchronous().map_or(Ok(()), |device| device.flush())
}

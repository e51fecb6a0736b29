//! The interface of the kernels that a program has. Its table of kinds implements it, and all that
//! computes on devices is generic over it.

use std::fmt::Debug;

use anyhow::Result;

use super::backend::{Backend, Compute};
use super::kind::DeviceKind;
use super::numbers::Numbers;

/// The kernels of an open device, of any kind that a program has. Clones share the device.
pub trait AnyKernels: Clone + Debug + Send + Sync + 'static {
    /// Returns the functions that find and open devices of a kind, if the program has it.
    fn built(kind: DeviceKind) -> Option<Built<Self>>;

    /// Returns the properties of the device.
    fn backend(&self) -> &dyn Backend;

    /// Makes the device fill memory with NaN before it is written, if it can.
    fn poisoned(self) -> Self;

    /// Makes the device use kernels that run on any device of its kind; those for some chips are
    /// tested against them.
    fn generic(self) -> Self;

    /// Runs `compute` with the kernels in `all` that are of the same kind as these: at least one.
    fn run<'k, C: Compute>(&self, all: impl Iterator<Item = &'k Self>, compute: C) -> C::Output;

    /// Returns the kernels if they are of this type.
    fn of<T: 'static>(&self) -> Option<&T> {
        self.backend().kernels().downcast_ref()
    }
}

/// Functions that find and open devices of a kind in this build.
pub struct Built<K> {
    /// Returns true if each rank has a stream of its own, so that tensors can move between devices.
    pub has_streams: fn() -> bool,
    /// Lists the devices of this machine, each in one or more lines that begin with the name for
    /// `--device`.
    pub list: fn() -> Result<Vec<String>>,
    /// Returns the number of the device for the `local`-th worker of a machine, if devices have
    /// numbers.
    pub number: fn(usize) -> Result<Option<usize>>,
    /// Opens the device of this number.
    pub open: fn(usize, Numbers) -> Result<K>,
}

/// Names the kernels with which a program opens devices. A program implements it once, for
/// [`Device`](crate::Device), so that functions that open a device by its name can infer the type.
pub trait OpenedBy<K: AnyKernels> {}

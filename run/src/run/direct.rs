//! Training whose tensors go from device to device, and everything else over another transport.

use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::Patience;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;
use chimera_device::{AnyKernels, OpenDevice};

/// The kernels of a program, with its transport from device to device if it has one.
pub trait DirectTransport: AnyKernels {
    /// Describes the transport that a rank on this device will use.
    ///
    /// # Errors
    /// If the program or this machine has none, or the device is not of its kind.
    fn direct(device: Option<&OpenDevice<Self>>, rank: Rank) -> Result<String, Fault>;

    /// Connects a rank's device with those of its peers, does `work` there, and closes the
    /// transport. Everything but tensors goes over `comm`. Another thread calls `why_over` to learn
    /// whether the job has failed.
    ///
    /// # Errors
    /// As [`direct`](DirectTransport::direct), and those of the transport and of `work`.
    fn over_direct<W: OnTransport>(
        device: &OpenDevice<Self>,
        comm: &mut dyn Comm<Host>,
        patience: Patience,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        work: W,
    ) -> Result<W::Output, Fault>;
}

/// The work of a rank on its device, over a transport of that device's tensors.
pub trait OnTransport {
    /// The result of the work.
    type Output;

    /// Does it.
    ///
    /// # Errors
    /// Fails with the fault that ends the run.
    fn on<L: Layers>(
        self,
        kernels: L,
        comm: &mut dyn Comm<L::Tensor>,
    ) -> Result<Self::Output, Fault>;
}

//! Training whose tensors go from device to device, and everything else over another transport.

use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::{Job, Patience};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;
use chimera_device::{AnyKernels, OpenDevice};

use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::Watch;
use crate::run::survivor::Survivor;
use crate::run::{Run, Transformer, compute_threads};

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
    /// Its result.
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

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Trains the row of the rank of `comm`, on its device.
    pub(crate) fn train_over_nccl<'r>(
        &'r self,
        job: Job<'r>,
        device: &OpenDevice<K>,
        comm: &mut dyn Comm<Host>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, u32>,
    ) -> Result<RankTrained, Fault> {
        let patience = self.config().patience();
        K::over_direct(device, comm, patience, why_over, Training { run: self, job, watch })
    }

    /// Describes the NCCL that the run will use.
    ///
    /// # Errors
    /// If this machine has no NCCL, or this rank no GPU.
    pub fn nccl(&self, rank: Rank) -> Result<String, Fault> {
        K::direct(self.devices().by_rank().first(), rank)
    }
}

/// The training of a rank. This transport does not survive deaths.
struct Training<'r, 'w, K> {
    run: &'r Run<Transformer<K>>,
    job: Job<'r>,
    watch: &'w Watch<'r, u32>,
}

impl<K: DirectTransport> OnTransport for Training<'_, '_, K> {
    type Output = RankTrained;

    fn on<L: Layers>(
        self,
        kernels: L,
        comm: &mut dyn Comm<L::Tensor>,
    ) -> Result<RankTrained, Fault> {
        let Training { run, job, watch } = self;
        let pool = compute_threads(run.config().devices.threads, comm.rank())?;
        let survivor = &mut Survivor::default();
        pool.install(|| run.train_with(job, kernels, comm, watch, survivor))
    }
}

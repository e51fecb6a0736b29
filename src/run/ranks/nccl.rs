//! Runs whose tensors go from GPU to GPU over NCCL, and everything else over another transport.

use std::sync::Arc;
use std::time::Instant;

use chimera_backend_cuda::{Gpu, cuda::Cuda};
use chimera_comm_nccl::{Library, Nccl};
use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::Job;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::device::OpenDevice;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::Watch;
use crate::run::survivor::Survivor;
use crate::run::{Run, compute_threads};

impl Run {
    /// Trains the row of the rank of `comm`, on its GPU.
    pub(crate) fn train_over_nccl<'r>(
        &'r self,
        job: Job<'r>,
        device: &OpenDevice,
        comm: &mut dyn Comm<Host>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, u32>,
    ) -> Result<RankTrained, Fault> {
        let rank = comm.rank();
        let gpu = gpu(device, rank)?;
        let library = open(rank)?;
        let on_wire = |error: CommError| error.into_fault(rank);
        let patience = self.config().patience();
        let nccl = Nccl::start(Arc::new(library), &gpu, comm, patience, why_over);
        let mut nccl = nccl.map_err(on_wire)?;
        let pool = compute_threads(self.config().devices.threads, rank)?;
        let survivor = &mut Survivor::default(); // this transport does not survive deaths
        let trained = pool.install(|| self.train_with(job, gpu, &mut nccl, watch, survivor))?;
        nccl.close(Instant::now() + patience.later).map_err(on_wire)?;
        Ok(trained)
    }

    /// Describes the NCCL that the run will use.
    ///
    /// # Errors
    /// If this machine has no NCCL, or this rank no GPU.
    pub fn nccl(&self, rank: Rank) -> Result<String, Fault> {
        let device = self.devices().by_rank().first();
        device.map(|device| gpu(device, rank)).transpose()?;
        let version = open(rank)?.version();
        version.map_err(|reason| Fault::new(Class::Usage, rank, reason))
    }
}

fn open(rank: Rank) -> Result<Library, Fault> {
    Library::open().map_err(|reason| Fault::new(Class::Usage, rank, reason))
}

fn gpu(device: &OpenDevice, rank: Rank) -> Result<Gpu<Cuda>, Fault> {
    let none = || {
        let name = device.name();
        let message = format!("NCCL is for GPUs of CUDA, not for {name}: choose --device cuda");
        Fault::new(Class::Usage, rank, message)
    };
    device.kernels().cloned().ok_or_else(none)
}

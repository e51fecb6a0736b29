//! NCCL as the transport from GPU to GPU.

use std::sync::Arc;
use std::time::Instant;

use chimera_backend_cuda::{Gpu, cuda::Cuda};
use chimera_comm_nccl::{Library, Nccl};
use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::Patience;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_run::run::{DirectTransport, OnTransport};

use crate::device::{Kernels, OpenDevice};

impl DirectTransport for Kernels {
    fn direct(device: Option<&OpenDevice>, rank: Rank) -> Result<String, Fault> {
        device.map(|device| gpu(device, rank)).transpose()?;
        let version = open(rank)?.version();
        version.map_err(|reason| Fault::new(Class::Usage, rank, reason))
    }

    fn over_direct<W: OnTransport>(
        device: &OpenDevice,
        comm: &mut dyn Comm<Host>,
        patience: Patience,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        work: W,
    ) -> Result<W::Output, Fault> {
        let rank = comm.rank();
        let gpu = gpu(device, rank)?;
        let library = open(rank)?;
        let on_wire = |error: CommError| error.into_fault(rank);
        let nccl = Nccl::start(Arc::new(library), &gpu, comm, patience, why_over);
        let mut nccl = nccl.map_err(on_wire)?;
        let done = work.on(gpu, &mut nccl)?;
        nccl.close(Instant::now() + patience.later).map_err(on_wire)?;
        Ok(done)
    }
}

fn open(rank: Rank) -> Result<Library, Fault> {
    Library::open().map_err(|reason| Fault::new(Class::Usage, rank, reason))
}

fn gpu(device: &OpenDevice, rank: Rank) -> Result<Gpu<Cuda>, Fault> {
    let none = || {
        let name = device.name();
        let message = format!("NCCL is for CUDA GPUs, not for {name}: choose --device cuda");
        Fault::new(Class::Usage, rank, message)
    };
    device.kernels().cloned().ok_or_else(none)
}

//! Stands in for `nccl` in a build without it, which refuses that transport before a run is prepared.

use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::Patience;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_run::run::{DirectTransport, OnTransport};

use crate::device::{Kernels, OpenDevice};

impl DirectTransport for Kernels {
    fn direct(_: Option<&OpenDevice>, rank: Rank) -> Result<String, Fault> {
        Err(not_built(rank))
    }

    fn over_direct<W: OnTransport>(
        _: &OpenDevice,
        comm: &mut dyn Comm<Host>,
        _: Patience,
        _: impl Fn() -> Option<CommError> + Send + 'static,
        _: W,
    ) -> Result<W::Output, Fault> {
        Err(not_built(comm.rank()))
    }
}

fn not_built(rank: Rank) -> Fault {
    Fault::new(Class::Usage, rank, "this build has no NCCL: choose another transport")
}

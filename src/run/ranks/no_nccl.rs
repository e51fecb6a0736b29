//! Stands in for `nccl` in a build without it, which refuses that transport before a run is prepared.

use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::Job;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::device::OpenDevice;
use crate::run::Run;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::Watch;

impl Run {
    /// Refuses to train over NCCL.
    pub(crate) fn train_over_nccl(
        &self,
        _: Job<'_>,
        _: &OpenDevice,
        comm: &mut dyn Comm<Host>,
        _: impl Fn() -> Option<CommError> + Send + 'static,
        _: &Watch<'_, u32>,
    ) -> Result<RankTrained, Fault> {
        Err(not_built(comm.rank()))
    }

    /// Refuses to describe NCCL.
    ///
    /// # Errors
    /// Always.
    pub fn nccl(&self, rank: Rank) -> Result<String, Fault> {
        Err(not_built(rank))
    }
}

fn not_built(rank: Rank) -> Fault {
    Fault::new(Class::Usage, rank, "this build has no NCCL: choose another transport")
}

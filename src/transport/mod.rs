//! The transports in this build.

#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
mod nccl;

use anyhow::Result;
use chimera_run::run::launch::{self, Built};

use crate::settings::{Survive, Transport};

/// Returns whether ranks are processes over this transport, and the reason. Ranks that are to
/// `survive` deaths are processes, and a replacement for a dead rank is started by itself.
///
/// # Errors
/// If they are, and this build has no MPI, or no NCCL where that is wanted; if they are not, but
/// should survive deaths.
pub fn choose(transport: Transport, survive: Survive) -> Result<(bool, String)> {
    let built = Built { mpi: cfg!(feature = "mpi"), nccl: cfg!(feature = "nccl") };
    launch::choose(transport, survive, built)
}

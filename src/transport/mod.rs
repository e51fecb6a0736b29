//! The transports in this build.

#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
mod nccl;

use anyhow::Result;
pub use chimera_run::run::launch::Over;
use chimera_run::run::launch::{self, Built};

use crate::settings::{Survive, Transport};

/// Returns the kind of ranks in this build, and the reason for it: [`launch::choose`].
///
/// # Errors
/// As those of that function.
pub fn choose(transport: Transport, survive: Survive) -> Result<(Over, String)> {
    let built = Built {
        mpi: cfg!(feature = "mpi"),
        nccl: cfg!(feature = "nccl"),
        quic: cfg!(feature = "quic"),
    };
    launch::choose(transport, survive, built)
}

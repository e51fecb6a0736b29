//! Replaces `ranks` in a build whose ranks are always threads.

use anyhow::{Result, bail};
use chimera_core::comm::{Comm, Host};
use chimera_core::fault::Fault;

use super::Train;
use crate::settings::Config;
use crate::transport::Over;

/// A function to run on all ranks, with the transport and its name; rank 0 returns a result.
pub(crate) type RankWork<'w, T> =
    dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, Fault> + 'w;

/// Never called: such a build refuses other transports.
pub(crate) fn with<T>(_: usize, _: &RankWork<'_, T>) -> Result<Option<T>> {
    bail!("this build has neither MPI nor QUIC")
}

/// Never called: such a build refuses other transports.
pub(crate) fn run(_: &Train, _: Result<Config>, _: Over, why: &str) -> Result<()> {
    bail!("this build has neither MPI nor QUIC ({why})")
}

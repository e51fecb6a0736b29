//! Replaces `ranks` in a build without MPI.

use anyhow::{Result, bail};
use chimera_core::comm::{Comm, Host};
use chimera_core::fault::Fault;

use super::Train;
use crate::settings::Config;

/// A function to run on all ranks, with the transport and its name; rank 0 returns a result.
pub(crate) type RankWork<'w, T> =
    dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, Fault> + 'w;

/// Never called: a build without MPI refuses that transport.
pub(crate) fn with<T>(_: &RankWork<'_, T>) -> Result<Option<T>> {
    bail!("this build has no MPI")
}

/// Never called: a build without MPI refuses that transport.
pub(crate) fn run(_: &Train, _: Result<Config>, why: &str) -> Result<()> {
    bail!("this build has no MPI ({why})")
}

//! In place of `ranks`, in a build without MPI.

use anyhow::{Result, bail};
use chimera::core::comm::{Comm, CommError, Host};
use chimera::settings::Config;

use super::train::Train;

/// What ranks do with a transport of this name; rank 0 has a result.
pub(super) type Work<T> = dyn Fn(&mut dyn Comm<Host>, &str) -> Result<Option<T>, CommError>;

/// Never called: a build without MPI refuses that transport.
pub(super) fn with<T>(_: &Work<T>) -> Result<Option<T>> {
    bail!("this build has no MPI")
}

/// Never called either.
pub(super) fn run(_: &Train, _: Result<Config>, why: &str) -> Result<()> {
    bail!("this build has no MPI ({why})")
}

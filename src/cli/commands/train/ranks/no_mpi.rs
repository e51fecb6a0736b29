//! Replaces `mpi` in a build without MPI, which refuses that transport before.

use anyhow::{Result, bail};

use super::{RankWork, Train};
use crate::settings::Config;

pub(crate) fn with<T>(_: usize, _: &RankWork<'_, T>) -> Result<Option<T>> {
    bail!("this build has no MPI")
}

pub(super) fn run(_: &Train, _: Result<Config>, why: &str) -> Result<()> {
    bail!("this build has no MPI ({why})")
}

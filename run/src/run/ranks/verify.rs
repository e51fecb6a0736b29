//! The checkpoint that ranks in processes continue from: each of them verifies a part of its files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use chimera_core::comm::Endpoint;
use chimera_core::fault::Fault;
use chimera_formats::checkpoint::{Checkpoint, Unusable};
use chimera_settings::Config;

use crate::run::{Place, share};

/// Returns on all ranks the result of [`Place::checkpoint`] on rank 0, which has the place. A
/// checkpoint that any of them finds damaged is not used. The other ranks find it where `local` says.
///
/// # Errors
/// Errors of [`Place::checkpoint`], on rank 0, and a [`Fault`] if a rank is lost.
pub fn checkpoint_as(
    config: &Config,
    comm: &mut impl Endpoint,
    place: Option<&Place>,
    local: &dyn Fn(&Path) -> PathBuf,
    tell: &dyn Fn(&str),
) -> Result<Option<Checkpoint>> {
    let patience = config.patience().first_step;
    let Some(place) = place else {
        let mut last = None;
        while let Some(path) = named(comm, None, patience)? {
            last = open(comm, &local(&path), patience)?.ok();
        }
        return Ok(last);
    };
    let found = place.checkpoint(config, tell, &mut |path| {
        named(comm, Some(path), patience)?;
        Ok(open(comm, path, patience)??)
    });
    if !found.as_ref().is_err_and(|error| error.is::<Fault>()) {
        named(comm, None, patience)?; // ends the wait of the other ranks
    }
    found
}

/// Returns the checkpoint that all are to open, as rank 0 names it; `None` if there are no more.
fn named(
    comm: &mut impl Endpoint,
    path: Option<&Path>,
    patience: Duration,
) -> Result<Option<PathBuf>, Fault> {
    Ok(share(comm, &path.map(Path::to_path_buf), patience)?.into_iter().next().flatten())
}

/// Opens a part of the checkpoint; the result is the same on all ranks.
fn open(
    comm: &mut impl Endpoint,
    path: &Path,
    patience: Duration,
) -> Result<Result<Checkpoint, Unusable>, Fault> {
    let (rank, n_ranks) = (comm.rank().index(), comm.n_ranks() as usize);
    let opened = Checkpoint::open_part(path, rank, n_ranks);
    let all = share(comm, &opened.as_ref().err().cloned(), patience)?;
    // An error of reading goes before damage: the checkpoint may be sound, and nothing is put aside then.
    let unusable = all.into_iter().flatten().min_by_key(Unusable::is_damage);
    Ok(unusable.map_or(opened, Err))
}

//! What the first of the ranks does beside training, whichever rank that is now.

use anyhow::{Context, Result};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use super::Surviving;
use crate::cli::commands::train::telling::Telling;
use crate::cli::commands::train::{Train, listen};
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::terminal::progress::Say;
use crate::observe::Prometheus;
use crate::run::{Folder, Place, Run, Trained};

/// The file in the folder of a run that lets processes take the place of ranks that are missing.
pub(super) const REJOIN: &str = "rejoin";

/// What rank 0 has beside the others.
pub(super) struct Root<'r, 't> {
    pub(super) telling: &'r mut Telling<'t>,
    pub(super) say: &'r Say,
}

impl Root<'_, '_> {
    pub(super) fn conclude(&mut self, train: &Train, run: &Run, trained: Trained) -> Result<()> {
        let (folder, seconds) = self.telling.end();
        train.conclude(run, folder, (trained, seconds), self.say)
    }
}

impl Surviving<'_> {
    /// Takes over what a dead rank 0 did beside training: what comes after the last finished step is gone through again.
    pub(super) fn take_over(&mut self, run: &Run) -> Result<(Folder, Option<Prometheus>)> {
        let folder = self.known.folder.get().cloned().context("the run has no folder")?;
        let ahead = self.furthest.filter(|_| self.survivor.joins).map(|next| next - 1);
        let place = Place::take_over(folder)?;
        let prometheus = listen(run.config())?;
        let first = ahead.unwrap_or(run.first_step());
        let folder = place.begin(run.config(), first, &warn)?;
        self.survivor.lead(first);
        self.stop.concerns(run, folder.path());
        Ok((folder, prometheus))
    }
}

/// What makes all ranks meet again as a death does.
pub(super) fn meet_again(me: Rank) -> Fault {
    let fault =
        Fault::new(Class::PeerLost, me, "processes take the place of the ranks that are missing");
    Fault { peer: Some(me), ..fault }
}

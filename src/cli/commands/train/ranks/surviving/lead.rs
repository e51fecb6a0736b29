//! Duties of the first rank besides training, whichever rank that is.

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

/// A file in the folder of a run that requests new processes in place of missing ranks.
pub(super) const REJOIN: &str = "rejoin";

/// The outputs of the leading rank.
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
    /// Takes over from a dead rank 0. Everything after the last finished step is repeated.
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

/// A fault that makes all ranks meet again, as a death does.
pub(super) fn meet_again(me: Rank) -> Fault {
    let fault =
        Fault::new(Class::PeerLost, me, "processes take the place of the ranks that are missing");
    Fault { peer: Some(me), ..fault }
}

//! Duties of the first rank besides training, whichever rank that is.

use anyhow::{Context, Result};
use chimera_core::comm::{Meeting, ProcessRendezvous};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use super::met::Met;
use super::{Ended, Surviving};
use crate::run::process::{Callbacks, Leader, RunOf};
use crate::run::{Folder, Place};

/// A file in the folder of a run that requests new processes in place of missing ranks.
pub const REJOIN: &str = "rejoin";

impl<P: Callbacks> Surviving<'_, P> {
    /// Acts as rank 0 until the run is over (`None`), or until a lower rank leads, after a meeting
    /// of all.
    pub(super) fn lead<M: ProcessRendezvous>(
        &mut self,
        meetings: &mut M,
        run: &RunOf<P>,
        (mut folder, outputs): (Folder, P::Outputs),
        met: Met<M::End>,
    ) -> Result<Option<Meeting<M::End>>> {
        let (program, path) = (self.program, folder.path().to_path_buf());
        let ended = match program.lead(run, &mut folder, &outputs) {
            Ok(mut leader) => {
                let went_on = |rank: &mut Self, met: &mut Met<M::End>| {
                    rank.go_on(run, Some(&mut leader), met)
                };
                match self.until(meetings, Some(met), true, went_on) {
                    Ok(Ended::Led(meeting)) => {
                        leader.end();
                        return Ok(Some(meeting));
                    }
                    ended => ended.map(drop),
                }
            }
            Err(error) => Err(self.failed(met.comm, error)),
        };
        program.close(run, &path, &ended);
        ended.map(|()| None)
    }

    /// Takes over from a dead rank 0. Everything after the last finished step is repeated.
    pub(super) fn take_over(&mut self, run: &RunOf<P>) -> Result<(Folder, P::Outputs)> {
        let folder = self.known.folder.get().cloned().context("the run has no folder")?;
        let ahead = self.furthest.filter(|_| self.survivor.joins).map(|next| next - 1);
        let place = Place::take_over(folder)?;
        let outputs = self.program.open(run.config())?;
        let first = ahead.unwrap_or(run.first_step());
        let folder = place.begin(run.config(), first, &self.known.console.warn)?;
        self.survivor.lead(first);
        self.program.begun(run, folder.path());
        Ok((folder, outputs))
    }
}

/// A fault that makes all ranks meet again, as a death does.
pub(super) fn meet_again(me: Rank) -> Fault {
    let fault =
        Fault::new(Class::PeerLost, me, "processes take the place of the ranks that are missing");
    Fault { peer: Some(me), ..fault }
}

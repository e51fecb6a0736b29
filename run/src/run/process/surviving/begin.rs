//! The beginning of a rank: together with all others, or alone if they have begun.

use anyhow::{Context, Result};
use chimera_core::comm::Process;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, listed};
use chimera_settings::{Evict, Survive};

use super::Surviving;
use super::met::Met;
use crate::run::Run;
use crate::run::launch::Launch;
use crate::run::process::shutdown::ROOT;
use crate::run::process::start_up::{ReadyRun, saving, start_up};
use crate::run::process::{Callbacks, Life, RunOf};

impl<P: Callbacks> Surviving<'_, P> {
    /// Prepares a run for training: together with all other ranks, or alone if they have begun.
    pub(super) fn begin<C: Process>(&mut self, met: &mut Met<C>) -> Result<Option<ReadyRun<P>>> {
        let seat = met.seat();
        let Met { comm, all, present } = met;
        let (program, stop, known) = (self.program, self.stop, self.known);
        let life = Life { program, control: comm.control(), stop, known };
        let folder = all.iter().find_map(|standing| standing.folder.clone());
        let Some(beginning) = all.iter().find_map(|standing| standing.beginning.clone()) else {
            if let Some(why) = self.too_few(present) {
                return Err(Fault::new(Class::PeerLost, comm.rank(), why).into());
            }
            if let Some(why) = self.cannot_evict(&life.control.alone()) {
                return Err(Fault::new(Class::Usage, comm.rank(), why).into());
            }
            let mut wrapped = program.wrap(comm);
            return start_up(&life, Ok(self.config.clone()), &mut *wrapped, seat, folder);
        };
        let folder = folder.context("a run without a folder has begun")?;
        let own = self.known.folder.get().cloned();
        let folder = own.unwrap_or_else(|| program.local(&folder));
        let beginning = beginning.at(|path| program.local(path));
        let _ = self.known.folder.set(folder.clone());
        let mut run: RunOf<P> = Run::prepare_again(self.config.clone(), &beginning, seat)?;
        run.join(&beginning, self.survivor.joins)?;
        saving(&mut run, &life, &folder);
        let root = (seat.rank == ROOT).then(|| self.take_over(&run)).transpose()?;
        Ok(Some(ReadyRun { run, root }))
    }

    /// Returns the reason why a run cannot begin with these ranks, if there is one.
    fn too_few(&self, present: &[Rank]) -> Option<String> {
        let n_ranks = self.config.schedule.width.saturating_mul(self.config.schedule.depth);
        let missing = (0..n_ranks as u32).map(Rank).find(|rank| !present.contains(rank));
        // If too few ranks were started, the start-up reports that.
        let n_started = Launch::found().map_or(n_ranks, |launch| launch.n_ranks as usize);
        let has_died = self.config.devices.survive == Survive::Narrow && present.len() < n_started;
        let missing = missing.filter(|_| has_died)?;
        Some(format!(
            "{missing} died before the run began, which needs all {n_ranks} ranks: start again"
        ))
    }

    /// Returns the reason why stalled ranks cannot be killed, if there is one.
    fn cannot_evict(&self, alone: &[Rank]) -> Option<String> {
        let is_evicting = self.config.devices.evict == Evict::Stalled && !alone.is_empty();
        is_evicting.then(|| {
            format!(
                "evict: no other rank runs on the host of {}, and only one that does could end it: start at least two ranks on \
                 each host, or leave evict out",
                listed(alone)
            )
        })
    }
}

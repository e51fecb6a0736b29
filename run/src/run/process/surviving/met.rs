//! A meeting of ranks whose run survives deaths: the progress of each rank, and the missing ranks.

use std::mem::take;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::Result;
use chimera_core::analyze::simulate;
use chimera_core::comm::{Endpoint, Meeting, Process, ProcessRendezvous};
use chimera_core::costs::UniformCosts;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, listed};
use chimera_core::program::Program;
use chimera_core::render::report::named;
use serde::{Deserialize, Serialize};

use super::Surviving;
use crate::run::launch::Launch;
use crate::run::process::Callbacks;
use crate::run::process::shutdown::ROOT;
use crate::run::{Beginning, Fewer, Run, Seat, Subject, host_name, share};

/// The most meetings in a row without a finished step between them; more would not help.
const MOST_IN_VAIN: u32 = 10;

/// The progress of a rank at a meeting.
#[derive(Serialize, Deserialize, Clone)]
pub(super) struct Standing {
    pub(super) host: String,
    pub(super) beginning: Option<Beginning>,
    pub(super) folder: Option<PathBuf>,
    /// The next step that it will train, if it has weights for it.
    pub(super) next: Option<u64>,
    pub(super) n_in_vain: u32,
}

/// A meeting: this rank's end of the transport, and the progress of all ranks that are present.
pub(super) struct Met<C> {
    pub(super) comm: C,
    pub(super) all: Vec<Standing>,
    /// The ranks of the run that are present, in ascending order.
    pub(super) present: Vec<Rank>,
}

impl<C: Process> Met<C> {
    /// The place of this rank among those of its host.
    pub(super) fn seat(&self) -> Seat {
        let rank = self.comm.rank();
        let host = &self.all[rank.index()].host;
        let n_local =
            |all: &[Standing]| all.iter().filter(|standing| standing.host == *host).count();
        Seat {
            rank,
            n_ranks: self.comm.n_ranks(),
            local: n_local(&self.all[..rank.index()]),
            n_local: n_local(&self.all) as u32,
        }
    }
}

impl<P: Callbacks> Surviving<'_, P> {
    /// Meets all ranks; returns `None` if they have finished without this one.
    pub(super) fn meet<M: ProcessRendezvous>(
        &mut self,
        meetings: &mut M,
    ) -> Result<Option<Meeting<M::End>>> {
        let me = meetings.rank();
        if take(&mut self.rejoins) {
            meetings.replace_missing();
        }
        let met = meetings.meet().map_err(|e| anyhow::Error::from(e.into_fault(me)));
        let met = met.inspect_err(|error| self.told(me, error))?;
        if let Some(meeting) = &met {
            self.leads.store(meeting.comm.rank() == ROOT, Ordering::Relaxed);
        }
        Ok(met)
    }

    /// Receives the progress of the ranks that have met; returns `None` if one of them has died
    /// since.
    pub(super) fn hear<C: Process>(&mut self, meeting: Meeting<C>) -> Result<Option<Met<C>>> {
        let Meeting { mut comm, present, .. } = meeting;
        let me = present[comm.rank().index()];
        let own = Standing {
            host: host_of(me),
            beginning: self.beginning.clone(),
            folder: self.known.folder.get().cloned(),
            next: self.survivor.next(),
            n_in_vain: self.n_in_vain,
        };
        match share(&mut comm, &own, self.config.patience().first_step) {
            Ok(all) => match self.take_stock(me, &all) {
                Ok(()) => Ok(Some(Met { comm, all, present })),
                Err(error) => Err(self.failed(comm, error)),
            },
            Err(fault) if fault.is_death() => {
                comm.abort(&fault);
                Ok(None)
            }
            Err(fault) => Err(self.failed(comm, fault.into())),
        }
    }

    /// Takes in the progress of the others.
    fn take_stock(&mut self, me: Rank, all: &[Standing]) -> Result<()> {
        let first = all.iter().find_map(|standing| Some(standing.beginning.as_ref()?.first_step));
        let furthest = all.iter().filter_map(|standing| standing.next).max();
        self.survivor.joins = furthest > first;
        self.n_in_vain = if furthest > self.furthest {
            0
        } else {
            1 + all.iter().map(|standing| standing.n_in_vain).max().unwrap_or(0)
        };
        self.furthest = furthest;
        if self.n_in_vain <= MOST_IN_VAIN {
            return Ok(());
        }
        let message = format!(
            "ranks have died {MOST_IN_VAIN} times without a finished step in between: see their earlier messages"
        );
        Err(Fault::new(Class::PeerLost, me, message).into())
    }
}

/// Returns the name of this machine. A rank that is alone on its machine has one of its own, since
/// machines of different owners may have equal names.
fn host_of(me: Rank) -> String {
    let is_alone = Launch::found().is_some_and(|launch| launch.n_local == Some(1));
    if is_alone { format!("{} of {me}", host_name()) } else { host_name() }
}

/// Describes the missing ranks, those that continue, and their program.
pub(super) fn goes_on<S: Subject>(run: &Run<S>, fewer: &Fewer) -> String {
    let n_ranks = (run.config().schedule.width * run.config().schedule.depth) as u32;
    let missing: Vec<Rank> =
        (0..n_ranks).map(Rank).filter(|rank| !fewer.present.contains(rank)).collect();
    let step = |program: &Program| {
        let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(program.units_per_micro());
        simulate(program, &costs).makespan()
    };
    format!(
        "{} died: {} of {n_ranks} ranks train on, by {} (proven; by simulation a step takes {:.2} times as long)",
        listed(&missing),
        fewer.present.len(),
        named(&fewer.program),
        step(&fewer.program) / step(run.program()),
    )
}

//! Stopping within a step, which is then discarded.
//!
//! With the barrier, no rank changes a weight before the step sync, and the sync needs every rank.
//! A rank that learns before its own sync that the run is to stop therefore leaves its row, and
//! declares in the sync that it discards the step. All ranks then do the same: ranks that wait for
//! a message or a sum that will not come learn of the request too. Weights, moments and counts
//! remain those of the last whole step. Messages that are no longer received stay where they are;
//! no later message has their tags.

use std::sync::atomic::Ordering;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::WorkerId;

use crate::comm::{Comm, Liveness, Position, all_gather};
use crate::device::Device;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::sync::agreement::{Record, Totals};
use crate::fault::Fault;

/// Length of a step in seconds from which ranks ask each other whether to stop before the next.
const LONG: f64 = 1.0;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Returns true if this rank knows that the run is to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.job.stop.load(Ordering::Relaxed) || self.comm.stop_requested() == Some(true)
    }

    /// Returns true if a step can be discarded: no weight changes before the step sync, all ranks
    /// can be notified, and no library's sum would wait for ranks that never begin it.
    pub(crate) fn can_discard(&self) -> bool {
        self.job.program.has_barrier() && self.is_interruptible
    }

    /// Returns true if the transport lets ranks leave a step.
    pub(crate) fn is_interruptible(&mut self) -> bool {
        let (program, width) = (self.job.program, self.job.width);
        let mut buckets = self.stages.buckets();
        self.comm.stop_requested().is_some()
            && !buckets.any(|bucket| self.comm.reducer(&program.replicas(width, bucket)).is_some())
    }

    /// Returns true if the current step is to be discarded, before this rank's step sync.
    pub(crate) fn is_to_discard(&mut self) -> bool {
        if !self.can_discard() {
            return false;
        }
        if self.job.stop.load(Ordering::Relaxed) && !self.has_requested_stop {
            self.has_requested_stop = true;
            self.comm.request_stop();
        }
        self.comm.stop_requested() == Some(true)
    }

    /// Discards the current step together with all other ranks; its sync is at `sync_at`.
    pub(crate) fn discard(&mut self, worker: WorkerId, sync_at: usize) -> Result<(), Fault> {
        let (step, instr) = (self.steps.first, sync_at as u32);
        self.report(Position::At { step, instr });
        let steps = vec![Totals::default(); self.steps.squared_norms.len()];
        let record = Record { steps, stop: true, discards: true, ..Record::default() };
        self.gather_records(worker, &record)?;
        self.sync.discard();
        self.reductions.clear();
        Ok(())
    }

    /// Returns true if some rank knows that the run is to stop. Called before a program that must
    /// be finished once begun, since a request after the last step sync would otherwise wait for
    /// all of it. Short programs are not worth the exchange.
    pub(crate) fn ends_here(&mut self) -> Result<bool, Fault> {
        let is_long = self.sync.agreed().is_none_or(|agreed| agreed.span_s >= LONG);
        if self.can_discard() || !is_long {
            return Ok(false);
        }
        let (own, deadline) = ([u8::from(self.is_stopping())], self.deadline());
        let all = all_gather(&mut self.comm, &own, deadline);
        let all = self.on_wait("the start of a step", Need::Other, all)?;
        Ok(all.iter().any(|flag| flag == &[1]))
    }
}

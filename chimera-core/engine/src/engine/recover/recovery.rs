//! Recovery after a rank has died: all ranks come to the same step, and the replacement gets its
//! state from the replicas of what the dead rank held.
//!
//! The step sync is the commit point. With the barrier, no rank changes a weight before its sync is
//! done, and a sync is done only after every rank has all its sums. If any living rank has the sync
//! of a step, all of them can make their updates from its records. If none has, no weight has
//! changed, and the step is computed again, to the same bits.

use std::collections::BTreeMap;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::interp::Machine;
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::update::Update;
use serde::Serialize;

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::engine::recover::resume_point::{ResumePoint, lost_at};
use crate::engine::report::timing::Since;
use crate::engine::startup::compare::check_fields;
use crate::engine::state::held_stage::copy;
use crate::engine::state::program_change::Moved;
use crate::engine::state::rank_state::StageOn;
use crate::engine::state::recoveries::{Recoveries, Standing};
use crate::engine::state::shadows::{Committed, Shadows, Slot};
use crate::engine::sync::agreement::Agreed;
use crate::engine::{Job, StepReport, Training, Worker};
use crate::fault::{Class, Fault};

/// The result of a recovery, common to all ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Recovered {
    /// The step to train next, on every rank.
    pub next: u64,
    /// Ranks that replaced dead ones.
    pub replaced: Vec<Rank>,
    /// The report of the last committed step, even if it has been reported before.
    pub last: Option<StepReport>,
}

/// The standings of all ranks when they met, and the step that those with state have reached since.
struct Settled {
    all: Vec<Standing>,
    /// Ranks without state.
    replaced: Vec<Rank>,
    target: u64,
    /// Ranks that have copies of stages that no living rank holds.
    keepers: BTreeMap<StageId, Rank>,
}

/// Returns why dead ranks of a training cannot be replaced from replicas; `None` if they can.
pub fn unsurvivable(program: &Program, training: &Training) -> Option<String> {
    let why = if program.window().update() != Update::Flush {
        "its stages are updated on their own: choose a synchronous schedule, and border step"
    } else if !program.has_barrier() {
        "weights change before all ranks have their sums: leave check-finite true, or clip"
    } else if training.shard_weights {
        "each shard of the weights is held once: leave shard_weights (zero 3) out"
    } else if training.shard_optimizer && training.shadow_every == 0 {
        "each part of a sharded optimizer is held once: leave shard-optimizer out, or choose shadow-every"
    } else if training.optimizer.preconditions() {
        "kfac's other sums are not passed on: choose another optimizer"
    } else {
        return None;
    };
    Some(format!("the death of a rank cannot be survived, since {why}"))
}

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'j, S, D, C> {
    /// Ends every wait of every rank with this cause.
    pub fn abort(&mut self, cause: &Fault) {
        self.state.comm.abort(cause);
    }

    /// Brings all ranks to one step, on a fresh transport, and continues with the program of `job`:
    /// this rank's previous one, [that of fewer ranks](chimera_schedule::lower::narrow()), or that
    /// of all ranks again. All ranks must call it. `start` is the first step of the training, for a
    /// rank that has the weights for it; `None` for a replacement of a dead rank. `stage` makes the
    /// stages that this rank has not held before.
    ///
    /// # Errors
    /// The [death](Fault::is_death) of a rank meanwhile, after which all may try again.
    /// [`Class::PeerLost`] names the stages without a living holder, and is final.
    /// [`Class::Mismatch`] if replicas differ, or settings that [are
    /// compared](Worker::compare_in_recoveries). Also, if parts of the job do not fit each other,
    /// if `stage` fails, or if a stage lacks an ability that the program needs.
    pub fn recover_with(
        &mut self,
        job: Job<'j, S::Item>,
        start: Option<u64>,
        stage: impl FnMut(StageId) -> Result<S, Fault>,
    ) -> Result<Recovered, Fault> {
        let settled = self.settle(start)?;
        self.change_program(job, stage)?;
        self.complete(settled)
    }

    /// Brings all ranks with state to the same step.
    fn settle(&mut self, start: Option<u64>) -> Result<Settled, Fault> {
        let Job { program, training, .. } = self.state.job;
        if let Some(why) = unsurvivable(program, training) {
            return Err(Fault::new(Class::Usage, self.state.comm.rank(), why));
        }
        let away_s = self.next.map(|_| self.state.timing.since.start.elapsed().as_secs_f64());
        self.next = self.next.or(start);
        let mut all = self.standings(away_s)?;
        let replaced = ranks_where(&all, |of| of.next.is_none());
        let stages: Vec<StageId> = program.rules().graph().stages().collect();
        let mut keepers = BTreeMap::new();
        let target = match ResumePoint::newest(&all, &stages, training.shard_optimizer) {
            Some(ResumePoint::Held(step)) => {
                all.iter_mut().filter(|of| !of.can_reach(step)).for_each(Standing::forget);
                self.next = all[self.state.comm.rank().index()].next;
                step
            }
            Some(ResumePoint::Copied(copies)) => {
                (all, keepers) = self.go_back(copies, all)?;
                copies.step
            }
            None => {
                let newest = all.iter().filter_map(|of| of.next).max();
                let lost = newest.filter(|_| !training.shard_optimizer);
                let lost = lost.map(|step| lost_at(&all, &stages, step)).unwrap_or_default();
                return Err(self.nothing_left(&replaced, &lost));
            }
        };
        if self.next.is_none() {
            self.state.shadows = Shadows::default(); // nobody continues from these
        }
        self.commit(&all, target)?;
        Ok(Settled { all, replaced, target, keepers })
    }

    /// Sends every rank the state that it lacks.
    fn complete(&mut self, settled: Settled) -> Result<Recovered, Fault> {
        if self.give_stages(&settled)? {
            self.all_gather("recovery", &[])?;
            self.check_replicas()?;
        }
        self.state.moved.lacking.clear();
        let Settled { all, replaced, target, .. } = settled;
        self.next = Some(target);
        let last = if self.state.sync.is_first() {
            None
        } else {
            self.reports(target.saturating_sub(1))?.pop()
        };
        self.state.recoveries.count(&all, &replaced);
        self.begin_shadows(&all, target)?;
        self.state.moved = Moved::default(); // until there are copies, an old holder may have to send again
        self.state.timing.since = Since::now();
        Ok(Recovered { next: target, replaced, last })
    }

    /// Gathers the standings of all ranks, and checks that all train the same. This rank has been
    /// without the others for `away_s` seconds, if it was in training before.
    fn standings(&mut self, away_s: Option<f64>) -> Result<Vec<Standing>, Fault> {
        let Recoveries { n, lost_s, .. } = self.state.recoveries;
        let (stages, moved) = (&self.state.stages, &self.state.moved);
        let mut has: Vec<StageId> = stages.ids().chain(moved.gone.keys().copied()).collect();
        has.retain(|stage| self.next.is_some() && !moved.lacking.contains(stage));
        let (shadows, ring) = (self.state.shadows.stages(), self.state.shadows.ring());
        let (next, slots) = (self.next, self.slots());
        let has_sums = next.is_some() && next == self.state.steps.summed;
        let is_within_update = self.state.steps.is_within_update;
        let own = Standing {
            fields: self.fields.clone(),
            next,
            has_sums,
            is_within_update,
            has,
            away_s,
            n,
            lost_s,
            slots,
            shadows,
            ring,
        };
        let own = self.written(&own)?;
        let all = self.all_gather("recovery", &own)?;
        let read = |(from, bytes): (u32, &Vec<u8>)| {
            serde_json::from_slice(bytes).map_err(|_| self.unreadable_peer(Rank(from)))
        };
        let all: Vec<Standing> = (0..).zip(&all).map(read).collect::<Result<_, _>>()?;
        let fields: Vec<_> = all.iter().map(|of| of.fields.clone()).collect();
        check_fields(self.state.comm.rank(), &fields)?;
        Ok(all)
    }

    pub(crate) fn written(&self, what: &impl Serialize) -> Result<Vec<u8>, Fault> {
        let me = self.state.comm.rank();
        serde_json::to_vec(what).map_err(|e| Fault::new(Class::Internal, me, e.to_string()))
    }

    /// Sends the sync of the last committed step to the ranks that lack it, which then make its
    /// updates. Every rank with state can reach the step after it.
    fn commit(&mut self, all: &[Standing], target: u64) -> Result<(), Fault> {
        let me = self.state.comm.rank();
        let Some(witness) = ranks_where(all, |of| of.next == Some(target)).first().copied() else {
            return Ok(());
        };
        let lacking = ranks_where(all, |of| of.next != Some(target));
        if me == witness {
            let committed = self.written(&self.committed())?;
            for to in lacking {
                let sent = self.state.comm.send_bytes(to, committed.clone());
                self.state.on_wire("recovery", sent)?;
            }
            return Ok(());
        }
        if !lacking.contains(&me) {
            return Ok(());
        }
        let deadline = self.state.deadline();
        let bytes = self.state.comm.recv_bytes(witness, deadline);
        let bytes = self.state.on_wait("recovery", Need::Other, bytes)?;
        let committed: Committed =
            serde_json::from_slice(&bytes).map_err(|_| self.unreadable_peer(witness))?;
        let n_updates = committed.n_updates;
        self.resume_from(committed, witness)?;
        match self.next {
            Some(_) => {
                self.update()?;
                self.next = Some(target);
            }
            None => self.state.steps.begin(target.saturating_sub(1), 1),
        }
        self.state.steps.n_updates = n_updates;
        Ok(())
    }

    /// Adopts what the ranks had agreed on, as reported by `from`.
    pub(crate) fn resume_from(&mut self, committed: Committed, from: Rank) -> Result<(), Fault> {
        let agreed = if committed.records.is_empty() {
            None
        } else {
            let agreed = Agreed::of(&committed.records, 1);
            Some(agreed.map_err(|_| self.unreadable_peer(from))?)
        };
        let Committed { n_skipped, n_skipped_in_a_row, skipped, records, .. } = committed;
        self.state.sync.take(agreed, records, skipped, (n_skipped, n_skipped_in_a_row));
        Ok(())
    }

    pub(crate) fn committed(&self) -> Committed {
        let sync = &self.state.sync;
        Committed {
            n_updates: self.state.steps.n_updates,
            n_skipped: sync.n_skipped(),
            n_skipped_in_a_row: sync.n_skipped_in_a_row(),
            skipped: sync.skipped().map(str::to_owned),
            records: sync.records().to_vec(),
        }
    }

    /// Makes the updates of the step with sums that this rank has.
    fn update(&mut self) -> Result<(), Fault> {
        let Worker { state, me, .. } = self;
        let row = &state.job.program.rows()[me.index()];
        row.iter().filter_map(Instr::updated).try_for_each(|bucket| state.step(*me, bucket))
    }

    /// Sends each rank the weights and optimizer state of the stages that it lacks. The sender is
    /// the first replica that has the stage, otherwise a rank that still has it or keeps a copy.
    /// Returns true if anything had to be sent.
    fn give_stages(&mut self, settled: &Settled) -> Result<bool, Fault> {
        let Settled { all, target, keepers, .. } = settled;
        let Job { program, width, .. } = self.state.job;
        let me = self.state.comm.rank();
        let has = |rank: &Rank, stage: &StageId| all[rank.index()].has.contains(stage);
        let mut given = Vec::new();
        for stage in program.rules().graph().stages() {
            let holders = program.placement().holders(width, stage).into_iter();
            let (having, lacking): (Vec<_>, Vec<_>) = holders.partition(|rank| has(rank, &stage));
            let mut others = (0..all.len() as u32).map(Rank);
            let giver = having.first().copied().or_else(|| others.find(|rank| has(rank, &stage)));
            let giver = giver.or_else(|| keepers.get(&stage).copied());
            let giver = giver.ok_or_else(|| self.nobody_has(stage, *target))?;
            given.extend(lacking.into_iter().map(|to| (stage, giver, to)));
        }
        for (stage, _, to) in given.iter().filter(|(_, giver, _)| *giver == me) {
            if has(&me, stage) {
                self.give(*stage, *to, *target)?
            } else {
                self.give_copy(*stage, *to, *target)?
            }
        }
        for (stage, giver, _) in given.iter().filter(|(.., to)| *to == me) {
            self.take(*stage, *giver, *target)?;
        }
        Ok(!given.is_empty())
    }

    fn give(&mut self, stage: StageId, to: Rank, step: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        let gone = state.moved.gone.get(&stage);
        let held = gone.unwrap_or_else(|| state.stages.held(stage));
        for (tensor, slot) in held.slots() {
            let tag = replica(step, (stage, tensor, slot));
            // The receiver updates the tensors in place.
            let Some(value) = held.value(tensor, slot).map(|value| copy(&state.device, value))
            else {
                continue;
            };
            let value = state.on_device(tag, value)?;
            let sent = state.comm.send(to, tag, value);
            state.on_wire(tag, sent)?;
        }
        Ok(())
    }

    fn take(&mut self, stage: StageId, from: Rank, step: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        for (tensor, slot) in state.stages.held(stage).slots() {
            let tag = replica(step, (stage, tensor, slot));
            let deadline = state.deadline();
            let value = state.comm.recv(from, tag, deadline);
            let value = state.on_wait(tag, Need::Other, value)?;
            let param = &state.stages.held(stage).stage.params()[tensor];
            let shape = state.job.training.optimizer.slot_shape(param, slot);
            state.check_shape(from, Some(shape), tag, &value)?;
            state.stages.held_mut(stage).put(tensor, slot, value);
        }
        Ok(())
    }

    /// The fault for stages that no living rank holds.
    fn nothing_left(&self, replaced: &[Rank], lost: &[StageId]) -> Fault {
        let list = |all: Vec<String>, none: &str| match all.as_slice() {
            [] => none.to_string(),
            all => all.join(", "),
        };
        let lost = list(lost.iter().map(StageId::to_string).collect(), "all stages");
        let ranks = list(replaced.iter().map(Rank::to_string).collect(), "ranks that are gone");
        let message = format!(
            "{lost} died with {ranks}: no living rank holds a copy. Start again from the last checkpoint"
        );
        Fault::new(Class::PeerLost, self.state.comm.rank(), message)
    }

    /// The fault for a chosen step with a stage that no rank has, which the
    /// [choice](ResumePoint::newest) rules out.
    fn nobody_has(&self, stage: StageId, step: u64) -> Fault {
        let message = format!(
            "no rank has {stage} of step {step}, from which all were to go on: an error of the recovery. Start again from the \
             last checkpoint, and report it with the log"
        );
        Fault::new(Class::Internal, self.state.comm.rank(), message)
    }

    pub(crate) fn unreadable_peer(&self, from: Rank) -> Fault {
        let message = format!("{from} sent something unreadable during the recovery");
        let fault = Fault::new(Class::Mismatch, self.state.comm.rank(), message);
        Fault { peer: Some(from), ..fault }
    }
}

/// The tag of a tensor that has replicas or copies.
pub(crate) fn replica(step: u64, (stage, tensor, slot): Slot) -> Tag {
    Tag::new(step, Payload::Replica { stage, tensor: tensor as u32, slot: slot as u32 })
}

fn ranks_where(all: &[Standing], which: impl Fn(&Standing) -> bool) -> Vec<Rank> {
    let ranks = (0..).map(Rank).zip(all);
    ranks.filter(|(_, of)| which(of)).map(|(rank, _)| rank).collect()
}

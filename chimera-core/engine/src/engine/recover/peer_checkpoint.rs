//! Copies of ranks' states in the memory of their neighbours, for state without a replica: stages
//! that are held once, and parts of a sharded optimizer.
//!
//! At a fixed interval of steps, each rank keeps a copy of its weights and optimizer state, and
//! sends one to the next rank. The messages travel beside the following step, and are received
//! before its sync. So once any rank has the sync of a step, all have the copies made before it.
//! After a death that destroyed state, all ranks go back to the last step with a copy of every
//! state, on its holder or on the next rank, and compute the later steps again, to the same bits.
//! Without a replacement for the dead rank, the living ranks switch to another program, and its
//! stages go to the ranks that hold them there.

use std::collections::BTreeMap;
use std::mem::take;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::{Rank, StageId};

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::engine::Worker;
use crate::engine::recover::recovery::replica;
use crate::engine::recover::resume_point::Copies;
use crate::engine::state::held_stage::copy;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::recoveries::Standing;
use crate::engine::state::shadows::{Shadow, Shadows, Slot};
use crate::fault::Fault;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// All tensors that this rank holds.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let stages = &self.state.stages;
        let of =
            |id| stages.held(id).slots().into_iter().map(move |(tensor, slot)| (id, tensor, slot));
        stages.ids().flat_map(of).collect()
    }

    /// Begins to keep copies among these ranks, starting with copies of the current state.
    pub(crate) fn begin_shadows(&mut self, all: &[Standing], step: u64) -> Result<(), Fault> {
        if self.state.job.training.shadow_every == 0 {
            return Ok(());
        }
        if all.len() < 2 {
            self.state.shadows = Shadows::default();
            return Ok(());
        }
        let me = self.state.comm.rank();
        let before = neighbour(me, all.len() - 1, all.len());
        // If the program has changed, ranks hold other stages than when they met.
        let own = self.written(&self.slots())?;
        let slots = self.all_gather("recovery", &own)?;
        let slots = serde_json::from_slice(&slots[before.index()]);
        let slots: Vec<Slot> = slots.map_err(|_| self.unreadable_peer(before))?;
        let shadows = &mut self.state.shadows;
        let is_other = |standing: &Standing| {
            standing.ring.as_ref().is_some_and(|ring| ring.n_ranks != all.len())
        };
        if (shadows.n_ranks, shadows.me) != (all.len(), me) || all.iter().any(is_other) {
            *shadows = Shadows { n_ranks: all.len(), me, ..Shadows::default() };
        }
        shadows.other = slots;
        self.cast_shadow(step)?;
        self.state.take_shadow()?;
        // No rank may train on, and possibly die, before all have their copies.
        self.all_gather("recovery", &[])?;
        // Older copies may be of stages that this rank no longer holds.
        self.state.shadows.kept.retain(|shadow| shadow.step == step);
        Ok(())
    }

    /// Called after a committed step. Drops older copies, and makes new ones if they are due.
    pub(crate) fn shadow(&mut self, next: u64) -> Result<(), Fault> {
        let every = self.state.job.training.shadow_every;
        let shadows = &mut self.state.shadows;
        if every == 0 || shadows.other.is_empty() {
            return Ok(());
        }
        let newest = shadows.kept.iter().map(|shadow| shadow.step).max();
        shadows.kept.retain(|shadow| Some(shadow.step) == newest);
        if next.is_multiple_of(every) { self.cast_shadow(next) } else { Ok(()) }
    }

    /// Copies the state of this rank, and sends it to the next one.
    fn cast_shadow(&mut self, step: u64) -> Result<(), Fault> {
        let committed = self.committed();
        let slots = self.slots();
        let state = &mut self.state;
        let (me, n_ranks) = (state.comm.rank(), state.shadows.n_ranks);
        let mut own = BTreeMap::new();
        for slot @ (stage, tensor, kept) in slots {
            let Some(value) = state.stages.held(stage).value(tensor, kept) else { continue };
            let value = copy(&state.device, value);
            own.insert(slot, state.on_device(shadow(step, slot), value)?);
        }
        for (slot, value) in &own {
            let tag = shadow(step, *slot);
            let sent = state.comm.send(neighbour(me, 1, n_ranks), tag, value.clone());
            state.on_wire(tag, sent)?;
        }
        let shadows = &mut state.shadows;
        // An earlier copy of this step is equal; the other rank's is kept until a new one arrives.
        let known = shadows.kept.iter().position(|shadow| shadow.step == step);
        let other = known.map(|known| shadows.kept.remove(known).other).unwrap_or_default();
        shadows.kept.push(Shadow { step, committed, own, other });
        shadows.awaited = Some(step);
        Ok(())
    }

    /// Goes back to a step. Returns the standings of all ranks there, and the ranks that have
    /// copies of stages that no living rank may hold.
    ///
    /// The part of a sharded optimizer that a dead rank had goes back to its replacement. Stages go
    /// to the ranks that are to hold them once all have the program of the living ranks.
    pub(crate) fn go_back(
        &mut self,
        copies: Copies,
        mut all: Vec<Standing>,
    ) -> Result<(Vec<Standing>, BTreeMap<StageId, Rank>), Fault> {
        let (step, me, n_ranks) = (copies.step, self.state.comm.rank(), all.len());
        let mut keepers = BTreeMap::new();
        for (rank, standing) in (0..).map(Rank).zip(&mut all) {
            let kept = copies.of(standing).map(|(_, kept)| kept);
            let own = kept.map(|kept| kept.own.clone());
            keepers.extend(kept.iter().flat_map(|kept| &kept.other).map(|s| (*s, rank)));
            standing.forget();
            standing.next = own.is_some().then_some(step);
            standing.has = own.unwrap_or_default();
        }
        let (before, after) = (neighbour(me, n_ranks - 1, n_ranks), neighbour(me, 1, n_ranks));
        let is_sharded = self.state.job.training.shard_optimizer;
        if is_sharded && all[before.index()].next.is_none() {
            self.give_shadow(step, before)?;
        }
        // From here on this rank has the declared state, even if another rank dies meanwhile.
        self.next = all[me.index()].next;
        if self.next.is_some() {
            self.restore_shadow(step)?;
        } else if is_sharded {
            self.take_shadow_back(step, after)?;
        }
        for standing in all.iter_mut().filter(|of| is_sharded && of.next.is_none()) {
            standing.has = standing.slots.iter().map(|(stage, ..)| *stage).collect();
        }
        self.state.shadows.kept.retain(|shadow| shadow.step <= step);
        Ok((all, keepers))
    }

    /// Restores the copy that this rank kept of its own state at a step.
    fn restore_shadow(&mut self, step: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        let Some(at) = state.shadows.kept.iter().position(|shadow| shadow.step == step) else {
            return Ok(());
        };
        let own = take(&mut state.shadows.kept[at].own);
        for (slot @ (stage, tensor, kept), value) in &own {
            let value = copy(&state.device, value);
            let value = state.on_device(shadow(step, *slot), value)?;
            let gone = state.moved.gone.get_mut(stage);
            let held = gone.unwrap_or_else(|| state.stages.held_mut(*stage));
            held.put(*tensor, *kept, value);
        }
        // Stages that this rank has received since then belong to a later step.
        let is_own = |stage: &StageId| own.keys().any(|(of, ..)| of == stage);
        state.moved.gone.retain(|stage, _| is_own(stage));
        state.moved.lacking = state.stages.ids().filter(|stage| !is_own(stage)).collect();
        let Shadow { own: place, committed, .. } = &mut state.shadows.kept[at];
        *place = own;
        let committed = committed.clone();
        // The present gradients belong to the previous state.
        (state.steps.n_updates, state.steps.summed) = (committed.n_updates, None);
        state.steps.is_within_update = false;
        let me = state.comm.rank();
        self.resume_from(committed, me)
    }

    /// Sends a rank this rank's copy of its state.
    fn give_shadow(&mut self, step: u64, to: Rank) -> Result<(), Fault> {
        let state = &mut self.state;
        let Some(shadow) = state.shadows.of(step) else { return Ok(()) };
        let values: Vec<_> =
            shadow.other.iter().map(|(slot, value)| (*slot, value.clone())).collect();
        for (slot, value) in values {
            let tag = replica(step, slot);
            let sent = state.comm.send(to, tag, value);
            state.on_wire(tag, sent)?;
        }
        Ok(())
    }

    /// Sends a rank this rank's copies of a stage that no living rank holds.
    pub(crate) fn give_copy(&mut self, stage: StageId, to: Rank, step: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        let Some(shadow) = state.shadows.of(step) else { return Ok(()) };
        let of_stage = shadow.other.iter().filter(|((of, ..), _)| *of == stage);
        let values: Vec<_> =
            of_stage.map(|(slot, value)| (*slot, copy(&state.device, value))).collect();
        for (slot, value) in values {
            let tag = replica(step, slot);
            let value = state.on_device(tag, value)?;
            let sent = state.comm.send(to, tag, value);
            state.on_wire(tag, sent)?;
        }
        Ok(())
    }

    /// Receives the copy of this rank's state from another rank.
    fn take_shadow_back(&mut self, step: u64, from: Rank) -> Result<(), Fault> {
        for slot @ (stage, tensor, kept) in self.slots() {
            let state = &mut self.state;
            let tag = replica(step, slot);
            let value = state.comm.recv(from, tag, state.deadline());
            let value = state.on_wait(tag, Need::Other, value)?;
            let param = &state.stages.held(stage).stage.params()[tensor];
            let shape = state.job.training.optimizer.slot_shape(param, kept);
            state.check_shape(from, Some(shape), tag, &value)?;
            let value = copy(&state.device, &value);
            let value = state.on_device(tag, value)?;
            state.stages.held_mut(stage).put(tensor, kept, value);
        }
        Ok(())
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Receives the copy of the previous rank's state, if one is on its way.
    pub(crate) fn take_shadow(&mut self) -> Result<(), Fault> {
        let Some(step) = self.shadows.awaited.take() else { return Ok(()) };
        let from = neighbour(self.comm.rank(), self.shadows.n_ranks - 1, self.shadows.n_ranks);
        let mut other = BTreeMap::new();
        for slot in self.shadows.other.clone() {
            let tag = shadow(step, slot);
            let value = self.comm.recv(from, tag, self.deadline());
            other.insert(slot, self.on_wait(tag, Need::Other, value)?);
        }
        let kept = self.shadows.kept.iter_mut().find(|shadow| shadow.step == step);
        kept.into_iter().for_each(|shadow| shadow.other = take(&mut other));
        Ok(())
    }
}

/// The rank `by` places after `rank`, cyclically.
fn neighbour(rank: Rank, by: usize, n_ranks: usize) -> Rank {
    Rank(((rank.index() + by) % n_ranks) as u32)
}

fn shadow(step: u64, (stage, tensor, slot): Slot) -> Tag {
    Tag::new(step, Payload::Shadow { stage, tensor: tensor as u32, slot: slot as u32 })
}

//! Copies of what ranks hold in the memory of their neighbours, for what no replica has: a rank that dies takes the only copy
//! of a stage that is held once, and of its part of a sharded optimizer.
//!
//! Every so many steps each rank keeps a copy of its weights and optimizer state, and sends one to the next rank. The
//! messages travel beside the step that follows, and are taken before its sync: so once any rank has the sync of a step, all
//! have the copies that were made before it. After a death that took something, all go back to the last step of which every
//! rank's copy is with itself or with the next one, and compute what came after it again, to the same bits.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use super::Worker;
use super::held::copy;
use super::recoveries::Standing;
use super::recovery::give_back;
use super::shadows::{Shadow, Shadows, Slot};
use super::state::{StageOn, State};
use crate::analyze::Need;
use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::fault::Fault;
use crate::ids::{Rank, StageId};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// Everything that this rank holds.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let stages = &self.state.stages;
        let of =
            |id| stages.held(id).slots().into_iter().map(move |(tensor, slot)| (id, tensor, slot));
        stages.ids().flat_map(of).collect()
    }

    /// Begins to keep copies among these ranks, with those of where all stand now.
    pub(super) fn begin_shadows(&mut self, all: &[Standing], step: u64) -> Result<(), Fault> {
        if self.state.job.training.shadow_every == 0 || all.len() < 2 {
            return Ok(());
        }
        let before = neighbour(self.state.comm.rank(), all.len() - 1, all.len());
        let shadows = &mut self.state.shadows;
        if shadows.n_ranks != all.len() {
            *shadows = Shadows { n_ranks: all.len(), ..Shadows::default() };
        }
        shadows.other = all[before.index()].slots.clone();
        self.cast_shadow(step)?;
        self.state.take_shadow()?;
        // Nobody trains, and dies, before all have them.
        self.all_gather("recovery", &[]).map(drop)
    }

    /// Behind a step that all ranks have the sync of: lets go of older copies, and makes those that are due.
    pub(super) fn shadow(&mut self, next: u64) -> Result<(), Fault> {
        let every = self.state.job.training.shadow_every;
        let shadows = &mut self.state.shadows;
        if every == 0 || shadows.other.is_empty() {
            return Ok(());
        }
        let newest = shadows.kept.iter().map(|shadow| shadow.step).max();
        shadows.kept.retain(|shadow| Some(shadow.step) == newest);
        if next.is_multiple_of(every) { self.cast_shadow(next) } else { Ok(()) }
    }

    /// Copies what this rank holds, and sends it to the next one.
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
        // One of the same step is of the same bits; the other rank's stays until it comes again.
        let known = shadows.kept.iter().position(|shadow| shadow.step == step);
        let other = known.map(|known| shadows.kept.remove(known).other).unwrap_or_default();
        shadows.kept.push(Shadow { step, committed, own, other });
        shadows.awaited = Some(step);
        Ok(())
    }

    /// The step to go back to, if a death took something that no rank that lives has, and copies have it.
    pub(super) fn step_to_go_back_to(&self, all: &[Standing]) -> Option<u64> {
        let is_here = |rank: usize| all[rank].next.is_some();
        if (0..all.len()).all(is_here) || !(0..all.len()).any(is_here) {
            return None;
        }
        let held: BTreeSet<StageId> = all.iter().flat_map(|of| of.has.iter().copied()).collect();
        let job = &self.state.job;
        let is_whole = job.program.rules().graph().stages().all(|stage| held.contains(&stage));
        if is_whole && !job.training.shard_optimizer {
            return None;
        }
        let has = |rank: usize, step: u64, with_other: bool| {
            let kept = &all[rank].shadows;
            kept.iter().any(|(of, other)| *of == step && (*other || !with_other))
        };
        let is_kept = |step: &u64| {
            let next = |rank| (rank + 1) % all.len();
            (0..all.len()).all(|rank| has(rank, *step, false) || has(next(rank), *step, true))
        };
        let steps = all.iter().flat_map(|of| &of.shadows).map(|(step, _)| *step);
        steps.filter(is_kept).max()
    }

    /// Goes back to a step, and gives the copies of it to ranks that have none; where all stand then.
    pub(super) fn go_back(
        &mut self,
        step: u64,
        mut all: Vec<Standing>,
    ) -> Result<Vec<Standing>, Fault> {
        let (me, n_ranks) = (self.state.comm.rank(), all.len());
        for standing in &mut all {
            let has_own = standing.shadows.iter().any(|(of, _)| *of == step);
            standing.next = has_own.then_some(step);
            standing.has = standing.slots.iter().map(|(stage, ..)| *stage).collect();
        }
        let before = neighbour(me, n_ranks - 1, n_ranks);
        if all[before.index()].next.is_none() {
            self.give_shadow(step, before)?;
        }
        self.next = all[me.index()].next;
        if self.next.is_none() {
            self.take_shadow_back(step, neighbour(me, 1, n_ranks))?;
        } else {
            self.restore_shadow(step)?;
        }
        self.state.shadows.kept.retain(|shadow| shadow.step <= step);
        Ok(all)
    }

    /// Takes what this rank kept at a step.
    fn restore_shadow(&mut self, step: u64) -> Result<(), Fault> {
        let state = &mut self.state;
        let Some(at) = state.shadows.kept.iter().position(|shadow| shadow.step == step) else {
            return Ok(());
        };
        let own = take(&mut state.shadows.kept[at].own);
        for (slot @ (stage, tensor, kept), value) in &own {
            let value = copy(&state.device, value);
            let value = state.on_device(shadow(step, *slot), value)?;
            state.stages.held_mut(*stage).put(*tensor, *kept, value);
        }
        let Shadow { own: place, committed, .. } = &mut state.shadows.kept[at];
        *place = own;
        let committed = committed.clone();
        state.steps.n_updates = committed.n_updates;
        let me = state.comm.rank();
        self.resume_from(committed, me)
    }

    /// Gives a rank the copy of its own that this one has.
    fn give_shadow(&mut self, step: u64, to: Rank) -> Result<(), Fault> {
        let state = &mut self.state;
        let Some(shadow) = state.shadows.of(step) else { return Ok(()) };
        let values: Vec<_> =
            shadow.other.iter().map(|(slot, value)| (*slot, value.clone())).collect();
        for (slot, value) in values {
            let tag = give_back(step, slot);
            let sent = state.comm.send(to, tag, value);
            state.on_wire(tag, sent)?;
        }
        Ok(())
    }

    /// Takes the copy of its own that another rank has.
    fn take_shadow_back(&mut self, step: u64, from: Rank) -> Result<(), Fault> {
        for slot @ (stage, tensor, kept) in self.slots() {
            let state = &mut self.state;
            let tag = give_back(step, slot);
            let value = state.comm.recv(from, tag, state.deadline());
            let value = state.on_wait(tag, Need::Other, value)?;
            let shape = state.stages.held(stage).stage.params()[tensor].shape.clone();
            state.check_shape(from, Some(shape), tag, &value)?;
            let value = copy(&state.device, &value);
            let value = state.on_device(tag, value)?;
            state.stages.held_mut(stage).put(tensor, kept, value);
        }
        Ok(())
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Takes the copy of the rank before this one, if one is on its way.
    pub(super) fn take_shadow(&mut self) -> Result<(), Fault> {
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

/// The rank so many behind `rank`, round and round.
fn neighbour(rank: Rank, by: usize, n_ranks: usize) -> Rank {
    Rank(((rank.index() + by) % n_ranks) as u32)
}

fn shadow(step: u64, (stage, tensor, slot): Slot) -> Tag {
    Tag::new(step, Payload::Shadow { stage, tensor: tensor as u32, slot: slot as u32 })
}

//! The state of a training on the host: taken between two programs, and restored before the first.
//!
//! A state is keyed by the names of tensors. It can therefore be restored with another D, W or
//! schedule than it was taken with.

use std::sync::Arc;
use std::time::Instant;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::{Rank, StageId};

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::{Device, Elements};
use crate::engine::optim::kfac::Layer;
use crate::engine::reduce::shards::Places;
use crate::engine::state::rank_state::StageOn;
use crate::engine::{WindowHistory, Worker};
use crate::fault::{Class, Fault};
use crate::stage::Param;

/// A tensor of the model and its optimizer state, in the device's own types.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    /// Name and shape.
    pub param: Param,
    /// The weights.
    pub weights: Elements,
    /// The optimizer state.
    pub state: Vec<StateTensor>,
}

/// One tensor of a parameter's optimizer state.
#[derive(Clone, PartialEq, Debug)]
pub struct StateTensor {
    /// Name of the tensor.
    pub name: &'static str,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Elements of the tensor.
    pub elements: Elements,
}

/// Counts of a training since its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Updates of every weight.
    pub updates: u64,
    /// Steps with a discarded gradient.
    pub skipped: u64,
    /// The history of windows without a border.
    pub windows: WindowHistory,
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            updates: self.state.steps.n_updates,
            skipped: self.state.sync.n_skipped(),
            windows: self.validation,
        }
    }

    /// Number of consecutive steps without an update, up to the last one; the same on all ranks.
    pub fn n_skipped_in_a_row(&self) -> u64 {
        self.state.sync.n_skipped_in_a_row()
    }

    /// Returns the tensors of which this rank is the first replica, or the only one that updates
    /// them, with their optimizer state. All ranks together return each tensor once. The result
    /// reuses the memory of `spent`, an earlier snapshot of this rank, since fresh memory costs
    /// more than the copies into it.
    pub fn snapshot(&mut self, spent: Vec<Snapshot>) -> Result<Vec<Snapshot>, Fault> {
        let start = Instant::now();
        let mut spent = spent.into_iter();
        let take = |(stage, index): (StageId, usize)| {
            let held = self.state.stages.held(stage);
            let (param, kept) = (&held.stage.params()[index], held.state[index].as_ref()?);
            let optimizer = &self.state.job.training.optimizer;
            let names = optimizer.kept(param).iter().enumerate();
            let spent = spent.next().map(|Snapshot { weights, state, .. }| (weights, state));
            let (weights, state) = spent.unwrap_or_default();
            let take = || {
                let mut spent = state.into_iter().map(|spent: StateTensor| spent.elements);
                let mut copy = |tensor| self.copy(tensor, spent.next().unwrap_or_default());
                let kept = names.zip(kept).map(|((index, name), tensor)| {
                    let shape = optimizer.state_shape(param, index);
                    Ok(StateTensor { name, shape, elements: copy(tensor)? })
                });
                Ok(Snapshot {
                    param: param.clone(),
                    state: kept.collect::<Result<_, Fault>>()?,
                    weights: self.copy(&held.weights[index], weights)?,
                })
            };
            Some(take())
        };
        let taken = self.saved_places().into_iter().filter_map(take).collect();
        self.state.timing.since.copy_s += start.elapsed().as_secs_f64();
        taken
    }

    /// Returns the weights of the whole model on rank 0: each tensor once, with its stage and the
    /// index of its parameter. Other ranks get none. All ranks must call it after the same `step`.
    pub fn gather_weights(
        &mut self,
        step: u64,
    ) -> Result<Vec<((StageId, usize), Elements)>, Fault> {
        let mine = self.saved_places();
        let words = mine.iter().flat_map(|(stage, index)| [u32::from(stage.0), *index as u32]);
        let list: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let lists = self.all_gather("the end", &list)?;
        let (me, lead) = (self.state.comm.rank(), Rank(0));
        let tag = |(stage, index): (StageId, usize)| {
            Tag::new(step, Payload::Weight { stage, tensor: index as u32 })
        };
        for place in mine {
            let tensor = self.state.stages.held(place.0).weights[place.1].clone();
            let sent = self.state.comm.send(lead, tag(place), tensor);
            self.state.on_wire("the end", sent)?;
        }
        let mut all = Vec::new();
        for (from, list) in (0..).map(Rank).zip(lists).filter(|_| me == lead) {
            for place in places(&list) {
                let deadline = self.state.deadline();
                let tensor = self.state.comm.recv(from, tag(place), deadline);
                let tensor = self.state.on_wait("the end", Need::Other, tensor)?;
                all.push((place, self.copy(&tensor, Elements::default())?));
            }
        }
        Ok(all)
    }

    /// Restores a state, on every rank before its first run. `tensor` returns each requested
    /// tensor. The next run must begin at the step after the state was taken.
    pub fn restore(
        &mut self,
        counts: Counts,
        tensor: impl Fn(&Param) -> Result<Snapshot, Fault>,
    ) -> Result<(), Fault> {
        self.state.steps.n_updates = counts.updates;
        self.state.sync.restore(counts.skipped);
        self.validation = counts.windows.restored();
        let rank = self.state.comm.rank();
        let device = self.state.device.clone();
        let optimizer = &self.state.job.training.optimizer;
        for held in self.state.stages.iter_mut() {
            let (mut weights, mut kept) = (Vec::new(), Vec::new());
            held.layers.iter_mut().for_each(Layer::forget);
            for (param, held) in held.stage.params().iter().zip(&held.state) {
                let upload = |param: &Param, given| {
                    let fault = |why| Fault::new(Class::Checkpoint, rank, why);
                    let Elements { dtype, words } = param.fitted(given).map_err(fault)?;
                    let tensor = device.upload_words(&param.shape, dtype, words);
                    tensor.map_err(|e| e.into_fault(rank))
                };
                let Snapshot { weights: given, state, .. } = tensor(param)?;
                weights.push(upload(param, given)?);
                if held.as_ref().is_some_and(|held| held.len() != state.len()) {
                    let message =
                        format!("the state of {} is not what the optimizer keeps", param.name);
                    return Err(Fault::new(Class::Checkpoint, rank, message));
                }
                let state = state.into_iter().filter(|_| held.is_some());
                let state = state.enumerate().map(|(kept, given)| {
                    let shape = optimizer.state_shape(param, kept);
                    upload(&Param { shape, packing: None, ..param.clone() }, given.elements)
                });
                let state = state.collect::<Result<_, _>>()?;
                kept.push(held.as_ref().map(|_| state));
            }
            (held.weights, held.state) = (Arc::new(weights), kept);
        }
        Ok(())
    }

    /// Stage and index of every tensor of which this rank is the first replica, or the only one that
    /// updates it.
    fn saved_places(&self) -> Vec<(StageId, usize)> {
        let stages = &self.state.stages;
        let frozen = self.first_replicas(stages.frozen());
        if self.state.job.training.shard_optimizer {
            return stages.owned_by(self.state.comm.rank()).chain(frozen).collect();
        }
        self.first_replicas(stages.layout()).chain(frozen).collect()
    }

    /// Stage and index of the tensors at these places of the buckets of which this rank is the first
    /// replica.
    fn first_replicas<'s>(
        &'s self,
        places: &'s [Vec<Places>],
    ) -> impl Iterator<Item = (StageId, usize)> + 's {
        let buckets = self.state.job.program.buckets_of_update().iter().zip(places);
        let is_first = self.state.group == 0;
        let mine = buckets.filter(move |(b, _)| is_first && b.members.first() == Some(&self.me));
        mine.flat_map(|(_, tensors)| tensors.iter().filter_map(|places| places.first().copied()))
    }

    /// Downloads a tensor's elements, reusing the memory of `others`.
    pub(crate) fn copy(&self, tensor: &D::Tensor, others: Elements) -> Result<Elements, Fault> {
        let (device, mut words) = (&self.state.device, others.words);
        words.clear();
        let copied = device.download_words(tensor, &mut words);
        copied.map_err(|e| e.into_fault(self.state.comm.rank()))?;
        Ok(Elements { dtype: device.dtype(tensor), words })
    }
}

/// Decodes stages and indices, as sent by one rank.
fn places(list: &[u8]) -> impl Iterator<Item = (StageId, usize)> + '_ {
    let (words, _) = list.as_chunks();
    let (pairs, _) = words.as_chunks();
    pairs.iter().map(|[stage, index]| {
        (StageId(u32::from_le_bytes(*stage) as u16), u32::from_le_bytes(*index) as usize)
    })
}

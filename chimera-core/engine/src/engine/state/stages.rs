//! The stages of one rank, with their weights, gradients and optimizer state.

use std::collections::BTreeMap;
use std::sync::Arc;

use chimera_schedule::effects::Version;
use chimera_schedule::ids::{BucketId, PipeId, Rank, StageId, WorkerId};
use chimera_schedule::program::Program;

use crate::device::{Device, DeviceError, Result};
use crate::engine::Job;
use crate::engine::optim::updating::Step;
use crate::engine::reduce::shards::{Places, layout, of_bucket, owners};
use crate::engine::state::held_stage::{Held, Weights};
use crate::engine::state::stage_shapes::unfit_params;
use crate::fault::{Class, Fault};
use crate::stage::{DynMovable, DynSelective, DynSliced, Param, Stage};

/// The stages that a rank holds, and the places of their tensors.
pub(crate) struct Stages<S: Stage> {
    /// By stage; `None` where another worker holds the stage.
    held: Vec<Option<Held<S>>>,
    /// By bucket of an update and tensor.
    layout: Vec<Vec<Places>>,
    /// By bucket of an update and tensor: the rank that owns it.
    owners: Vec<Vec<Rank>>,
    /// By bucket of an update: the places of its frozen tensors, which are in no sum.
    frozen: Vec<Vec<Places>>,
}

impl<S: Stage> Stages<S> {
    /// Makes the stages of worker `me`: takes those in `known` as they are, and makes the others by
    /// `stage`, with initial weights. Stages of other workers stay in `known`.
    pub(crate) fn new<D: Device<Tensor = S::Tensor>>(
        job: &Job<'_, S::Item>,
        device: &D,
        (rank, me): (Rank, WorkerId),
        mut stage: impl FnMut(StageId) -> std::result::Result<S, Fault>,
        known: &mut BTreeMap<StageId, Held<S>>,
    ) -> std::result::Result<Self, Fault> {
        let on_device = |e: DeviceError| e.into_fault(rank);
        let placement = job.program.placement();
        let mut held: Vec<Option<Held<S>>> = (0..placement.n_stages()).map(|_| None).collect();
        for id in placement.stages_of(me) {
            let one = match known.remove(&id) {
                Some(known) => known,
                None => {
                    let made = stage(id).map_err(|fault| Fault { rank, ..fault })?;
                    if let Some(why) = unfit_params(&made, id, &*job.training.optimizer) {
                        return Err(Fault::new(Class::Usage, rank, why));
                    }
                    Held::new(made, device, job.training.seed).map_err(on_device)?
                }
            };
            if let Some(reason) = unable(&one.stage, id, job.program) {
                return Err(Fault::new(Class::Usage, rank, reason));
            }
            held[id.index()] = Some(one);
        }
        let params = |stage: StageId| held[stage.index()].as_ref().map(|h| h.stage.params());
        let frozen = layout(job.program, params, true);
        let layout = layout(job.program, params, false);
        let owners = owners(job.program, job.width, &layout, params);
        let mut stages = Stages { held, layout, owners, frozen };
        let Stages { held, layout, owners, .. } = &mut stages;
        let rule = &*job.training.optimizer;
        for (places, owner) in layout.iter().flatten().zip(owners.iter().flatten()) {
            if *owner == rank || !job.training.shard_optimizer {
                for &(stage, index) in places {
                    let held = held_mut(held, stage);
                    if held.state[index].is_none() {
                        held.begin_state(device, index, rule).map_err(on_device)?;
                    }
                }
            }
        }
        Ok(stages)
    }

    pub(crate) fn none() -> Self {
        Stages { held: Vec::new(), layout: Vec::new(), owners: Vec::new(), frozen: Vec::new() }
    }

    /// Releases all stages.
    pub(crate) fn into_held(self) -> BTreeMap<StageId, Held<S>> {
        let stages = (0..).map(StageId).zip(self.held);
        stages.filter_map(|(id, held)| Some((id, held?))).collect()
    }

    /// The stages that this rank holds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held<S>> {
        self.held.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held<S>> {
        self.held.iter_mut().flatten()
    }

    /// Ids of the stages that this rank holds.
    pub(crate) fn ids(&self) -> impl Iterator<Item = StageId> {
        let stages = (0..).map(StageId).zip(&self.held);
        stages.filter(|(_, held)| held.is_some()).map(|(id, _)| id)
    }

    pub(crate) fn find(&self, stage: StageId) -> Option<&Held<S>> {
        self.held.get(stage.index())?.as_ref()
    }

    /// Returns a stage that this rank holds. The proof places every op where its stage is, so a
    /// missing stage is a bug.
    pub(crate) fn held(&self, stage: StageId) -> &Held<S> {
        self.find(stage).unwrap_or_else(|| panic!("{stage} is not on this worker"))
    }

    /// Like [`held`](Stages::held).
    pub(crate) fn held_mut(&mut self, stage: StageId) -> &mut Held<S> {
        held_mut(&mut self.held, stage)
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = BucketId> + use<S> {
        (0..self.layout.len() as u32).map(BucketId)
    }

    /// The places of the trained tensors of all buckets of an update on this rank.
    pub(crate) fn layout(&self) -> &[Vec<Places>] {
        &self.layout
    }

    /// The places of the frozen tensors of all buckets of an update on this rank.
    pub(crate) fn frozen(&self) -> &[Vec<Places>] {
        &self.frozen
    }

    /// The places of the trained tensors of a bucket on this rank.
    pub(crate) fn places(&self, bucket: BucketId) -> &[Places] {
        of_bucket::<Vec<_>>(&self.layout, bucket)
    }

    pub(crate) fn owners(&self, bucket: BucketId) -> &[Rank] {
        of_bucket::<Vec<_>>(&self.owners, bucket)
    }

    /// Stage and index of every tensor that `rank` owns, at the first of its places.
    pub(crate) fn owned_by(&self, rank: Rank) -> impl Iterator<Item = (StageId, usize)> {
        let tensors = self.layout.iter().flatten().zip(self.owners.iter().flatten());
        let mine = tensors.filter(move |(_, owner)| **owner == rank);
        mine.filter_map(|(places, _)| places.first().copied())
    }

    /// A version of a stage's weights; the newest one of those that are predicted.
    pub(crate) fn version(&self, stage: StageId, version: Version) -> &Weights<S> {
        let held = self.held(stage);
        match version {
            Version::Newest | Version::Predicted(_) => &held.weights,
            Version::Made(version) if version == held.n_updates => &held.weights,
            Version::Made(version) => {
                let previous = held.previous.as_ref();
                previous.unwrap_or_else(|| panic!("{stage} has no version {version}"))
            }
        }
    }

    /// Takes this rank's part of a bucket's sums: of each tensor, the gradients of all places.
    pub(crate) fn take_gradients<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        bucket: BucketId,
    ) -> Result<Vec<S::Tensor>> {
        let places = of_bucket(&self.layout, bucket);
        places.iter().map(|places| own_part(device, &mut self.held, places)).collect()
    }

    /// Updates the tensors of a bucket and a stage that this rank updates, see [`Held::update`].
    /// Returns the stage, if this rank holds it.
    pub(crate) fn update<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        bucket: BucketId,
        stage: StageId,
        keeps_previous: bool,
        step: &Step<'_>,
    ) -> Result<Option<&mut Held<S>>> {
        let Some(held) = &mut self.held[stage.index()] else { return Ok(None) };
        let places = of_bucket(&self.layout, bucket).iter().flatten();
        let mine = places.filter(|(s, _)| *s == stage).map(|(_, index)| *index);
        held.update(device, mine, keeps_previous, step)?;
        Ok(Some(held))
    }

    /// Replaces the gradients of a bucket's tensor by their sum.
    pub(crate) fn put_sum(&mut self, bucket: BucketId, tensor: usize, sum: &S::Tensor) {
        for &(stage, index) in &of_bucket::<Vec<_>>(&self.layout, bucket)[tensor] {
            held_mut(&mut self.held, stage).grads[index] = sum.clone();
        }
    }

    /// Replaces weights by a tensor that its owner has updated.
    pub(crate) fn put_weight(&mut self, places: &Places, weight: &S::Tensor) {
        for &(stage, index) in places {
            let held = held_mut(&mut self.held, stage);
            Arc::make_mut(&mut held.weights)[index] = weight.clone();
        }
    }

    /// Bytes that a rank holds permanently, with `n_versions` versions of its weights.
    pub(crate) fn bytes<D: Device<Tensor = S::Tensor>>(
        &self,
        device: &D,
        n_versions: u64,
    ) -> [(&'static str, u64); 3] {
        let (mut weights, mut packed, mut gradients, mut kept) = (0, 0, 0, 0);
        for held in self.iter() {
            let tensors = held.weights.iter().zip(&held.state).zip(held.stage.params());
            for ((weight, state), param) in tensors {
                let bytes = device.bytes(weight);
                *if param.packing.is_some() { &mut packed } else { &mut weights } += bytes;
                gradients += if param.frozen { 0 } else { bytes };
                kept += state.iter().flatten().map(|tensor| device.bytes(tensor)).sum::<u64>();
            }
        }
        [("weights", weights * n_versions + packed), ("gradients", gradients), ("moments", kept)]
    }
}

/// Returns why a stage cannot run its ops of a program; `None` if it can.
fn unable<S: Stage>(stage: &S, id: StageId, program: &Program) -> Option<String> {
    if let Some(param) = stage.params().iter().find(|param| !param.fits_linear_maps()) {
        let Param { name, shape, linear_maps, .. } = param;
        return Some(format!(
            "{name} has extents {shape:?}, of which its linear maps {linear_maps:?} fill none"
        ));
    }
    let rules = program.rules();
    let is_frozen = !rules.demand().trains(id);
    if let Some(param) = stage.params().iter().find(|param| is_frozen && !param.frozen) {
        return Some(format!(
            "the program freezes {id}, and its parameter {} is to be trained: freeze it too (`Param::frozen`), or lower a \
             timetable that trains the stage",
            param.name
        ));
    }
    if rules.n_slices() > 1 && !(stage.sliced().is_some() && rules.graph().is_chain()) {
        return Some(format!(
            "{id} cannot run slices of sequences, into which the program cuts them: it needs `Stage::sliced`, and \
             stages that form a chain"
        ));
    }
    if rules.has_moves() && stage.movable().is_none() {
        return Some(format!(
            "{id} cannot move saved activations, as the program does: it needs `Stage::movable`"
        ));
    }
    let pipes = (0..program.placement().n_pipes() as u16).map(PipeId);
    let mut is_selective =
        pipes.map(|pipe| rules.is_recomputed(pipe, id) && rules.is_selective(pipe, id));
    let is_selective = is_selective.any(|is_selective| is_selective);
    (is_selective && stage.selective().is_none()).then(|| {
        format!(
            "{id} has no selective recomputation, which the program asks for: recompute it in full \
             or not at all, or give it `Stage::selective`"
        )
    })
}

/// `stage` as a [`Selective`](crate::stage::Selective) one, which [`unable`] has checked.
pub(crate) fn selective<S: Stage>(stage: &S) -> &DynSelective<'_, S> {
    stage.selective().expect("a program with selective recomputation has stages with it")
}

/// `stage` as a [`Sliced`](crate::stage::Sliced) one, which [`unable`] has checked.
pub(crate) fn sliced<S: Stage>(stage: &S) -> &DynSliced<'_, S> {
    stage.sliced().expect("a program with slices has stages that run on them")
}

/// `stage` as a [`Movable`](crate::stage::Movable) one, which [`unable`] has checked.
pub(crate) fn movable<S: Stage>(stage: &S) -> &DynMovable<'_, S> {
    stage.movable().expect("a program with moves has stages whose activations move")
}

fn held_mut<S: Stage>(held: &mut [Option<Held<S>>], stage: StageId) -> &mut Held<S> {
    held[stage.index()].as_mut().unwrap_or_else(|| panic!("{stage} is not on this worker"))
}

/// Takes this rank's part of a sum: the gradients of all places of a tensor. Zeros if they have
/// been taken since any were computed: a window may give a worker no micro-batch of a step.
fn own_part<S: Stage<Tensor = D::Tensor>, D: Device>(
    device: &D,
    held: &mut [Option<Held<S>>],
    places: &Places,
) -> Result<D::Tensor> {
    let mut sum = device.zeros(&[0])?;
    for (n, &(stage, index)) in places.iter().enumerate() {
        let (none, held) = (device.zeros(&[0])?, held_mut(held, stage));
        let mut part = std::mem::replace(&mut held.grads[index], none);
        if device.shape(&part) == [0] {
            part = device.zeros(&held.stage.params()[index].shape)?;
        }
        if n == 0 {
            sum = part;
        } else {
            device.accumulate(&mut sum, &part)?;
        }
    }
    Ok(sum)
}

//! Weights that replicas share: each rank holds the tensors that it owns, and gathers the others
//! while ops read them (ZeRO stage 3). Frozen tensors are whole everywhere.

use std::sync::Arc;
use std::task::Poll;

use chimera_schedule::analyze::{Awaited, Need};
use chimera_schedule::ids::{BucketId, Rank, StageId, WorkerId};
use chimera_schedule::program::{Gathering, ShardOp};

use crate::comm::{Comm, CommError, Endpoint, Payload, Tag};
use crate::device::{Device, Result};
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::Stages;
use crate::fault::Fault;
use crate::stage::Stage;

/// A tensor of a stage that replicas share.
struct Sharded {
    bucket: BucketId,
    /// Index of the tensor in the bucket.
    tensor: u32,
    owner: Rank,
    /// The indices of the stage's parameters that are this tensor. Only the owner may have none, if
    /// it holds the tensor as another stage's.
    indices: Vec<usize>,
    /// A place where this rank holds the tensor.
    place: (StageId, usize),
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Runs an instruction for sharded weights. Called again, a gathering continues where it was
    /// interrupted.
    pub(crate) fn run_shard(
        &mut self,
        worker: WorkerId,
        op: &ShardOp,
    ) -> std::result::Result<Poll<()>, Fault> {
        match *op {
            ShardOp::Share(gathering) => self.share(gathering).map(Poll::Ready),
            ShardOp::Gather(gathering) => self.gather(worker, gathering),
            ShardOp::Drop(stage) => {
                let freed = self.release(stage)?;
                self.steps.activations.change(0, freed);
                Ok(Poll::Ready(()))
            }
        }
    }

    /// Gathers all stages of all ranks, between two runs: for an evaluation. The next run releases
    /// them.
    pub(crate) fn gather_all(&mut self, worker: WorkerId) -> std::result::Result<(), Fault> {
        if !self.job.training.shard_weights || std::mem::replace(&mut self.steps.is_whole, true) {
            return Ok(());
        }
        let placement = self.job.program.placement();
        // Numbers that no gathering of a row has.
        let gathering = |stage: StageId, to| {
            let number = u32::MAX - u32::from(stage.0);
            Gathering { stage, to, number }
        };
        for stage in (0..placement.n_stages() as u16).map(StageId) {
            for to in placement.replicas(stage) {
                self.share(gathering(stage, to))?;
            }
        }
        for stage in placement.stages_of(worker) {
            while self.gather(worker, gathering(stage, worker))?.is_pending() {}
        }
        Ok(())
    }

    /// Releases the weights that this rank does not own, before a run.
    pub(crate) fn release_all(&mut self) -> std::result::Result<(), Fault> {
        if !self.job.training.shard_weights {
            return Ok(());
        }
        let stages: Vec<StageId> = self.stages.ids().collect();
        for stage in stages {
            self.release(stage)?;
        }
        self.steps.is_whole = false;
        Ok(())
    }

    fn share(&mut self, gathering: Gathering) -> std::result::Result<(), Fault> {
        let Gathering { stage, to, number } = gathering;
        let me = self.comm.rank();
        let to = (0..self.job.width).map(|group| self.rank_of(to, group));
        let to: Vec<Rank> = to.filter(|to| *to != me).collect();
        for shared in self.sharded(stage).into_iter().filter(|shared| shared.owner == me) {
            let tag = tag(self.steps.first, &shared, number);
            self.send_weight(shared.place, tag, &to)?;
        }
        Ok(())
    }

    fn gather(
        &mut self,
        worker: WorkerId,
        gathering: Gathering,
    ) -> std::result::Result<Poll<()>, Fault> {
        let Gathering { stage, number, .. } = gathering;
        let me = self.comm.rank();
        for shared in self.sharded(stage).into_iter().filter(|shared| shared.owner != me) {
            let Some(&index) = shared.indices.first() else { continue };
            let held = self.stages.held(stage);
            if self.device.shape(&held.weights[index]) != [0] {
                continue; // it came before an interruption
            }
            let expected = held.stage.params()[index].shape.clone();
            let (tag, owner) = (tag(self.steps.first, &shared, number), shared.owner);
            let start = self.now();
            let received = self.wait(CommError::waited_mut, |state, deadline| {
                state.comm.recv(owner, tag, deadline)
            })?;
            self.waited(worker, (Awaited::Weights(shared.bucket), Some(owner)), start);
            let Poll::Ready(received) = received else { return Ok(Poll::Pending) };
            let received = self.on_wait(tag, Need::Other, received)?;
            self.check_weight(&received, &expected, owner, tag)?;
            let weights = Arc::make_mut(&mut self.stages.held_mut(stage).weights);
            shared.indices.iter().for_each(|index| weights[*index] = received.clone());
            let bytes = self.device.bytes(&received) * shared.indices.len() as u64;
            self.steps.activations.change(bytes, 0);
        }
        Ok(Poll::Ready(()))
    }

    /// Releases a stage's weights that this rank does not own; returns their bytes.
    fn release(&mut self, stage: StageId) -> std::result::Result<u64, Fault> {
        let (me, device) = (self.comm.rank(), self.device.clone());
        let others = self.sharded(stage).into_iter().filter(|shared| shared.owner != me);
        let indices = others.flat_map(|shared| shared.indices).collect();
        let released = self.stages.release(&device, stage, indices);
        self.on_device(format!("release of {stage}"), released)
    }

    /// The tensors of a stage that this rank shares with others.
    fn sharded(&self, stage: StageId) -> Vec<Sharded> {
        let buckets = self.job.program.buckets_of_update().iter().zip(self.stages.buckets());
        let its = buckets.filter(|(bucket, _)| bucket.stages.contains(&stage));
        let mut all = Vec::new();
        for (_, bucket) in its {
            let tensors = self.stages.places(bucket).iter().zip(self.stages.owners(bucket));
            for (tensor, (places, owner)) in (0..).zip(tensors) {
                let indices = places.iter().filter(|(of, _)| *of == stage);
                let indices = indices.map(|(_, index)| *index).collect();
                let Some(&place) = places.first() else { continue };
                all.push(Sharded { bucket, tensor, owner: *owner, indices, place });
            }
        }
        all
    }
}

fn tag(step: u64, shared: &Sharded, gathering: u32) -> Tag {
    let Sharded { bucket, tensor, .. } = *shared;
    Tag::new(step, Payload::Shard { bucket, tensor, gathering })
}

impl<S: Stage> Stages<S> {
    /// Replaces tensors of a stage by empty ones; returns the bytes that this frees.
    fn release<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        stage: StageId,
        indices: Vec<usize>,
    ) -> Result<u64> {
        let nothing = device.zeros(&[0])?;
        let weights = Arc::make_mut(&mut self.held_mut(stage).weights);
        let mut freed = 0;
        for index in indices {
            freed += device.bytes(&weights[index]);
            weights[index] = nothing.clone();
        }
        Ok(freed)
    }
}

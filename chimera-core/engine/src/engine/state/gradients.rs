//! Gradients that exist only while they are needed: from the first backward of a stage in a step
//! until their reduction, which leaves each replica its shard of the sum (ZeRO stage 2).

use chimera_schedule::ids::{BucketId, Rank, StageId};

use crate::comm::{Comm, Endpoint};
use crate::device::{Device, Result};
use crate::engine::state::held_stage::Held;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::stages::Stages;
use crate::fault::Fault;
use crate::stage::Stage;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// A stage of this rank whose gradients exist. Allocates them for the first op that adds to
    /// them.
    pub(crate) fn begun(&mut self, stage: StageId) -> std::result::Result<&mut Held<S>, Fault> {
        if self.job.training.shard_gradients {
            let added = self.stages.held_mut(stage).allocate_gradients(&self.device);
            let added = self.on_device(format!("gradients of {stage}"), added)?;
            self.steps.activations.change(added, 0);
        }
        Ok(self.stages.held_mut(stage))
    }

    /// This rank's part of a bucket's sums, which it gives away.
    pub(crate) fn take_gradients(&mut self, bucket: BucketId) -> Result<Vec<S::Tensor>> {
        if self.job.training.shard_gradients {
            let (whole, shard) = self.stages.gradient_bytes(&self.device, bucket, self.comm.rank());
            self.steps.activations.change(shard, whole);
        }
        self.stages.take_gradients(&self.device, bucket)
    }
}

impl<S: Stage> Stages<S> {
    /// Bytes of a bucket's gradients on this rank, and of the sums that it will keep of them.
    fn gradient_bytes<D: Device<Tensor = S::Tensor>>(
        &self,
        device: &D,
        bucket: BucketId,
        rank: Rank,
    ) -> (u64, u64) {
        let (mut whole, mut shard) = (0, 0);
        for (places, owner) in self.places(bucket).iter().zip(self.owners(bucket)) {
            let gradients = places.iter().map(|(stage, index)| &self.held(*stage).grads[*index]);
            whole += gradients.map(|gradient| device.bytes(gradient)).sum::<u64>();
            let kept = places.first().filter(|_| *owner == rank);
            let kept = kept.map(|(stage, index)| &self.held(*stage).weights[*index]);
            shard += kept.map_or(0, |weight| device.bytes(weight));
        }
        (whole, shard)
    }
}

impl<S: Stage> Held<S> {
    /// Prepares the gradients for a step: zeros, or nothing yet if they are allocated by need.
    pub(crate) fn begin_gradients<D: Device<Tensor = S::Tensor>>(
        &mut self,
        device: &D,
        by_need: bool,
    ) -> Result<()> {
        if !by_need {
            return self.clear_gradients(device);
        }
        let nothing = device.zeros(&[0])?;
        self.grads.fill(nothing);
        Ok(())
    }

    /// Allocates zeros for gradients that do not exist. Returns their bytes.
    fn allocate_gradients<D: Device<Tensor = S::Tensor>>(&mut self, device: &D) -> Result<u64> {
        let mut added = 0;
        for (grad, param) in self.grads.iter_mut().zip(self.stage.params()) {
            if !param.frozen && device.shape(grad) == [0] {
                *grad = device.zeros(&param.shape)?;
                added += device.bytes(grad);
            }
        }
        Ok(added)
    }
}

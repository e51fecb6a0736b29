//! Exchange of updated weights between replicas, for a sharded optimizer.

mod gathers;

use chimera_schedule::analyze::{Awaited, Need};
use chimera_schedule::ids::{BucketId, Rank, StageId, WorkerId};

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::engine::row::faults::shape_fault;
use crate::engine::state::held_stage::copy;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::Fault;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Sends the tensors that this rank has updated to the other replicas.
    pub(crate) fn give_weights(&mut self, bucket: BucketId) -> Result<(), Fault> {
        let (rank, step) = (self.comm.rank(), self.sum_number(bucket));
        let others = self.job.program.replicas(self.job.width, bucket);
        let others: Vec<Rank> = others.into_iter().filter(|m| *m != rank).collect();
        for (tensor, _) in (0..).zip(self.owned(bucket)).filter(|(_, owner)| *owner == rank) {
            let tag = Tag::new(step, Payload::Updated { bucket, tensor });
            let place = self.stages.places(bucket)[tensor as usize][0];
            self.send_weight(place, tag, &others)?;
        }
        Ok(())
    }

    /// Waits for the tensors that other replicas have updated. Called only after the row, so that
    /// replicas with different orders of updates do not wait for each other.
    pub(crate) fn take_weights(&mut self, worker: WorkerId) -> Result<(), Fault> {
        if !self.job.training.gives_updates() || self.sync.skipped().is_some() {
            return Ok(());
        }
        let rank = self.comm.rank();
        for bucket in self.stages.buckets() {
            let step = self.sum_number(bucket);
            for (tensor, owner) in (0..).zip(self.owned(bucket)).filter(|(_, o)| *o != rank) {
                let tag = Tag::new(step, Payload::Updated { bucket, tensor });
                let (start, deadline) = (self.now(), self.deadline());
                let received = self.comm.recv(owner, tag, deadline);
                self.waited(worker, (Awaited::Weights(bucket), Some(owner)), start);
                let received = self.on_wait(tag, Need::Other, received)?;
                let places = self.stages.places(bucket)[tensor as usize].clone();
                let (stage, index) = places[0];
                let expected = self.stages.held(stage).stage.params()[index].shape.clone();
                self.check_weight(&received, &expected, owner, tag)?;
                self.stages.put_weight(&places, &received);
            }
        }
        Ok(())
    }

    /// Sends copies of the weights of a parameter.
    fn send_weight(
        &mut self,
        (stage, index): (StageId, usize),
        tag: Tag,
        to: &[Rank],
    ) -> Result<(), Fault> {
        for &to in to {
            let weight = copy(&self.device, &self.stages.held(stage).weights[index]);
            let weight = self.on_device(tag, weight)?;
            let sent = self.comm.send(to, tag, weight);
            self.on_wait(tag, Need::Other, sent)?;
        }
        Ok(())
    }

    /// Refuses received weights of another shape.
    fn check_weight(
        &self,
        received: &D::Tensor,
        expected: &[usize],
        from: Rank,
        tag: Tag,
    ) -> Result<(), Fault> {
        let got = self.device.shape(received);
        if got == expected {
            return Ok(());
        }
        let fault = shape_fault(self.comm.rank(), from, &tag, expected, &got);
        Err(self.at(fault, tag))
    }

    fn owned(&self, bucket: BucketId) -> Vec<Rank> {
        self.stages.owners(bucket).to_vec()
    }
}

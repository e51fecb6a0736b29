//! Which rank owns which tensor: it counts the norm of its gradient, and where the optimizer is shared out it alone
//! has the sum of all replicas' gradients and updates the tensor. Elsewhere replicas have even shares of all gradients.

use std::sync::Arc;

use super::faults::shape_fault;
use super::layout::Layout;
use super::world::{Places, World, copy, held_mut, of_bucket};
use crate::analyze::{Awaited, Need};
use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::fault::Fault;
use crate::ids::{BucketId, Rank, StageId, WorkerId};
use crate::program::Program;
use crate::shards::assign_whole;
use crate::stage::{Param, Stage};

/// By bucket of an update and tensor: where a worker that holds these stages keeps it. A bucket of one
/// stage holds its tensors of its own, one of several stages those they share, by name.
pub(super) fn layout<'p>(
    program: &Program,
    params: impl Fn(StageId) -> Option<&'p [Param]>,
) -> Vec<Vec<Places>> {
    let tensors_of = |stages: &[StageId]| {
        let is_tied = stages.len() > 1;
        let mut tensors: Vec<(&str, Places)> = Vec::new();
        for &stage in stages {
            let params = params(stage).unwrap_or_default();
            for (index, param) in params.iter().enumerate().filter(|(_, p)| p.tied == is_tied) {
                match tensors.iter_mut().find(|(name, _)| *name == param.name) {
                    Some((_, places)) => places.push((stage, index)),
                    None => tensors.push((&param.name, vec![(stage, index)])),
                }
            }
        }
        if is_tied {
            tensors.sort();
        }
        tensors.into_iter().map(|(_, places)| places).collect()
    };
    program.buckets_of_update().iter().map(|b| tensors_of(&b.stages)).collect()
}

/// By bucket of an update and tensor of a layout: its owner. The same on all ranks that hold it.
pub(super) fn owners<'p>(
    program: &Program,
    width: usize,
    layout: &[Vec<Places>],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
) -> Vec<Vec<Rank>> {
    let of = |(bucket, tensors): (u32, &Vec<Places>)| {
        let members = program.replicas(width, BucketId(bucket));
        let owners = assign_whole(&sizes(&shapes(tensors, &params)), members.len());
        owners.into_iter().map(|member| members[member]).collect()
    };
    (0..).zip(layout).map(of).collect()
}

/// By bucket of an update: how its gradients lie in the buffer that is reduced. With `keeps_sums` each replica has the
/// tensors that it owns, else an even share.
pub(super) fn buffers<'p>(
    program: &Program,
    width: usize,
    layout: &[Vec<Places>],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
    keeps_sums: bool,
) -> Vec<Arc<Layout>> {
    let of = |(bucket, tensors): (u32, &Vec<Places>)| {
        let n_members = program.replicas(width, BucketId(bucket)).len();
        let shapes = shapes(tensors, &params);
        Arc::new(match keeps_sums {
            true => {
                Layout::owned(shapes.clone(), &assign_whole(&sizes(&shapes), n_members), n_members)
            }
            false => Layout::shared(shapes, n_members),
        })
    };
    (0..).zip(layout).map(of).collect()
}

/// The extents of each tensor.
fn shapes<'p>(
    tensors: &[Places],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
) -> Vec<Vec<usize>> {
    let of = |places: &Places| {
        let (stage, index) = *places.first()?;
        Some(params(stage)?.get(index)?.shape.clone())
    };
    tensors.iter().map(|places| of(places).unwrap_or_default()).collect()
}

fn sizes(shapes: &[Vec<usize>]) -> Vec<usize> {
    shapes.iter().map(|shape| shape.iter().product()).collect()
}

/// Elements of the tensors that each rank owns, by rank, of stages with these parameters. Each of its
/// places counts.
pub fn owned_elements(program: &Program, width: usize, params: &[Vec<Param>]) -> Vec<u64> {
    let placement = program.placement();
    let of = |rank: Rank| {
        let (_, worker) = placement.group_and_worker(rank);
        let stages = placement.stages_of(worker);
        let held =
            |stage: StageId| stages.contains(&stage).then(|| params[stage.index()].as_slice());
        let layout = layout(program, held);
        let owners = owners(program, width, &layout, held);
        let tensors = layout.iter().flatten().zip(owners.iter().flatten());
        let places = tensors.filter(|(_, owner)| **owner == rank).flat_map(|(places, _)| places);
        places.map(|(stage, index)| params[stage.index()][*index].n_elements() as u64).sum()
    };
    (0..(width * placement.n_workers()) as u32).map(Rank).map(of).collect()
}

impl<S, D, C> World<'_, S, D, C>
where
    S: Stage<Tensor = D::Tensor>,
    D: Device,
    C: Comm<D::Tensor>,
{
    /// Sends the tensors that this rank has updated to the other replicas.
    pub(super) fn give_weights(&mut self, bucket: BucketId) -> Result<(), Fault> {
        let (rank, step) = (self.comm.rank(), self.sum_number(bucket));
        let others = self.job.program.replicas(self.job.width, bucket);
        let others: Vec<Rank> = others.into_iter().filter(|m| *m != rank).collect();
        for (tensor, _) in (0..).zip(self.owned(bucket)).filter(|(_, owner)| *owner == rank) {
            let tag = Tag::new(step, Payload::Updated { bucket, tensor });
            let (stage, index) = self.places(bucket)[tensor as usize][0];
            for &to in &others {
                let weight = copy(&self.device, &self.held(stage).weights[index]);
                let weight = self.on_device(tag, weight)?;
                let sent = self.comm.send(to, tag, weight);
                self.on_wire(tag, sent)?;
            }
        }
        Ok(())
    }

    /// Waits for the tensors that other replicas have updated. Only behind the row, so that replicas with
    /// their updates in another order do not wait for each other.
    pub(super) fn take_weights(&mut self, worker: WorkerId) -> Result<(), Fault> {
        if !self.job.training.shard_optimizer || self.skipped.is_some() {
            return Ok(());
        }
        let rank = self.comm.rank();
        for bucket in (0..self.layout.len() as u32).map(BucketId) {
            let step = self.sum_number(bucket);
            for (tensor, owner) in (0..).zip(self.owned(bucket)).filter(|(_, o)| *o != rank) {
                let tag = Tag::new(step, Payload::Updated { bucket, tensor });
                let (start, deadline) = (self.now(), self.deadline());
                let received = self.comm.recv(owner, tag, deadline);
                self.waited(worker, Awaited::Weights(bucket), start);
                let received = self.on_wait(tag, Need::Other, received)?;
                let places = self.places(bucket)[tensor as usize].clone();
                let (stage, index) = places[0];
                let expected = self.held(stage).stage.params()[index].shape.clone();
                let got = self.device.shape(&received);
                if got != expected {
                    let fault = shape_fault(rank, owner, &tag, &expected, &got);
                    return Err(self.at(fault, tag));
                }
                for (stage, index) in places {
                    let held = held_mut(&mut self.held, stage);
                    Arc::make_mut(&mut held.weights)[index] = received.clone();
                }
            }
        }
        Ok(())
    }

    /// The owners of a bucket's tensors.
    fn owned(&self, bucket: BucketId) -> Vec<Rank> {
        of_bucket(&self.owners, bucket).clone()
    }
}

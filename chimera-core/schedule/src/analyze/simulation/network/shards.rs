//! Messages with shards of weights.

use super::{Network, NetworkCosts};
use crate::ir::ids::{BucketId, Rank, StageId, WorkerId};
use crate::program::{Bucket, Program};

impl<C> NetworkCosts<C> {
    /// The time in which the replicas of a worker in all groups send their shards of a stage to a
    /// worker of the first, one after the other.
    pub(super) fn shares(&self, from: WorkerId, to: WorkerId, stage: StageId) -> f64 {
        let Some(bytes) = self.shards.get(stage.index()).copied() else { return 0.0 };
        let Network { width, .. } = self.network;
        let to = self.placement.rank(0, to);
        let senders = (0..width).map(|group| self.placement.rank(group, from));
        let links = senders
            .filter(|from| *from != to)
            .map(|from| self.network.link(self.network.node(from), self.network.node(to)));
        let (alpha, beta) = links
            .fold((0.0f64, 0.0), |(alpha, beta), link| (alpha.max(link.alpha), beta + link.beta));
        alpha + beta * bytes
    }
}

/// By stage: the mean bytes of a replica's shard of its weights, which are as large as its
/// gradients; empty if weights are not sharded. `gradients` has the bytes of each bucket of one
/// update.
pub(super) fn shard_bytes(program: &Program, width: usize, gradients: &[f64]) -> Vec<f64> {
    if !program.shards_weights() {
        return Vec::new();
    }
    let mut shards = vec![0.0; program.placement().n_stages()];
    for ((number, Bucket { stages, .. }), bytes) in
        (0..).zip(program.buckets_of_update()).zip(gradients)
    {
        let replicas: Vec<Rank> = program.replicas(width, BucketId(number));
        stages.iter().for_each(|stage| shards[stage.index()] += bytes / replicas.len() as f64);
    }
    shards
}

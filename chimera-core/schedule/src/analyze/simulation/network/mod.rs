//! Costs of messages and sums between nodes.
//!
//! All pipeline groups of a job do the same at the same time. So only one of them is simulated, at
//! costs that include the messages and sums of all other groups.
//!
//! Every rank has a port, and every node a link to all others. A message takes `alpha`, and `beta`
//! for each byte (Hockney, Parallel Computing 20, 1994). Messages of a pipeline have the network to
//! themselves. A reduction proceeds in rounds, as in the module `collective`. Each round takes as
//! long as the busiest port sends or receives, or the busiest link between nodes. Ports and links
//! are full duplex. Messages from a node's ranks to other nodes share its link, within a reduction
//! and between reductions. The link carries as many messages at their full rate as the node has
//! adapters.
//!
//! A transport may be slower: its messages may occupy the sending worker ([`Network::blocking`]),
//! and it may reduce with another algorithm ([`ReductionAlgorithm`]).

mod known_sums;
mod reduction;
mod shards;

use serde::Deserialize;

use self::known_sums::{KnownSums, ReductionTime};
use self::shards::shard_bytes;
use super::traffic::Traffic;
use crate::costs::Costs;
use crate::effects::Token;
use crate::ir::compression::Compression;
use crate::ir::ids::{BucketId, Rank, StageId, WorkerId};
use crate::ir::op::{Kind, Op};
use crate::ir::placement::Placement;
use crate::program::{Bucket, Program};

/// The cost of a message, in the unit of the costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Link {
    /// Latency of a message of any length.
    pub alpha: f64,
    /// Time for every byte.
    pub beta: f64,
}

impl Link {
    pub(super) fn takes(self, n_messages: f64, bytes: f64) -> f64 {
        n_messages * self.alpha + bytes * self.beta
    }
}

/// The network, and the place of a job's ranks on it: rank r is worker `r % D` of group `r / D`, on
/// node `r / ranks_per_node`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Network {
    /// Number of pipeline groups, W.
    pub width: usize,
    /// Ranks per node. All groups must have the same layout: D is a multiple of it, or it is a
    /// multiple of D.
    pub ranks_per_node: usize,
    /// The link between two ranks of a node.
    pub inside: Link,
    /// The link between two nodes, for one message.
    pub between: Link,
    /// Number of messages that a node sends to other nodes at full speed at once; all its ranks
    /// share them.
    pub adapters: usize,
    /// Whether a send occupies the sending worker until the message has arrived.
    pub blocking: bool,
    /// The algorithm of gradient reductions.
    pub reductions: ReductionAlgorithm,
    /// Latency of a message of a reduction, if it is not that of the link. A library may reduce
    /// with less work per message than a pipeline sends with.
    pub round_alpha: Option<f64>,
    /// The share of its members' compute and sends that a reduction takes while it runs, see
    /// [`Costs::reduction_share`].
    pub reduction_share: f64,
}

/// The algorithm by which replicas reduce their gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReductionAlgorithm {
    /// The engine's default: each replica sends every other one its share; more than eight use
    /// recursive halving and doubling (Rabenseifner, 2004).
    #[default]
    Halving,
    /// Recursive doubling: in each of log2(r) rounds every replica exchanges all its data with one
    /// other.
    Doubling,
    /// A ring: in each of 2 (r - 1) rounds every replica sends its neighbour one r-th of the data.
    Ring,
    /// As `Halving`, but between nodes, after sums within each node; see
    /// [`Plan`](crate::collective::Plan).
    Nodes,
}

impl Network {
    /// One node of `n_ranks` ranks with free messages.
    pub fn free(n_ranks: usize) -> Network {
        Network {
            width: 1,
            ranks_per_node: n_ranks,
            inside: Link::default(),
            between: Link::default(),
            adapters: 1,
            blocking: false,
            reductions: ReductionAlgorithm::default(),
            round_alpha: None,
            reduction_share: 0.0,
        }
    }

    /// Returns true if all groups of `depth` workers have the same layout.
    pub fn fits(&self, depth: usize) -> bool {
        let on_one = self.ranks_per_node >= self.width.saturating_mul(depth);
        let (large, small) = (depth.max(self.ranks_per_node), depth.min(self.ranks_per_node));
        on_one || small > 0 && large.is_multiple_of(small)
    }

    /// The slowest link between any two ranks of a job with groups of `depth`.
    pub fn slowest(&self, depth: usize) -> Link {
        let is_one_node = self.width.saturating_mul(depth) <= self.ranks_per_node;
        if is_one_node { self.inside } else { self.between }
    }

    fn node(&self, rank: Rank) -> usize {
        rank.index() / self.ranks_per_node
    }

    /// Number of nodes of a group. Several groups may share one.
    fn n_nodes(&self, placement: &Placement) -> usize {
        placement.n_workers().div_ceil(self.ranks_per_node)
    }

    fn link(&self, a: usize, b: usize) -> Link {
        if a == b { self.inside } else { self.between }
    }

    /// The link between two nodes for a message of a reduction.
    fn round(&self, a: usize, b: usize) -> Link {
        let link = self.link(a, b);
        Link { alpha: self.round_alpha.unwrap_or(link.alpha), ..link }
    }
}

/// Costs of compute, with messages and sums at the costs of a network added to them.
#[derive(Clone, Debug)]
pub struct NetworkCosts<C> {
    compute: C,
    network: Network,
    placement: Placement,
    traffic: Traffic,
    /// Bytes of the saved activations of a micro-batch by stage, if moves between workers take
    /// time.
    saved: Vec<f64>,
    /// Times of sums by bucket; if empty, all sums are free.
    sums: Vec<ReductionTime>,
    /// Bytes of a shard of weights by stage, if they are sharded.
    shards: Vec<f64>,
}

impl<C: Costs> NetworkCosts<C> {
    /// The costs of everything except sums, for any order of ops: the search for an order needs
    /// these. `activations` are the bytes of each stage's output, for a whole micro-batch; its
    /// gradient is as large.
    ///
    /// # Panics
    /// Unless the network fits the placement's workers, and `activations` has an entry for each
    /// stage.
    pub fn of_messages(
        compute: C,
        network: Network,
        placement: &Placement,
        units_per_micro: u32,
        activations: &[f64],
    ) -> Self {
        assert!(network.fits(placement.n_workers()), "groups do not lie alike");
        assert_eq!(activations.len(), placement.n_stages(), "activations of other stages");
        NetworkCosts {
            compute,
            network,
            placement: placement.clone(),
            traffic: Traffic::new(units_per_micro, activations.to_vec(), Vec::new()),
            saved: Vec::new(),
            sums: Vec::new(),
            shards: Vec::new(),
        }
    }

    /// Sets the bytes that an edge between two stages carries for a whole micro-batch, if it is not
    /// the first stage's output. A stage of a graph may give each edge a tensor of its own.
    pub fn with_edge(mut self, from: StageId, to: StageId, bytes: f64) -> Self {
        self.traffic.edges.insert((from, to), bytes);
        self
    }

    /// Compresses the messages between workers.
    pub fn compressed(mut self, compression: &Compression) -> Self {
        let kept = || (compression.clone(), self.placement.clone());
        self.traffic.compressed = (!compression.is_off()).then(kept);
        self
    }

    /// Sets the bytes of the saved activations of a whole micro-batch, by stage, which go to the
    /// worker at the other end of the pipeline and back over the link between the two.
    pub fn with_saved(self, saved: &[f64]) -> Self {
        NetworkCosts { saved: saved.to_vec(), ..self }
    }

    /// Adds the costs of `program`'s reductions. `gradients` has the bytes of each tensor of each
    /// stage, without shared ones, which are in `tied`.
    ///
    /// # Panics
    /// Unless `gradients` has an entry for each stage.
    pub fn with_sums(mut self, program: &Program, gradients: &[Vec<f64>], tied: &[f64]) -> Self {
        let network = self.network;
        let placement = program.placement();
        let mut known = KnownSums::of(network.n_nodes(placement));
        let of_update = program.buckets_of_update().iter();
        let bytes = |bucket: &Bucket| {
            let tensors = match &bucket.stages[..] {
                [stage] => &gradients[stage.index()],
                _ => tied,
            };
            tensors.iter().sum::<f64>().round()
        };
        self.traffic.gradients = of_update.clone().map(bytes).collect();
        self.shards = shard_bytes(program, network.width, &self.traffic.gradients);
        let sum = |(number, bucket): (u32, &Bucket)| {
            let n_bytes = bytes(bucket) as usize;
            let nodes = bucket.members.iter().map(|worker| network.node(Rank(worker.0.into())));
            known.sum(nodes.collect(), n_bytes, || {
                let replicas = program.replicas(network.width, BucketId(number));
                network.sum(&replicas, n_bytes, placement)
            })
        };
        NetworkCosts { sums: (0..).zip(of_update).map(sum).collect(), ..self }
    }

    /// Returns the bytes of messages and reductions, for a simulation on a topology.
    pub fn traffic(&self) -> Traffic {
        self.traffic.clone()
    }

    /// The costs of compute, without the network.
    pub fn compute(&self) -> &C {
        &self.compute
    }

    /// Time of a message on its link.
    fn travels(&self, token: &Token) -> f64 {
        if token.edge().is_none() {
            return 0.0;
        }
        // Groups have the same layout, so the first stands for all.
        let node = |s| self.network.node(Rank(self.placement.worker(token.pipe, s).0.into()));
        let link = self.network.link(node(token.stage), node(token.to));
        link.takes(1.0, self.traffic.message(token))
    }

    /// Time of a move on the link between two workers.
    fn moves(&self, worker: WorkerId, op: &Op) -> f64 {
        let Some(bytes) = self.saved.get(op.stage.index()) else { return 0.0 };
        if !matches!(op.kind, Kind::Offload | Kind::Return) {
            return 0.0;
        }
        let node = |worker: usize| self.network.node(Rank(worker as u32));
        let other = self.placement.n_workers() - 1 - worker.index();
        let share = f64::from(op.span.len) / self.traffic.units_per_micro;
        self.network.link(node(worker.index()), node(other)).takes(1.0, bytes * share)
    }

    fn sum_of(&self, bucket: BucketId) -> &ReductionTime {
        static FREE: ReductionTime = ReductionTime { takes: 0.0, links: Vec::new() };
        match self.sums.len() {
            0 => &FREE,
            n => &self.sums[bucket.index() % n],
        }
    }
}

impl<C: Costs> Costs for NetworkCosts<C> {
    fn base(&self) -> Option<&dyn Costs> {
        Some(&self.compute)
    }

    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        self.compute.op(worker, op) + self.moves(worker, op)
    }

    fn message(&self, token: &Token) -> f64 {
        self.compute.message(token) + self.travels(token)
    }

    fn occupies(&self, token: &Token) -> f64 {
        let travels = if self.network.blocking { self.travels(token) } else { 0.0 };
        self.compute.occupies(token) + travels
    }

    fn reduce(&self, bucket: BucketId) -> f64 {
        self.compute.reduce(bucket) + self.sum_of(bucket).takes
    }

    fn share(&self, from: WorkerId, to: WorkerId, stage: StageId) -> f64 {
        self.compute.share(from, to, stage) + self.shares(from, to, stage)
    }

    fn reduction_share(&self) -> f64 {
        self.compute.reduction_share().max(self.network.reduction_share)
    }

    fn links(&self, bucket: BucketId) -> &[(usize, f64)] {
        &self.sum_of(bucket).links
    }

    /// An all-gather of a few words, in rounds. In each round some neighbours are on different
    /// nodes, unless all ranks are on one.
    fn agree(&self) -> f64 {
        let n_ranks = self.placement.n_ranks(self.network.width);
        let n_rounds = usize::BITS - n_ranks.saturating_sub(1).leading_zeros();
        let link = self.network.slowest(self.placement.n_workers());
        self.compute.agree() + f64::from(n_rounds) * link.takes(1.0, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Shape, find};

    #[test]
    fn a_sum_that_is_known_is_the_one_that_would_be_computed() {
        for schedule in ["1f1b", "gems", "chimera"] {
            let timetable = find(schedule).expect("known").timetable(&Shape::new(8, 8));
            let program = lower(&timetable.expect("fits"), &Lowering::default()).expect("proven");
            for (width, ranks_per_node, algorithm) in [
                (1, 2, ReductionAlgorithm::Halving),
                (2, 1, ReductionAlgorithm::Doubling),
                (3, 2, ReductionAlgorithm::Halving),
                (5, 4, ReductionAlgorithm::Halving),
                (12, 8, ReductionAlgorithm::Doubling),
                (4, 16, ReductionAlgorithm::Halving),
                (3, 100, ReductionAlgorithm::Halving),
            ] {
                let network = Network {
                    width,
                    ranks_per_node,
                    inside: Link { alpha: 1.0, beta: 1e-3 },
                    between: Link { alpha: 3.0, beta: 2e-3 },
                    reductions: algorithm,
                    ..Network::free(8 * width)
                };
                let gradients = vec![vec![4000.0, 96.0]; 8];
                let costs = NetworkCosts::of_messages(
                    UniformCosts::new(1.0, 2.0, 0.0),
                    network,
                    program.placement(),
                    1,
                    &[0.0; 8],
                );
                let costs = costs.with_sums(&program, &gradients, &[]);
                for bucket in (0..program.buckets().len() as u32).map(BucketId) {
                    let replicas = program.replicas(width, bucket);
                    let computed = network.sum(&replicas, 4096, program.placement());
                    let what = format!("{schedule}, {width} of {ranks_per_node}, {bucket}");
                    assert_eq!(costs.sum_of(bucket), &computed, "{what}");
                }
            }
        }
    }
}

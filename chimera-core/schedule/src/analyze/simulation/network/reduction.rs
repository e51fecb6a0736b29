//! The time of a gradient reduction on a network, round by round.

use rustc_hash::FxHashMap;

use super::known_sums::ReductionTime;
use super::{Network, ReductionAlgorithm};
use crate::collective::{Part, Plan};
use crate::ir::ids::Rank;
use crate::ir::placement::Placement;
use crate::shards::{UNIT, even_shares};

/// Sends of replica `me` of `n` in each round of recursive doubling. Replicas beyond the largest
/// power of two give theirs to a partner first, and receive the sum last.
fn doubling(n: usize, me: usize) -> Vec<Vec<Part>> {
    let core = 1 << n.max(1).ilog2();
    let all_to = |peer: usize| vec![Part { peer, segments: 0..n }];
    let is_extra = me >= core;
    let first = if is_extra { all_to(me - core) } else { Vec::new() };
    let last = if me + core < n { all_to(me + core) } else { Vec::new() };
    let between =
        (0..core.ilog2()).map(|bit| if is_extra { Vec::new() } else { all_to(me ^ (1 << bit)) });
    let folds = usize::from(core < n);
    std::iter::repeat_n(first, folds)
        .chain(between)
        .chain(std::iter::repeat_n(last, folds))
        .collect()
}

/// Load on a port, or on the link of a node, in one round and each direction.
#[derive(Clone, Copy, Default)]
struct Carried {
    out: f64,
    into: f64,
}

impl Carried {
    fn busy(self) -> f64 {
        self.out.max(self.into)
    }
}

impl Network {
    /// Sends of replica `me` in each round of a reduction.
    fn sends(&self, plan: Plan, me: usize) -> Vec<Vec<Part>> {
        match self.reductions {
            ReductionAlgorithm::Halving | ReductionAlgorithm::Nodes => {
                plan.rounds(me, false).into_iter().map(|round| round.sends).collect()
            }
            ReductionAlgorithm::Doubling => doubling(plan.n_members(), me),
            ReductionAlgorithm::Ring => Vec::new(),
        }
    }

    /// Time of a reduction of `n_bytes` over `replicas`.
    pub(super) fn sum(
        &self,
        replicas: &[Rank],
        n_bytes: usize,
        placement: &Placement,
    ) -> ReductionTime {
        let n = replicas.len();
        let n_nodes = self.n_nodes(placement);
        if self.reductions == ReductionAlgorithm::Ring && n > 1 {
            let share = n_bytes as f64 / n as f64;
            let sends: Vec<_> = (0..n).map(|me| (me, (me + 1) % n, share)).collect();
            return self.round_time(replicas, &sends, n_nodes).times(2.0 * (n - 1) as f64);
        }
        let nodes = replicas.iter().map(|rank| self.node(*rank));
        let plan = match self.reductions {
            ReductionAlgorithm::Nodes => Plan::in_groups(nodes),
            _ => Plan::flat(n),
        };
        let shares = even_shares(n_bytes, plan.n_adding().max(1), UNIT * size_of::<f32>());
        let mut shares = shares.into_iter().map(|share| share.len() as f64);
        // By position: the bytes before it. Members that do not add own none.
        let mut before = vec![0.0];
        for member in plan.segments() {
            let share = if plan.adds(member) { shares.next() } else { None };
            before.push(before[before.len() - 1] + share.unwrap_or(0.0));
        }
        let bytes = |part: &Part| before[part.segments.end] - before[part.segments.start];
        let mut all = ReductionTime::default();
        let plans: Vec<_> = (0..n).map(|me| self.sends(plan, me)).collect();
        for round in 0..plans.iter().map(Vec::len).max().unwrap_or(0) {
            let mut sends = Vec::new();
            for (me, plan) in plans.iter().enumerate() {
                let parts = plan.get(round).map_or(&[][..], |sends| sends);
                sends.extend(parts.iter().map(|part| (me, part.peer, bytes(part))));
            }
            all.add(self.round_time(replicas, &sends, n_nodes));
        }
        all
    }

    /// Time of a round in which replicas send others some bytes.
    fn round_time(
        &self,
        replicas: &[Rank],
        sends: &[(usize, usize, f64)],
        n_nodes: usize,
    ) -> ReductionTime {
        let mut ports = vec![Carried::default(); replicas.len()];
        let mut nodes = FxHashMap::<usize, Carried>::default();
        for (me, peer, bytes) in sends.iter().filter(|(_, _, bytes)| *bytes > 0.0) {
            let (from, to) = (self.node(replicas[*me]), self.node(replicas[*peer]));
            let time = self.round(from, to).takes(1.0, *bytes);
            ports[*me].out += time;
            ports[*peer].into += time;
            if from != to {
                let time = self.between.beta * bytes / self.adapters.max(1) as f64;
                nodes.entry(from).or_default().out += time;
                nodes.entry(to).or_default().into += time;
            }
        }
        let slowest = ports.iter().chain(nodes.values()).map(|load| load.busy());
        let takes = slowest.fold(0.0, f64::max);
        let mut of_round = FxHashMap::<usize, f64>::default();
        for (number, load) in nodes {
            // All groups reduce at once, so equal positions in their nodes have equal loads.
            let link = of_round.entry(number % n_nodes).or_default();
            *link = link.max(load.busy());
        }
        let mut links: Vec<_> = of_round.into_iter().filter(|(_, busy)| *busy > 0.0).collect();
        links.sort_by_key(|(link, _)| *link);
        ReductionTime { takes, links }
    }
}

impl ReductionTime {
    /// Adds a round that follows.
    fn add(&mut self, round: ReductionTime) {
        self.takes += round.takes;
        for (link, busy) in round.links {
            match self.links.binary_search_by_key(&link, |(known, _)| *known) {
                Ok(at) => self.links[at].1 += busy,
                Err(at) => self.links.insert(at, (link, busy)),
            }
        }
    }

    /// The time of several equal rounds.
    fn times(mut self, n: f64) -> ReductionTime {
        self.takes *= n;
        self.links.iter_mut().for_each(|(_, busy)| *busy *= n);
        self
    }
}

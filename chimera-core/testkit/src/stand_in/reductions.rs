//! Times of the gradient reductions of a run, as given by their costs.
//!
//! A reduction occupies the lanes of its members and links between nodes, which serve one reduction
//! at a time. Its start may therefore depend on reductions that its members have no part in. Each
//! rank announces the start of a reduction to all ranks with reductions that may wait for it, and
//! each of these computes the same times. The order of two reductions is that of the simulation.

use std::time::{Duration, Instant};

use chimera_schedule::analyze::timeline::{Timeline, Work};
use chimera_schedule::costs::Costs;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::program::{Bucket, Program};
use rustc_hash::FxHashMap;

/// The reductions of a program, in the order in which they are served.
pub(super) struct ReductionOrder {
    served: Vec<Served>,
    /// By bucket: indices of the reductions that it may wait for, in order, itself last.
    chains: FxHashMap<BucketId, Vec<usize>>,
}

struct Served {
    bucket: BucketId,
    members: Vec<Rank>,
    takes: Duration,
    links: Vec<(usize, Duration)>,
}

/// Looks up the start of a reduction, by bucket and member, if known.
pub(super) type Started<'s, E> = &'s mut dyn FnMut(BucketId, Rank) -> Result<Option<Instant>, E>;

impl ReductionOrder {
    /// Orders the reductions of a program by its simulation.
    pub(super) fn of(
        program: &Program,
        simulated: &Timeline,
        costs: &impl Costs,
        seconds: impl Fn(f64) -> Duration,
    ) -> ReductionOrder {
        let mut begins = FxHashMap::default();
        for event in &simulated.events {
            if let Work::Reduce(bucket) = event.work {
                begins.entry(bucket).or_insert(event.start);
            }
        }
        let rank = |worker: &WorkerId| program.placement().rank(0, *worker);
        let served = |(at, bucket): (usize, &Bucket)| {
            let id = BucketId(at as u32);
            Served {
                bucket: id,
                members: bucket.members.iter().map(rank).collect(),
                takes: seconds(costs.reduce(id)),
                links: costs.links(id).iter().map(|(link, s)| (*link, seconds(*s))).collect(),
            }
        };
        let mut served: Vec<Served> = program.buckets().iter().enumerate().map(served).collect();
        // A reduction without duration has no position among the others.
        let begin = |one: &Served| begins.get(&one.bucket).copied().unwrap_or(0.0);
        served.sort_by(|a, b| begin(a).total_cmp(&begin(b)));
        let chains = (0..served.len()).map(|at| (served[at].bucket, chain(&served, at))).collect();
        ReductionOrder { served, chains }
    }

    /// The ranks with reductions that may wait for that of `bucket`.
    pub(super) fn listeners(&self, bucket: BucketId) -> Vec<Rank> {
        let waits = |other: &&Served| {
            let chain = self.chain(other.bucket);
            chain.iter().any(|at| self.served[*at].bucket == bucket)
        };
        let waiting = self.served.iter().filter(waits);
        let mut ranks: Vec<Rank> =
            waiting.flat_map(|other| other.members.iter().copied()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns true if the reduction of `bucket` takes time.
    pub(super) fn takes_time(&self, bucket: BucketId) -> bool {
        self.served.iter().any(|one| one.bucket == bucket && !one.takes.is_zero())
    }

    /// Returns the begin and end of the reduction of `bucket`; `None` if they are not known yet.
    ///
    /// # Errors
    /// The error of `started`, if it fails.
    pub(super) fn times<E>(
        &self,
        bucket: BucketId,
        started: Started<'_, E>,
    ) -> Result<Option<(Instant, Instant)>, E> {
        let (mut lanes, mut links) = (FxHashMap::default(), FxHashMap::default());
        let mut last = None;
        for at in self.chain(bucket) {
            let one = &self.served[*at];
            let mut begins = None;
            for member in &one.members {
                let Some(start) = started(one.bucket, *member)? else { return Ok(None) };
                begins = begins.max(Some(start)).max(lanes.get(member).copied());
            }
            let before = one.links.iter().filter_map(|(link, _)| links.get(link).copied());
            let Some(begin) = before.map(Some).fold(begins, Option::max) else { continue };
            let end = begin + one.takes;
            lanes.extend(one.members.iter().map(|member| (*member, end)));
            links.extend(one.links.iter().map(|(link, takes)| (*link, begin + *takes)));
            last = Some((begin, end));
        }
        Ok(last)
    }

    fn chain(&self, bucket: BucketId) -> &[usize] {
        self.chains.get(&bucket).map_or(&[], |chain| chain)
    }
}

/// The indices of the reductions that the one at `at` may wait for, in order, with itself last.
fn chain(served: &[Served], at: usize) -> Vec<usize> {
    let mut chain = vec![at];
    if served[at].takes.is_zero() {
        return chain;
    }
    for before in (0..at).rev().filter(|before| !served[*before].takes.is_zero()) {
        let shares = |later: &usize| {
            let (one, other) = (&served[before], &served[*later]);
            one.members.iter().any(|member| other.members.contains(member))
                || one.links.iter().any(|(link, _)| other.links.iter().any(|(l, _)| l == link))
        };
        if chain.iter().any(shares) {
            chain.push(before);
        }
    }
    chain.reverse();
    chain
}

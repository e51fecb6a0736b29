//! Reductions that slow their members: while one runs, it takes a share of each member's compute
//! and of the messages that it sends.
//!
//! A simulation follows the rows, and learns only afterwards when a reduction began. So it is
//! repeated: the reduction that begins first in it is not affected by any later one, and its time
//! is settled. The next simulation slows its members during that time, which settles the reduction
//! that begins next. A reduction that slows nothing needs no repetition.

use super::timeline::{Timeline, Work};
use crate::ir::ids::{BucketId, WorkerId};
use crate::program::Program;

/// A span of time, from its start to its end.
type Interval = [f64; 2];

/// The settled reductions, and the work that they slow.
#[derive(Clone, Default)]
pub(super) struct Slowdown {
    /// The share that a reduction takes; below 1.
    share: f64,
    /// The times of the settled reductions, by bucket.
    settled: Vec<Option<Interval>>,
    /// The settled reductions that each worker has started in this simulation, in order.
    started: Vec<Vec<Interval>>,
    /// Compute and messages of each worker in this simulation.
    works: Vec<Vec<Interval>>,
}

impl Slowdown {
    /// The most that a reduction can take, so that compute always goes on.
    const MOST: f64 = 0.99;

    /// The state before the first simulation.
    pub(super) fn new(program: &Program, share: f64) -> Slowdown {
        if share.is_nan() || share <= 0.0 {
            return Slowdown::default();
        }
        Slowdown {
            share: share.min(Slowdown::MOST),
            settled: vec![None; program.buckets().len()],
            started: vec![Vec::new(); program.rows().len()],
            works: vec![Vec::new(); program.rows().len()],
        }
    }

    /// Tells that a worker starts a reduction.
    pub(super) fn start(&mut self, worker: WorkerId, bucket: BucketId) {
        if let Some(Some(span)) = self.settled.get(bucket.index()) {
            self.started[worker.index()].push(*span);
        }
    }

    /// The time that work takes which begins at `start` and would take `takes` if no reduction ran.
    pub(super) fn takes(&mut self, worker: WorkerId, start: f64, takes: f64) -> f64 {
        if self.share == 0.0 || takes == 0.0 {
            return takes;
        }
        let spans = &self.started[worker.index()];
        let first = spans.partition_point(|[_, end]| *end <= start);
        let (mut at, mut left) = (start, takes);
        for [from, to] in &spans[first..] {
            let free = (from - at).max(0.0);
            if left <= free {
                break;
            }
            (at, left) = (at + free, left - free);
            let done = (to - at) * (1.0 - self.share);
            if left <= done {
                (at, left) = (at + left / (1.0 - self.share), 0.0);
                break;
            }
            (at, left) = (*to, left - done);
        }
        let end = at + left;
        self.works[worker.index()].push([start, end]);
        end - start
    }

    /// Settles the reductions of a simulation up to the first that slows something. Returns true if
    /// all are settled, and slow nothing that they have not slowed in this simulation.
    pub(super) fn settle(&mut self, program: &Program, timeline: &Timeline) -> bool {
        if self.share == 0.0 {
            return true;
        }
        let mut open = vec![None; self.settled.len()];
        for event in &timeline.events {
            if let Work::Reduce(bucket) = event.work {
                open[bucket.index()] = Some([event.start, event.end]);
            }
        }
        let mut open: Vec<(usize, Interval)> =
            open.into_iter().enumerate().filter_map(|(b, span)| Some((b, span?))).collect();
        open.retain(|(bucket, _)| self.settled[*bucket].is_none());
        open.sort_by(|(_, a), (_, b)| a[0].total_cmp(&b[0]));
        for works in &mut self.works {
            works.sort_by(|a, b| a[1].total_cmp(&b[1]));
        }
        for (bucket, span) in open {
            self.settled[bucket] = Some(span);
            let members = &program.buckets()[bucket].members;
            if members.iter().any(|member| self.is_busy(*member, span)) {
                self.started.iter_mut().for_each(Vec::clear);
                self.works.iter_mut().for_each(Vec::clear);
                return false;
            }
        }
        true
    }

    /// Returns true if a worker computes or sends at some time of a span.
    fn is_busy(&self, worker: WorkerId, [from, to]: Interval) -> bool {
        let works = &self.works[worker.index()];
        let first = works.partition_point(|[_, end]| *end <= from);
        works[first..].iter().any(|[start, _]| *start < to)
    }
}

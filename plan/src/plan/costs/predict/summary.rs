//! The figures of a predicted timeline that are compared with those of measured ones.

use std::collections::BTreeMap;

use chimera_core::analyze::{IdleTime, Timeline, Work};
use chimera_core::ids::{BucketId, WorkerId};
use chimera_core::op::Cell;

/// Figures of one timeline, or means of several.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Summary {
    pub(super) bubble_ratio: f64,
    /// Busy time by worker.
    pub(super) busy: Vec<f64>,
    /// Mean time over workers, by kind of work.
    pub(super) kinds: BTreeMap<&'static str, f64>,
    /// Mean idle time over workers.
    pub(super) idle: IdleTime,
}

impl Summary {
    pub(super) fn of(timeline: &Timeline, idle: IdleTime) -> Summary {
        let mut kinds = BTreeMap::new();
        let n_workers = timeline.n_workers.max(1) as f64;
        for event in timeline.events.iter().filter(|event| !is_reduction(event.work)) {
            let took = (event.end - event.start) / n_workers;
            *kinds.entry(kind(event.work)).or_default() += took;
        }
        if timeline.events.iter().any(|event| is_reduction(event.work)) {
            kinds.insert(REDUCTION, reducing(timeline) / n_workers);
        }
        Summary { bubble_ratio: timeline.bubble_ratio(), busy: timeline.busy(), kinds, idle }
    }

    /// Returns the means of summaries of the same program.
    pub(super) fn mean(each: &[Summary]) -> Summary {
        let n = each.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Summary) -> f64| each.iter().map(of).sum::<f64>() / n;
        let first = each.first();
        let kinds = first.into_iter().flat_map(|summary| summary.kinds.keys().copied());
        let of_kind = |kind| mean(&|summary| summary.kinds.get(kind).copied().unwrap_or(0.0));
        let workers = 0..first.map_or(0, |summary| summary.busy.len());
        let idle: Vec<IdleTime> = each.iter().map(|summary| summary.idle).collect();
        Summary {
            bubble_ratio: mean(&|summary| summary.bubble_ratio),
            busy: workers.map(|worker| mean(&|summary| summary.busy[worker])).collect(),
            kinds: kinds.map(|kind| (kind, of_kind(kind))).collect(),
            idle: IdleTime::shares(&idle, 1.0),
        }
    }
}

/// Returns the seconds in which workers reduce gradients, summed over them. Each reduction counts
/// from when its last replica has begun it: before that, the others wait, which is not a reduction.
/// A worker with several under way reduces them one after the other.
fn reducing(timeline: &Timeline) -> f64 {
    let reductions = || {
        timeline.events.iter().filter_map(|event| match event.work {
            Work::Reduce(bucket) => Some((bucket, event)),
            Work::Cell(_) | Work::Step(_) | Work::Move(_) => None,
        })
    };
    let mut begun = BTreeMap::<BucketId, f64>::new();
    for (bucket, event) in reductions() {
        let last = begun.entry(bucket).or_insert(event.start);
        *last = last.max(event.start);
    }
    let mut by_worker = BTreeMap::<WorkerId, Vec<[f64; 2]>>::new();
    for (bucket, event) in reductions() {
        let start = begun.get(&bucket).map_or(event.start, |at| at.max(event.start));
        by_worker.entry(event.worker).or_default().push([start, event.end]);
    }
    let union = |mut spans: Vec<[f64; 2]>| {
        spans.sort_by(|[a, _], [b, _]| a.total_cmp(b));
        let (mut sum, mut until) = (0.0, 0.0f64);
        for [start, end] in spans {
            sum += (end - start.max(until)).max(0.0);
            until = until.max(end);
        }
        sum
    };
    by_worker.into_values().map(union).sum()
}

const REDUCTION: &str = "reduction";

fn is_reduction(work: Work) -> bool {
    matches!(work, Work::Reduce(_))
}

fn kind(work: Work) -> &'static str {
    match work {
        Work::Cell(Cell::Pair(..)) => "pairs",
        Work::Cell(Cell::One(op)) => op.kind.name(),
        Work::Reduce(_) => REDUCTION,
        Work::Step(_) => "update",
        Work::Move(op) => op.kind.name(),
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::Event;

    use super::*;

    #[test]
    fn reductions_of_one_worker_at_once_count_once() {
        let event = |worker, bucket, start, end| Event {
            worker: WorkerId(worker),
            work: Work::Reduce(BucketId(bucket)),
            start,
            end,
            after: None,
        };
        // Both workers have begun both buckets at 4; the first is done at 6, the second at 9.
        let events = vec![
            event(0, 0, 1.0, 6.0),
            event(0, 1, 2.0, 9.0),
            event(1, 1, 3.0, 9.0),
            event(1, 0, 4.0, 6.0),
        ];
        let timeline = Timeline { n_workers: 2, events };
        let summary = Summary::of(&timeline, IdleTime::default());
        // The second bucket's last replica began at 3.
        assert_eq!(summary.kinds[REDUCTION], 6.0);
        let twice = Summary::mean(&[summary.clone(), summary.clone()]);
        assert_eq!(twice, summary);
    }
}

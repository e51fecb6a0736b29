//! The last things a rank did, from which it can be seen afterwards how it came to a fault.

use std::collections::VecDeque;

use super::Worker;
use crate::analyze::{Awaited, Event, Wait, Work};
use crate::comm::Comm;
use crate::kernels::Kernels;
use crate::stage::Stage;

/// How many things are kept.
const N_RECENT: usize = 2000;

/// Something that a rank did, or waited for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Did {
    /// The first step of the program it belongs to.
    pub step: u64,
    /// What it was.
    pub what: Doing,
    /// When it began, in seconds since the job's epoch.
    pub start: f64,
    /// When it was done, or given up.
    pub end: f64,
}

/// What a rank does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Work.
    Work(Work),
    /// Waiting.
    Wait(Awaited),
}

/// The last things of all runs but the present one.
#[derive(Default)]
pub(super) struct Recent {
    did: VecDeque<Did>,
}

impl Recent {
    /// Takes what was done in one run. Nothing is kept per op beside what timelines need anyway.
    pub(super) fn add(&mut self, step: u64, events: &[Event], waits: &[Wait]) {
        self.did.extend(merged(step, events, waits));
        self.did.drain(..self.did.len().saturating_sub(N_RECENT));
    }
}

impl<S, K, C> Worker<'_, S, K, C>
where
    S: Stage<Tensor = K::Tensor>,
    K: Kernels,
    C: Comm<K::Tensor>,
{
    /// The last 2,000 things this rank did, in the order in which they ended.
    pub fn recent(&self) -> Vec<Did> {
        let world = &self.world;
        let now = merged(world.step, &world.events, &world.waits);
        let all: Vec<Did> = world.recent.did.iter().copied().chain(now).collect();
        all[all.len().saturating_sub(N_RECENT)..].to_vec()
    }
}

fn merged(step: u64, events: &[Event], waits: &[Wait]) -> Vec<Did> {
    let work = events.iter().map(|e| (Doing::Work(e.work), e.start, e.end));
    let waited = waits.iter().map(|w| (Doing::Wait(w.awaited), w.start, w.end));
    let mut all: Vec<Did> =
        work.chain(waited).map(|(what, start, end)| Did { step, what, start, end }).collect();
    all.sort_by(|a, b| a.end.total_cmp(&b.end));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BucketId, WorkerId};

    #[test]
    fn only_the_last_are_kept() {
        let worker = WorkerId(0);
        let mut recent = Recent::default();
        for step in 0..3 {
            let time = |i: u32| f64::from(i) + 2000.0 * step as f64;
            let event = |i| {
                let work = Work::Step(BucketId(i));
                Event { worker, work, start: time(i), end: time(i) + 0.75, after: None }
            };
            let wait = |i| {
                let awaited = Awaited::Sum(BucketId(i));
                Wait { worker, awaited, start: time(i) - 0.5, end: time(i) }
            };
            let events: Vec<_> = (0..700).map(event).collect();
            let waits: Vec<_> = (0..700).map(wait).collect();
            recent.add(step, &events, &waits);
        }
        assert_eq!(recent.did.len(), N_RECENT);
        assert!(recent.did.iter().is_sorted_by(|a, b| a.end <= b.end));
        let (first, last) = (recent.did[0], recent.did[N_RECENT - 1]);
        assert_eq!((first.step, first.what), (1, Doing::Wait(Awaited::Sum(BucketId(400)))));
        assert_eq!((last.step, last.what), (2, Doing::Work(Work::Step(BucketId(699)))));
    }
}

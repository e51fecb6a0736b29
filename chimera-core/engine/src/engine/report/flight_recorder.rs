//! The flight recorder: the last things that a rank did, to explain a fault afterwards.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use chimera_schedule::analyze::Position;
use chimera_schedule::analyze::{Awaited, Work};

const N_RECENT: usize = 2000;

/// Something that a rank did or waited for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Did {
    /// The first step of the program that was running.
    pub step: u64,
    /// The activity.
    pub what: Doing,
    /// Start, in seconds since the job's epoch.
    pub start: f64,
    /// End of the activity, whether it was completed or given up.
    pub end: f64,
}

/// An activity of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Work.
    Work(Work),
    /// Waiting.
    Wait(Awaited),
}

/// The last 2,000 things that a rank did, and its position. Clones belong to the same rank, so
/// another thread can read one while the rank is busy.
#[derive(Clone, Default, Debug)]
pub struct FlightRecorder {
    did: Arc<Mutex<VecDeque<Did>>>,
    /// The rank's position, as bits of a [`Position`].
    position: Arc<AtomicU64>,
}

impl FlightRecorder {
    pub(crate) fn add(&self, did: Did) {
        let mut all = self.did.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == N_RECENT {
            all.pop_front();
        }
        all.push_back(did);
    }

    pub(crate) fn at(&self, position: Position) {
        self.position.store(position.to_bits(), Ordering::Relaxed);
    }

    /// The rank's current position.
    pub fn position(&self) -> Position {
        Position::from_bits(self.position.load(Ordering::Relaxed))
    }

    /// All entries, in the order in which they ended.
    pub fn all(&self) -> Vec<Did> {
        self.did.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use chimera_schedule::ids::BucketId;

    use super::*;

    #[test]
    fn only_the_last_are_kept() {
        let recent = FlightRecorder::default();
        for step in 0..2100 {
            let what = Doing::Work(Work::Step(BucketId(0)));
            recent.add(Did { step, what, start: step as f64, end: step as f64 + 0.5 });
        }
        let all = recent.clone().all();
        assert_eq!((all.len(), all[0].step, all[N_RECENT - 1].step), (N_RECENT, 100, 2099));
    }
}

//! The thread that lets MPI proceed while the engine computes.

use std::mem::take;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use chimera_core::ids::Rank;

use crate::detection::peers::Watched;
use crate::shared::{Progress, Shared};

/// Time between two checks of the peers' processes. One that is missing twice is dead.
const WATCH: Duration = Duration::from_millis(100);
/// Sleep while the engine waits and drives MPI itself.
const STAND_BY: Duration = Duration::from_micros(300);

/// Drives MPI until the job is over.
pub(crate) fn run(shared: &Shared, watched: &Watched) {
    let mut rest = Backoff::before(0, 32, Duration::from_micros(320));
    let (mut watch_next, mut missing) = (Instant::now() + WATCH, Vec::new());
    let mut evicted = Vec::new();
    while !shared.is_over.load(Ordering::Acquire) {
        if shared.is_waiting.load(Ordering::Relaxed) {
            thread::park_timeout(STAND_BY);
        } else {
            rest.after(shared.progress());
        }
        if Instant::now() >= watch_next {
            let found = watched.ended();
            // Their last messages come first: a good-bye, or why the job is over.
            while !found.is_empty() && shared.progress() == Progress::Moved {}
            watched.tell(&note_dead(shared, &found, &missing));
            missing = found;
            // An evicted rank that has woken has had time to report why it ends.
            evicted.iter().for_each(|rank| watched.kill(*rank));
            evicted = take(&mut shared.mailbox().evicted);
            watch_next = Instant::now() + WATCH;
        }
    }
}

/// Marks ranks as dead that are missing now and were missing before. Returns the newly marked ones.
fn note_dead(shared: &Shared, missing: &[Rank], before: &[Rank]) -> Vec<Rank> {
    if missing.is_empty() {
        return Vec::new();
    }
    let mut mailbox = shared.mailbox();
    let is_dead = |rank: &&Rank| {
        missing.contains(rank) && !mailbox.gone.contains(rank) && !mailbox.dead.contains(rank)
    };
    let dead: Vec<_> = before.iter().filter(is_dead).copied().collect();
    mailbox.dead.extend(&dead);
    dead
}

/// The pause between two calls of MPI, which grows while idle: it spins, yields, then sleeps.
pub(crate) struct Backoff {
    n_spins: u32,
    n_yields: u32,
    longest: Duration,
    /// Number of calls since something happened.
    n: u32,
}

impl Backoff {
    pub(crate) fn before(n_spins: u32, n_yields: u32, longest: Duration) -> Backoff {
        Backoff { n_spins, n_yields, longest, n: 0 }
    }

    /// Returns true if the next pause only spins, which takes almost no time.
    pub(crate) fn is_spinning(&self) -> bool {
        self.n < self.n_spins
    }

    /// Pauses after a call with this result.
    pub(crate) fn after(&mut self, progress: Progress) {
        if progress == Progress::Moved {
            self.n = 0;
            return;
        }
        self.n = self.n.saturating_add(1);
        if self.n <= self.n_spins {
            std::hint::spin_loop();
        } else if self.n <= self.n_spins + self.n_yields {
            thread::yield_now();
        } else {
            // Pending messages proceed only when a thread calls MPI.
            let longest = if progress == Progress::Busy { self.longest / 8 } else { self.longest };
            let n_sleeps = self.n - self.n_spins - self.n_yields;
            let sleep = Duration::from_micros(10) * n_sleeps.min(100);
            thread::park_timeout(sleep.min(longest));
        }
    }
}

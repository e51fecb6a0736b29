//! Free places for which all ranks wait, and the time that is left.

use chimera_core::ids::Rank;
use tokio::time::Instant;

use super::Survival;

/// Places of a run that are free while all wait for machines.
pub(super) struct Vacancy {
    pub(super) ranks: Vec<Rank>,
    since: Instant,
    /// Time of the next message about free places.
    next: Instant,
}

impl Vacancy {
    /// Notes which places are free. The wait begins anew when others are than `before`.
    pub(super) fn of(ranks: Vec<Rank>, before: Option<Vacancy>, now: Instant) -> Option<Vacancy> {
        if ranks.is_empty() {
            return None;
        }
        let same = before.filter(|before| before.ranks == ranks);
        Some(same.unwrap_or(Vacancy { ranks, since: now, next: now }))
    }

    /// Returns true if the user is to hear of it now, and from then on after each `remind`.
    pub(super) fn is_due(&mut self, survival: &Survival, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + survival.remind;
        }
        is_due
    }

    /// The end of the wait.
    pub(super) fn end(&self, survival: &Survival) -> Instant {
        self.since + survival.patience
    }

    /// The time at which there is something to do.
    pub(super) fn wakes(&self, survival: &Survival) -> Instant {
        self.next.min(self.end(survival))
    }
}

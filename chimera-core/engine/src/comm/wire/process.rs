//! A rank over a [`Wire`] as a process of a job: it watches the others, and leaves together with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;

use super::{Framed, Shared, TICK, Wire};
use crate::comm::{CommError, Control, Host, Message, Process};

impl<W: Wire> Shared<W> {
    fn has_left(&self, rank: Rank) -> bool {
        self.has_left[rank.index()].load(Ordering::Acquire)
    }

    /// Returns a rank that has ended without a good-bye, as the error of who waits for `what`.
    fn lost(&self, what: &str) -> Option<CommError> {
        self.others().find_map(|rank| self.mailbox.why_gone(rank, what, || self.has_left(rank)))
    }
}

/// Each rank leaves after the good-byes of all others. The transport has no sums of its own.
impl<W: Wire> Process for Framed<W> {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.shared) as Arc<dyn Control>
    }

    fn close(&mut self, patience: Duration) -> Result<(), CommError> {
        let (shared, began) = (&self.shared, Instant::now());
        let what = "its good-bye";
        shared.tell_others(Message::Bye);
        while let Some(from) = shared.others().find(|rank| !shared.has_left(*rank)) {
            if let Some(lost) = shared.lost(what) {
                return Err(lost);
            }
            if began.elapsed() >= patience {
                let (what, waited) = (what.into(), began.elapsed());
                return Err(CommError::Timeout { from, what, waited });
            }
            thread::sleep(TICK);
        }
        shared.wire.close();
        Ok(())
    }

    /// Closes the wire: the others notice it, and end themselves.
    fn end_job(&self, _: u8) {
        self.shared.wire.close();
    }
}

impl<W: Wire> Control for Shared<W> {
    fn why_over(&self) -> Option<CommError> {
        let needed = || format!("all that {} needs", self.rank);
        self.mailbox.check().err().or_else(|| self.lost(&needed()))
    }

    fn expect_tensors(&self, n_elements: usize) {
        let n_words = n_elements.saturating_mul(2).saturating_add(Host::ROOM); // of f64
        self.wire.expect_frames(n_words.saturating_mul(size_of::<f32>()));
    }

    fn open_sums(&self, _: &[Vec<Rank>]) -> Result<(), CommError> {
        let message = "this transport has no sums of its own: leave mpi-allreduce out";
        Err(CommError::Unsupported(message.into()))
    }

    fn alone(&self) -> Vec<Rank> {
        (0..self.n_ranks).map(Rank).collect()
    }
}

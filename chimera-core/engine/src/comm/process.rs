//! Ranks that are processes of a job: they watch it, leave it together, and meet again after deaths.

use std::sync::Arc;
use std::time::Duration;

use chimera_schedule::ids::Rank;

use super::{Comm, CommError, Host, Rendezvous};

/// One process's end of the transport of a job.
pub trait Process: Comm<Host> {
    /// Returns a handle by which any thread sees whether the job goes on, and prepares its transport.
    fn control(&self) -> Arc<dyn Control>;

    /// Leaves the job when all ranks do, and waits for them up to `patience`. An error names a rank that
    /// has died or does not leave. The process should end then.
    fn close(&mut self, patience: Duration) -> Result<(), CommError>;

    /// Ends all processes of the job at once, with this exit code.
    fn end_job(&self, code: u8);
}

/// A handle of a process's end, for any of its threads, such as a signal handler.
pub trait Control: Send + Sync {
    /// Returns the first known cause if the job is over: a rank has reported it or was found dead.
    fn why_over(&self) -> Option<CommError>;

    /// Expects tensors of up to `n_elements` elements; a transport may refuse longer messages.
    fn expect_tensors(&self, _n_elements: usize) {}

    /// Prepares the transport's own sums over each of `groups`. The ranks of a group wait for each
    /// other here, however long that takes, before it is summed over. Two groups that share several
    /// ranks must come in the same order on all of those.
    fn open_sums(&self, groups: &[Vec<Rank>]) -> Result<(), CommError>;

    /// Returns the ranks that no other rank could end if they stalled.
    fn alone(&self) -> Vec<Rank> {
        Vec::new()
    }
}

/// The meeting place of the processes of a job, which goes on when one has died.
pub trait ProcessRendezvous: Rendezvous<Self::End> {
    /// A process's end of the transport between two meetings.
    type End: Process;

    /// Returns this process's rank, which is a dead one's if this process replaces it.
    fn rank(&self) -> Rank;

    /// Asks to replace all dead ranks at the next meeting, which goes on if that fails.
    fn replace_missing(&mut self);

    /// Leaves the job when all living ranks do. Drop the last meeting's transport before.
    fn leave(self) -> Result<(), CommError>;
}

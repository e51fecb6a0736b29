//! Reductions inside the last backwards of their replicas.

use super::{Start, Sync, WorkerEnds};

impl Sync {
    /// Returns true if programs of this policy have one order of all messages and reductions, which
    /// NCCL needs. Inside a backward, replicas may wait for one another's messages.
    pub fn has_one_order(self) -> bool {
        self != Sync::InBackward
    }
}

impl WorkerEnds {
    /// The place of a reduction that starts when the last replica has ended its backward. If all wait
    /// for each other there, each can get there: everything that its cells need was made and sent
    /// before that time.
    pub(super) fn inside(&self, last: f64) -> Start {
        let n_cells = self.cells.partition_point(|end| *end <= last);
        let is_inside = n_cells > 0 && self.cells[n_cells - 1] == last;
        Start { n_cells, is_inside }
    }
}

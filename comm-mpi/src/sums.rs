//! Gradient reduction by MPI's all-reduce.

use std::sync::Arc;

use chimera_core::comm::CommError;
use chimera_core::ids::Rank;

use crate::shared::Shared;

/// Uses MPI's own all-reduce for sums over replicas, instead of core's messages.
pub struct Sums(pub(crate) Arc<Shared>);

impl Sums {
    /// Prepares the sums over each of `groups`. The ranks of a group wait for each other here,
    /// however long that takes, before it is summed over. Two groups with several ranks in common
    /// come in the same order on all of these.
    ///
    /// # Errors
    /// If MPI refuses.
    pub fn open(&self, groups: &[Vec<Rank>]) -> Result<(), CommError> {
        for members in groups.iter().map(|members| sorted(members)) {
            if members.len() > 1 && !self.0.sums().contains(&members) {
                self.0.open_sums(members)?;
            }
        }
        Ok(())
    }
}

/// Sorts the ranks: core has its own order of replicas, and so do MPI's sums.
pub(crate) fn sorted(members: &[Rank]) -> Vec<Rank> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    sorted
}

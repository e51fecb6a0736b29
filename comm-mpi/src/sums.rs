//! Sums that MPI makes.

use std::sync::Arc;

use chimera_core::comm::CommError;
use chimera_core::ids::Rank;

use crate::shared::Shared;

/// Lets MPI's own all-reduce do the sums over replicas, in place of core's messages.
pub struct Sums(pub(crate) Arc<Shared>);

impl Sums {
    /// Prepares the sums over each of `groups`. The ranks of a group meet for it, however long that takes, before it is
    /// summed over; two groups with several ranks in common are in one order for all of these.
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

/// The order of replicas is core's; MPI's sums have their own.
pub(crate) fn sorted(members: &[Rank]) -> Vec<Rank> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    sorted
}

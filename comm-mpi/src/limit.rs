//! A limit on the length of messages.

use std::sync::Arc;

use crate::shared::Shared;

/// Sets the length limit of messages; a longer one ends the run before memory is allocated.
pub struct Limit(pub(crate) Arc<Shared>);

impl Limit {
    /// Expects tensors of up to `n_elements` elements; other messages may have 64 MiB.
    pub fn expect_tensors(&self, n_elements: usize) {
        self.0.expect_tensors(n_elements);
    }
}

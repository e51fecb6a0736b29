//! A limit on the length of messages.

use std::sync::Arc;

use crate::shared::Shared;

/// Sets the length limit of messages once the run knows it. A longer message ends the run before
/// memory is allocated for it.
pub struct Limit(pub(crate) Arc<Shared>);

impl Limit {
    /// Expects tensors of up to `n_elements` elements. Before this call, and for other messages,
    /// the limit is 64 MiB.
    pub fn expect_tensors(&self, n_elements: usize) {
        self.0.expect_tensors(n_elements);
    }
}

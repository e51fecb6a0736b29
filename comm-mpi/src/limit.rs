//! How long messages may be.

use std::sync::Arc;

use crate::shared::Shared;

/// Says how long messages may be, when the run knows: longer ones end it before memory is taken for them.
pub struct Limit(pub(crate) Arc<Shared>);

impl Limit {
    /// Expects tensors of up to so many elements. Before, and beside tensors, messages of 64 MiB are expected.
    pub fn expect_tensors(&self, n_elements: usize) {
        self.0.expect_tensors(n_elements);
    }
}

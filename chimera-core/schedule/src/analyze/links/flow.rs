//! One flow.

use super::fair::Path;

/// The number of a flow, in order of their registration.
pub(super) type FlowId = usize;

/// Bytes on their way.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) path: Path,
    pub(super) bytes: f64,
    /// Sending rank, row position and receiving rank, for the order in a queue.
    pub(super) order: [u32; 3],
    /// Links of the path that carry it or have carried it, of FIFO links.
    pub(super) crossed: usize,
    /// The earliest time at which it can be there, of FIFO links.
    pub(super) there: f64,
}

//! Counts of the memory that a pool holds.

/// Bytes of a pool.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Bytes in use.
    pub(super) used: u64,
    /// The most bytes that were in use.
    pub(super) peak: u64,
    /// Bytes that it holds, in use or not.
    pub(super) reserved: u64,
}

//! Counts of the memory that a pool holds.

/// Bytes of a pool.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Bytes in use.
    pub(crate) used: u64,
    /// The most bytes that were in use.
    pub(crate) peak: u64,
    /// Bytes that it holds, in use or not.
    pub(crate) reserved: u64,
}

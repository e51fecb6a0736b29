//! Counts of the memory that a pool holds.

/// Bytes of a pool.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// In use.
    pub(super) used: u64,
    /// The most that were in use.
    pub(super) peak: u64,
    /// That it holds, in use or not.
    pub(super) reserved: u64,
}

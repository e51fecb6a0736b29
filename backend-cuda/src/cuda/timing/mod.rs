//! Times of kernels and streams, and names for profilers.

pub(super) mod clock;
pub(super) mod nvtx;
pub(super) mod timed;
pub(super) mod usage;

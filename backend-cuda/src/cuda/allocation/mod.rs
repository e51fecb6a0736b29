//! Memory of a GPU: its pools, its streams, and copies to and from it.

pub(super) mod counts;
pub(super) mod foreign;
pub(super) mod kept;
pub(super) mod lane;
pub(super) mod memory;
pub(super) mod pool;
pub(super) mod staging;
pub(super) mod stream;

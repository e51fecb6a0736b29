//! Gradient reduction: the ranks that sum, the order of their sums, and the precision.

pub(crate) mod bf16;
pub(crate) mod layout;
pub(crate) mod owned;
pub(crate) mod reduction;
pub(crate) mod reductions;
pub(crate) mod shards;
pub(crate) mod within;

//! Gradient reduction: who sums what, in which order, and in which precision.

pub(crate) mod bf16;
pub(crate) mod layout;
pub(crate) mod reduction;
pub(crate) mod reductions;
pub(crate) mod shards;

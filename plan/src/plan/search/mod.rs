//! The search for the fastest configuration that fits into memory.

pub(super) mod advice;
pub(super) mod answers;
pub(super) mod candidate;
pub(super) mod choose;
pub(super) mod effort;
pub(super) mod estimate;
pub(super) mod layers;
pub(super) mod layout;
pub(super) mod no_way;
pub(super) mod offloaded;
pub(super) mod recomputed;
pub(super) mod scaled;
pub(super) mod searched;
pub(super) mod step_parts;
pub(super) mod step_time;
pub(super) mod ways;

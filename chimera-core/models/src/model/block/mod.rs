//! What the blocks of all models share: their inputs, caches, and saved tensors.

pub(super) mod cache;
pub(super) mod kept;
pub(super) mod parts;
pub(super) mod pass;
pub(super) mod slices;

//! Parts of the blocks of all models: their inputs, caches, and saved tensors.

pub(super) mod cache;
pub(super) mod deferred;
pub(super) mod kept;
pub(super) mod parts;
pub(super) mod pass;
pub(super) mod slices;

//! NVIDIA's libraries, and kernels compiled by them.

pub(super) mod capability;
pub(super) mod compile;
pub(super) mod compiled;
pub(super) mod libraries;

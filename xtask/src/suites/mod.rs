//! Suites of tests that need more than `cargo test`: another language, a device, a transport, a crate outside of the workspace.

pub(crate) mod beside_candle;
pub(crate) mod burn;
pub(crate) mod cuda;
mod cuda_packages;
pub(crate) mod gallery;
pub(crate) mod mpi;
pub(crate) mod nccl;
pub(crate) mod outside;
pub(crate) mod page;
pub(crate) mod python;
pub(crate) mod report;
pub(crate) mod wasm;
mod wasm_target;
pub(crate) mod wgpu;

//! Code that chores share with the studies in `research`.

pub mod command;
pub mod features;
pub mod measure;
pub mod mpi_library;
pub mod open_mpi_5;
pub mod strike;
pub mod vulkan;

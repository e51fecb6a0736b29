//! The subcommands.

pub(crate) mod checkpoint;
pub(crate) mod comm;
mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod devices;
pub(crate) mod eval;
mod export;
pub(crate) mod export_model;
mod gallery;
pub(crate) mod generate;
#[cfg(feature = "quic")]
pub(crate) mod host;
mod import;
#[cfg(feature = "quic")]
pub(crate) mod join;
pub(crate) mod man;
mod pipeline;
pub(crate) mod plan;
pub(crate) mod prepare;
pub(crate) mod profile;
#[cfg(feature = "quic")]
pub(crate) mod relay;
pub(crate) mod report;
pub(crate) mod schedule;
pub(crate) mod selftest;
pub(crate) mod simulate;
pub(crate) mod slurm;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod train;

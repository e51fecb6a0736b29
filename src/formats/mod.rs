//! The formats of files: how any file is read and written ([`files`]), and what is in those of timetables, of models of
//! Hugging Face, and of checkpoints.

pub mod checkpoint;
pub mod files;
pub mod hf;
pub mod save;
mod special_ids;
pub mod timetable;
#[cfg(feature = "cli")]
pub(crate) mod trace;
pub(crate) mod unique_keys;

pub use special_ids::SpecialIds;

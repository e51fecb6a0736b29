//! The formats of files: reading and writing of any file ([`files`]), and the contents of
//! timetables, of models of Hugging Face ([`hub`] fetches them), of adapters, and of checkpoints.

pub mod adapter;
pub mod checkpoint;
pub mod files;
pub mod hf;
pub mod hub;
pub mod peft;
pub mod save;
mod special_ids;
pub mod timetable;
#[doc(hidden)]
pub mod trace;
#[doc(hidden)]
pub mod unique_keys;

pub use special_ids::SpecialIds;

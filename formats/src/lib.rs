//! File formats: reading and writing of any file ([`files`]), and the content of files with
//! timetables, Hugging Face's models ([`hub`] fetches them), adapters and checkpoints.

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

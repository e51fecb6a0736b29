//! Timetables in files, for people and other programs to read and to write.

mod form;
pub mod json;

pub use json::{ReadError, from_json, to_json};

#[cfg(test)]
mod tests;

//! Timetables in files, for people and other programs to read and to write.

pub mod csv;
mod form;
pub mod json;

pub use csv::{from_csv, to_csv};
pub use json::{ReadError, from_json, to_json};

#[cfg(test)]
mod tests;

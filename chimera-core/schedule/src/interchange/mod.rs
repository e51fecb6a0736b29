//! Timetables in files, for people and other programs to read and to write, and programs for other
//! executors.

mod counts;
pub mod csv;
mod form;
pub mod json;
mod models;
pub mod program;
pub mod reads;
mod row;

pub use csv::{from_csv, to_comms_csv, to_csv};
pub use json::{ReadError, from_json, to_json};
pub use program::{program_to_json, rows_in_one_order_to_json};
pub use row::{NotARow, RowReader, row_to_text};

#[cfg(test)]
mod tests;

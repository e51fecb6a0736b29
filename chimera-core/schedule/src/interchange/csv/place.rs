//! Places in a file.

use crate::interchange::json::ReadError;

/// The place of an action, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) row: usize,
    pub(super) column: usize,
}

impl Place {
    /// The place after the start of a file.
    pub(super) fn behind(start: &[u8]) -> Place {
        let row = start.iter().filter(|byte| **byte == b'\n').count();
        let line = start.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let column = line.iter().filter(|byte| **byte == b',').count();
        Place { row, column }
    }

    pub(super) fn refuse(self, reason: impl Into<String>) -> ReadError {
        ReadError::Value { path: self.to_string(), reason: reason.into() }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "row {} (rank {}), column {}", self.row + 1, self.row, self.column + 1)
    }
}

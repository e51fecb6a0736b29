//! Matrices in memory, as operands of products.

use std::ops::Range;

/// A matrix in memory, read by steps; so transposes, heads and row ranges need no copy.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_step: usize,
    pub(super) column_step: usize,
}

impl<'a> Matrix<'a> {
    /// The `rows x columns` block at the start of `data`, whose rows lie `row_step` apart.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, row_step: usize) -> Self {
        let last = (rows.max(1) - 1) * row_step + columns;
        assert!(last <= data.len(), "matrix ends outside of its memory");
        Self { data, rows, columns, row_step, column_step: 1 }
    }

    /// The transpose.
    pub(super) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }

    /// One row.
    pub(super) fn row(self, row: usize) -> Self {
        assert!(row < self.rows);
        Self { data: &self.data[row * self.row_step..], rows: 1, ..self }
    }

    /// Some columns, of which there is one at least.
    pub(super) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.start < columns.end && columns.end <= self.columns);
        let data = &self.data[columns.start * self.column_step..];
        Self { data, columns: columns.len(), ..self }
    }
}

//! Matrices in memory, as operands of products.

use std::ops::Range;

/// A strided view of a matrix in memory, so transposes, heads and row ranges need no copy.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
}

impl<'a> Matrix<'a> {
    /// Returns the `rows x columns` block at the start of `data`, whose rows lie `row_step` apart.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize, row_step: usize) -> Self {
        let end = if rows == 0 { 0 } else { (rows - 1) * row_step + columns };
        assert!(end <= data.len(), "matrix ends outside of its memory");
        Self { data, rows, columns, row_step, column_step: 1 }
    }

    /// Returns the transpose.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_step: self.column_step,
            column_step: self.row_step,
            ..self
        }
    }

    pub(crate) fn row(self, row: usize) -> Self {
        assert!(row < self.rows);
        // Without columns, the start of the row may be outside of the memory.
        let data = self.data.get(row * self.row_step..).unwrap_or_default();
        Self { data, rows: 1, ..self }
    }

    /// Returns some columns, at least one.
    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.start < columns.end && columns.end <= self.columns);
        let data = &self.data[columns.start * self.column_step..];
        Self { data, columns: columns.len(), ..self }
    }

    /// Returns some columns of some rows, at least one of each.
    pub(crate) fn part(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        self.t().columns(rows).t().columns(columns)
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::device::{Device, Result};
    use chimera_core::layers::{Layout, Linear};

    use crate::Candle;

    /// Returns the processor, in each precision that it has.
    fn devices() -> impl Iterator<Item = Candle> {
        [Candle::cpu(), Candle::cpu_bf16()].into_iter()
    }

    #[test]
    fn no_rows_have_no_results_and_add_nothing() -> Result<()> {
        for (k, outputs) in devices().flat_map(|k| [(k.clone(), 3), (k, 1)]) {
            let (x, dy) = (k.zeros(&[0, 4])?, k.zeros(&[0, outputs])?);
            for (layout, shape) in [(Layout::InOut, [4, outputs]), (Layout::OutIn, [outputs, 4])] {
                let ones = vec![1.0; 4 * outputs];
                let (w, bias) = (k.upload(&shape, &ones)?, k.upload(&[outputs], &ones[..outputs])?);
                for (bias, residual) in [(None, None), (Some(&bias), Some(&dy))] {
                    let y = k.linear(&x, &w, layout, bias, residual)?;
                    assert_eq!(k.shape(&y), [0, outputs]);
                }
                assert_eq!(k.shape(&k.linear_dx(&dy, &w, layout)?), [0, 4]);
                let (mut dw, mut d_bias) = (w, bias);
                k.linear_dw(&x, &dy, layout, &mut dw, Some(&mut d_bias))?;
                assert_eq!(k.download(&dw)?, ones, "{layout:?} {outputs}");
                assert_eq!(k.download(&d_bias)?, ones[..outputs], "{layout:?} {outputs}");
            }
        }
        Ok(())
    }

    /// One row and many rows are multiplied in different ways.
    #[test]
    fn sums_of_nothing_are_zeros() -> Result<()> {
        for (k, rows) in devices().flat_map(|k| [(k.clone(), 1), (k, 20)]) {
            let x = k.zeros(&[rows, 0])?;
            for (layout, shape) in [(Layout::InOut, [0, 3]), (Layout::OutIn, [3, 0])] {
                let w = k.zeros(&shape)?;
                let y = k.linear(&x, &w, layout, None, None)?;
                assert_eq!(k.download(&y)?, vec![0.0; 3 * rows], "{layout:?} {rows}");
            }
        }
        Ok(())
    }
}

//! Sums of elements and of columns.

use chimera_core::device::Result;

use super::{CHUNK, cut, number};
use crate::gpu::{Call, Gpu};
use crate::shader::{Kernel, SUMS};
use crate::tensor::{Slice, Tensor};

static SUM: Kernel = Kernel { source: &SUMS, entry: "sums", n_written: 1, n_read: 1, n_numbers: 2 };
static SQUARES: Kernel =
    Kernel { source: &SUMS, entry: "squares", n_written: 1, n_read: 1, n_numbers: 2 };
static COLUMNS: Kernel =
    Kernel { source: &SUMS, entry: "columns", n_written: 1, n_read: 1, n_numbers: 5 };

/// Elements that one invocation adds up.
const PART: usize = 256;

impl Gpu {
    /// Returns the sum of squares of each tensor, as `[tensors.len()]`.
    pub(crate) fn squared_norms(&self, op: &'static str, tensors: &[&Tensor]) -> Result<Tensor> {
        let norms = self.tensor(op, &[tensors.len()])?;
        for (number, x) in tensors.iter().enumerate() {
            self.sum_into(op, &SQUARES, x, norms.slice(number, 1))?;
        }
        Ok(norms)
    }

    /// Returns the sum of all elements, as `[1]`.
    pub(super) fn sum(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        let sum = self.tensor(op, &[1])?;
        self.sum_into(op, &SUM, x, sum.all())?;
        Ok(sum)
    }

    fn sum_into(
        &self,
        op: &'static str,
        kernel: &'static Kernel,
        x: &Tensor,
        into: Slice<'_>,
    ) -> Result<()> {
        if x.n_elements() <= PART {
            return self.add_up(op, kernel, into, x.all());
        }
        let parts = self.parts(op, kernel, x)?;
        self.sum_into(op, &SUM, &parts, into)
    }

    /// Returns the sums of parts of `x`, which are then summed themselves.
    fn parts(&self, op: &'static str, kernel: &'static Kernel, x: &Tensor) -> Result<Tensor> {
        let blocks: Vec<_> = self.blocks(op, x.n_elements(), 1, 1)?.collect();
        let n_parts = blocks.iter().map(|block| block.len().div_ceil(PART)).sum();
        let parts = self.tensor(op, &[n_parts])?;
        let mut done = 0;
        for block in blocks {
            let n = block.len().div_ceil(PART);
            self.add_up(op, kernel, parts.slice(done, n), x.slice(block.start, block.len()))?;
            done += n;
        }
        Ok(parts)
    }

    fn add_up(
        &self,
        op: &'static str,
        kernel: &'static Kernel,
        parts: Slice<'_>,
        x: Slice<'_>,
    ) -> Result<()> {
        self.run(
            op,
            &Call {
                kernel,
                constants: self.tuning().element_constants(),
                operands: &[parts, x],
                numbers: &[number(x.len), number(parts.len)],
                groups: self.element_grid(parts.len),
            },
        )
    }

    /// Adds the sum of each column of `x: [rows, width]` to `into: [width]`.
    pub(super) fn add_columns(&self, op: &'static str, into: &Tensor, x: &Tensor) -> Result<()> {
        let (width, most) = (x.width(), self.most_chunked_rows());
        for block in self.blocks(op, x.n_rows(), width, 1)?.flat_map(|block| cut(block, most)) {
            let x = x.rows(block.start, block.len());
            let n_chunks = block.len().div_ceil(CHUNK);
            let parts = self.tensor(op, &[n_chunks, width])?;
            let rows = Columns { rows: block.len(), width, step: width, chunk: CHUNK, adds: false };
            self.columns(op, parts.all(), x.all(), &rows)?;
            self.add_parts(op, into, &parts, 0)?;
        }
        Ok(())
    }

    /// Adds the sums of as many columns of `parts` as `into` has, from column `first` on.
    pub(super) fn add_parts(
        &self,
        op: &'static str,
        into: &Tensor,
        parts: &Tensor,
        first: usize,
    ) -> Result<()> {
        let (rows, step, width) = (parts.n_rows(), parts.width(), into.n_elements());
        let from = parts.slice(first, (rows - 1) * step + width);
        self.columns(op, into.all(), from, &Columns { rows, width, step, chunk: rows, adds: true })
    }

    fn columns(&self, op: &'static str, out: Slice<'_>, x: Slice<'_>, by: &Columns) -> Result<()> {
        let [rows, width, step, chunk] = [by.rows, by.width, by.step, by.chunk].map(number);
        let groups = width.div_ceil(self.tuning().group);
        self.run(
            op,
            &Call {
                kernel: &COLUMNS,
                constants: self.tuning().element_constants(),
                operands: &[out, x],
                numbers: &[rows, width, step, chunk, by.adds.into()],
                groups: [groups, rows.div_ceil(chunk), 1],
            },
        )
    }
}

/// The columns of a matrix to sum.
struct Columns {
    rows: usize,
    width: usize,
    /// Elements from one row to the next.
    step: usize,
    /// Rows per sum.
    chunk: usize,
    /// Whether sums are added to the destination.
    adds: bool,
}

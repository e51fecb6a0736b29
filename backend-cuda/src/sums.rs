//! Sums of squares and of columns.

use std::sync::{Arc, PoisonError};

use chimera_core::device::Result;

use super::{Arg, BLOCK, Driver, Element, Gpu, Queue, Tensor, int, long};

/// The most blocks of a sum over all elements; each leaves one number.
const MOST_PARTS: usize = 1024;
/// The most ranges of rows that are summed separately before they join the total, and the fewest
/// rows of one. The ranges are enough to keep a GPU busy, with enough rows that reading them is
/// most of the work.
const MOST_RANGES: usize = 16;
const LEAST_ROWS: usize = 64;
/// Columns per block.
const SUMMED: usize = 32;

/// Sums over ranges of rows, which the last block adds up.
pub(super) struct Ranges {
    pub(super) range: usize,
    pub(super) n: usize,
    pub(super) width: usize,
}

impl Ranges {
    pub(super) fn of(rows: usize, width: usize) -> Self {
        let range = rows.div_ceil(MOST_RANGES).next_multiple_of(LEAST_ROWS);
        Self { range, n: rows.div_ceil(range.max(1)), width }
    }

    /// Returns the bytes of one sum per range and column.
    pub(super) fn bytes(&self) -> usize {
        self.n * self.width * size_of::<f32>()
    }

    /// Returns the grid of a kernel whose blocks take some columns of a range.
    pub(super) fn grid(&self) -> [usize; 2] {
        [self.width.div_ceil(SUMMED), self.n]
    }
}

impl<D: Driver> Gpu<D> {
    pub(super) fn sums_of_squares(
        &self,
        tensors: &[&Tensor<D::Memory>],
    ) -> Result<Tensor<D::Memory>> {
        let tensors: Vec<_> = tensors.iter().map(|x| self.wide(x)).collect::<Result<_>>()?;
        let (mut rows, mut n_blocks) = (Vec::new(), 0);
        for x in &tensors {
            let own = n_parts(x.len());
            rows.extend([x.read(), long(x.len()), long(n_blocks), long(own)]);
            n_blocks += own;
        }
        let (all, n) = (Arg::Table(&rows), tensors.len());
        let parts = self.allocate(n_blocks * size_of::<f64>())?;
        let sums = self.empty(&[n], Element::F32)?;
        let args = [all, int(n), Arg::Write(&parts, 0)];
        self.run("squares", [n_blocks, 1], BLOCK, &args)?;
        self.run("totals", [n, 1], BLOCK, &[all, Arg::Read(&parts, 0), sums.write()])?;
        Ok(sums)
    }

    /// Allocates memory for the sums of the blocks of a kernel over `n` elements.
    pub(super) fn parts(&self, n: usize) -> Result<Parts<D::Memory>> {
        let n = n_parts(n);
        Ok(Parts { memory: self.allocate(n * size_of::<f64>())?, n })
    }

    /// Returns `scale` times the sum of all parts, a tensor of shape `[1]`.
    pub(super) fn sum(&self, parts: &Parts<D::Memory>, scale: f64) -> Result<Tensor<D::Memory>> {
        let sum = self.empty(&[1], Element::F32)?;
        let args = [Arg::Read(&parts.memory, 0), sum.write(), int(parts.n), Arg::Double(scale)];
        self.run("total", [1, 1], BLOCK, &args)?;
        Ok(sum)
    }

    /// Adds the sum of each column of `x` to `into`.
    pub(super) fn add_columns(
        &self,
        x: &Tensor<D::Memory>,
        into: &Tensor<D::Memory>,
    ) -> Result<()> {
        let (rows, width) = (x.n_rows(), x.width());
        let ranges = Ranges::of(rows, width);
        let (parts, arrived) = (self.allocate(ranges.bytes())?, self.arrived(&ranges)?);
        let args = [
            x.read(),
            Arg::Write(&parts, 0),
            Arg::Write(&*arrived, 0),
            into.write(),
            long(rows),
            int(width),
            int(x.pitch),
            int(ranges.range),
        ];
        self.run("add_columns", ranges.grid(), BLOCK, &args)
    }

    /// Returns an arrival counter per column of blocks, initially 0; every kernel resets it to 0.
    pub(super) fn arrived(&self, ranges: &Ranges) -> Result<Arc<D::Memory>> {
        let bytes = ranges.grid()[0] * size_of::<u32>();
        let Queue { driver, arrived } = self.queue();
        let mut kept = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((memory, _)) = kept.as_ref().filter(|(_, room)| *room >= bytes) {
            return Ok(Arc::clone(memory));
        }
        let room = bytes.next_power_of_two();
        let memory = Arc::new(driver.allocate(room)?);
        driver.fill(&memory, 0)?;
        *kept = Some((Arc::clone(&memory), room));
        Ok(memory)
    }
}

/// Partial sums in f64, one per block.
pub(super) struct Parts<M> {
    pub(super) memory: M,
    pub(super) n: usize,
}

/// Returns the number of blocks of a sum over `n` elements.
fn n_parts(n: usize) -> usize {
    n.div_ceil(4 * BLOCK).clamp(1, MOST_PARTS)
}

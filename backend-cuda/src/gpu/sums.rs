//! Sums of squares and of columns.

use chimera_core::device::Result;

use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, WARP, int, long};

/// Blocks of a sum over all elements; each leaves one number.
const MOST_PARTS: usize = 1024;
/// Rows that are summed by themselves before they join the total.
const RANGE: usize = 128;

/// Sums over ranges of rows, to be added up.
pub(super) struct Ranges {
    pub(super) range: usize,
    pub(super) n: usize,
    pub(super) width: usize,
}

impl Ranges {
    pub(super) fn of(rows: usize, width: usize) -> Self {
        Self { range: RANGE, n: rows.div_ceil(RANGE), width }
    }

    /// Bytes of one sum for each range and column.
    pub(super) fn bytes(&self) -> usize {
        self.n * self.width * size_of::<f32>()
    }

    /// The grid of a kernel whose blocks take 32 columns of a range.
    pub(super) fn grid(&self) -> [usize; 2] {
        [self.width.div_ceil(WARP), self.n]
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

    /// Room for the sums of the blocks of a kernel over `n` elements.
    pub(super) fn parts(&self, n: usize) -> Result<Parts<D::Memory>> {
        let n = n_parts(n);
        Ok(Parts { memory: self.allocate(n * size_of::<f64>())?, n })
    }

    /// `scale` times the sum of all parts, a tensor of shape `[1]`.
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
        let parts = self.allocate(ranges.bytes())?;
        let args = [
            x.read(),
            Arg::Write(&parts, 0),
            long(rows),
            int(width),
            int(x.pitch),
            int(ranges.range),
        ];
        self.run("column_sums", ranges.grid(), BLOCK, &args)?;
        self.add_parts(&parts, &ranges, into)
    }

    /// Adds up the sums of all ranges.
    pub(super) fn add_parts(
        &self,
        parts: &D::Memory,
        ranges: &Ranges,
        into: &Tensor<D::Memory>,
    ) -> Result<()> {
        let Ranges { n, width, .. } = *ranges;
        let args = [Arg::Read(parts, 0), into.write(), int(n), int(width)];
        self.run("add_parts", [width.div_ceil(WARP), 1], BLOCK, &args)
    }
}

/// Numbers in f64 to be added up, one of each block.
pub(super) struct Parts<M> {
    pub(super) memory: M,
    pub(super) n: usize,
}

/// Blocks of a sum over `n` elements.
fn n_parts(n: usize) -> usize {
    n.div_ceil(4 * BLOCK).clamp(1, MOST_PARTS)
}

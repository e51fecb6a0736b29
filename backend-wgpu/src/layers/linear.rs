//! Linear layers: three matrix products, and column sums.

use std::ops::Range;

use chimera_core::device::Result;
use chimera_core::layers::Layout;

use super::{MAX_ROUNDS, cut, number};
use crate::gpu::{Call, Gpu};
use crate::shader::{Constants, Kernel, LINEAR, LINEAR_SUBGROUPS};
use crate::tensor::{Slice, Tensor};
use crate::tuning::Product;

static REGISTERS: Kernel =
    Kernel { source: &LINEAR, entry: "registers", n_written: 1, n_read: 4, n_numbers: 9 };
static SUBGROUPS: Kernel =
    Kernel { source: &LINEAR_SUBGROUPS, entry: "subgroups", n_written: 1, n_read: 4, n_numbers: 9 };
static TILES: Kernel =
    Kernel { source: &LINEAR, entry: "tiles", n_written: 1, n_read: 4, n_numbers: 9 };

/// A matrix as it lies in memory, or its transpose.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    tensor: &'a Tensor,
    is_across: bool,
}

impl<'a> Matrix<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        Matrix { tensor, is_across: false }
    }

    fn t(self) -> Self {
        Matrix { is_across: !self.is_across, ..self }
    }

    /// Returns the numbers of rows and columns.
    fn extents(self) -> (usize, usize) {
        let (rows, columns) = (self.tensor.n_rows(), self.tensor.width());
        if self.is_across { (columns, rows) } else { (rows, columns) }
    }

    /// Returns the memory from the first to the last element of a block.
    fn block(self, rows: &Range<usize>, columns: &Range<usize>) -> Slice<'a> {
        let (rows, columns) = if self.is_across { (columns, rows) } else { (rows, columns) };
        if rows.is_empty() || columns.is_empty() {
            return self.tensor.slice(0, 0);
        }
        let width = self.tensor.width();
        let len = (rows.len() - 1) * width + columns.len();
        self.tensor.slice(rows.start * width + columns.start, len)
    }
}

/// A kernel for matrix products, with its sizes.
struct Way {
    kernel: &'static Kernel,
    /// Invocations per workgroup.
    group: u32,
    block: u32,
    /// Columns and rows that a workgroup computes.
    tile: [u32; 2],
}

impl Way {
    fn of(product: Product) -> Way {
        let (kernel, group, block, tile) = match product {
            Product::Registers => (&REGISTERS, 8, 4, [64, 4]),
            Product::Subgroups => (&SUBGROUPS, 8, 4, [32, 32]),
            Product::Tiles => (&TILES, 256, 4, [64, 64]),
            Product::WideTiles => (&TILES, 256, 8, [128, 128]),
        };
        Way { kernel, group, block, tile }
    }

    /// Returns the constants for operands that lie transposed or not.
    fn constants(&self, a_is_across: bool, b_is_across: bool) -> Constants {
        vec![
            ("GROUP", self.group),
            ("BLOCK", self.block),
            ("A_ACROSS", a_is_across.into()),
            ("B_ACROSS", b_is_across.into()),
        ]
    }
}

/// Returns the sources of all products, with all their constants.
#[cfg(test)]
pub(super) fn sources() -> impl Iterator<Item = (&'static crate::shader::Source, Constants)> {
    let ways = Product::ALL.map(|(_, product)| Way::of(product)).into_iter();
    let across = [(false, false), (false, true), (true, false), (true, true)];
    ways.flat_map(move |way| across.map(|(a, b)| (way.kernel.source, way.constants(a, b))))
}

/// Additions to a product when it is stored.
#[derive(Clone, Copy, Default)]
struct With<'a> {
    /// Whether it is added to the destination.
    adds: bool,
    bias: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
}

impl Gpu {
    pub(crate) fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        layout: Layout,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let w = in_out(w, layout);
        let y = self.tensor("linear", &[x.n_rows(), w.extents().1])?;
        self.product("linear", &y, Matrix::new(x), w, With { adds: false, bias, residual })?;
        Ok(y)
    }

    pub(crate) fn linear_dx(&self, dy: &Tensor, w: &Tensor, layout: Layout) -> Result<Tensor> {
        let w = in_out(w, layout);
        let dx = self.tensor("linear_dx", &[dy.n_rows(), w.extents().0])?;
        self.product("linear_dx", &dx, Matrix::new(dy), w.t(), With::default())?;
        Ok(dx)
    }

    pub(crate) fn linear_dw(
        &self,
        x: &Tensor,
        dy: &Tensor,
        layout: Layout,
        dw: &Tensor,
        d_bias: Option<&mut Tensor>,
    ) -> Result<()> {
        let op = "linear_dw";
        // x and dy swap if dw lies transposed.
        let (down, along) = match layout {
            Layout::InOut => (x, dy),
            Layout::OutIn => (dy, x),
        };
        let with = With { adds: true, ..With::default() };
        self.product(op, dw, Matrix::new(down).t(), Matrix::new(along), with)?;
        match d_bias {
            Some(d_bias) => self.add_columns(op, d_bias, dy),
            None => Ok(()),
        }
    }

    /// Computes `c = a b`, block by block if an operand is too large to be bound at once.
    fn product(
        &self,
        op: &'static str,
        c: &Tensor,
        a: Matrix<'_>,
        b: Matrix<'_>,
        with: With<'_>,
    ) -> Result<()> {
        let ((m, depth), n) = (a.extents(), b.extents().1);
        assert_eq!((depth, c.shape()), (b.extents().0, &[m, n][..]), "{op}");
        // The widest row along each dimension decides.
        let [mut by_m, mut by_n, mut by_depth] = [n, 1, 1];
        let of_a = if a.is_across { &mut by_depth } else { &mut by_m };
        *of_a = a.tensor.width().max(*of_a);
        let of_b = if b.is_across { &mut by_n } else { &mut by_depth };
        *of_b = b.tensor.width().max(*of_b);
        let way = Way::of(self.tuning().products.of(m, n));
        let [most_columns, most_rows] =
            way.tile.map(|side| (self.max_groups() as usize).saturating_mul(side as usize));
        // An empty sum has one part, which writes zeros and the bias and residual.
        let empty = (depth == 0 && !with.adds).then_some(0..0);
        for rows in self.blocks(op, m, by_m, 1)?.flat_map(|rows| cut(rows, most_rows)) {
            let columns = self.blocks(op, n, by_n, 1)?;
            for columns in columns.flat_map(|columns| cut(columns, most_columns)) {
                let inner = self.blocks(op, depth, by_depth, 1)?;
                let inner = inner.flat_map(|inner| cut(inner, MAX_ROUNDS));
                for inner in inner.chain(empty.clone()) {
                    // Bias and residual are added with the first part of a sum.
                    let with = match inner.start {
                        0 => with,
                        _ => With { adds: true, ..With::default() },
                    };
                    self.multiply(op, &way, c, [a, b], [&rows, &columns, &inner], with)?;
                }
            }
        }
        Ok(())
    }

    fn multiply(
        &self,
        op: &'static str,
        way: &Way,
        c: &Tensor,
        [a, b]: [Matrix<'_>; 2],
        [rows, columns, inner]: [&Range<usize>; 3],
        with: With<'_>,
    ) -> Result<()> {
        let bias = with.bias.map(|bias| bias.slice(columns.start, columns.len()));
        let residual = with.residual.map(|residual| Matrix::new(residual).block(rows, columns));
        let extents = [rows.len(), columns.len(), inner.len()].map(number);
        let steps = [c, a.tensor, b.tensor].map(|matrix| number(matrix.width()));
        let flags = [with.adds, bias.is_some(), residual.is_some()].map(u32::from);
        self.run(
            op,
            &Call {
                kernel: way.kernel,
                constants: way.constants(a.is_across, b.is_across),
                operands: &[
                    Matrix::new(c).block(rows, columns),
                    a.block(rows, inner),
                    b.block(inner, columns),
                    bias.unwrap_or(self.nothing()),
                    residual.unwrap_or(self.nothing()),
                ],
                numbers: &[&extents[..], &steps, &flags].concat(),
                groups: [extents[1].div_ceil(way.tile[0]), extents[0].div_ceil(way.tile[1]), 1],
            },
        )
    }
}

/// Returns the weights of a linear layer as `[inputs, outputs]`.
fn in_out(w: &Tensor, layout: Layout) -> Matrix<'_> {
    match layout {
        Layout::InOut => Matrix::new(w),
        Layout::OutIn => Matrix::new(w).t(),
    }
}

//! Layer norm and RMS norm, with a warp per row.

use chimera_core::device::Result;

use super::sums::Ranges;
use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, WARP, float, int, long};

impl<D: Driver> Gpu<D> {
    /// Computes layer norm if there is a bias, and otherwise RMS norm.
    pub(super) fn normalise(
        &self,
        x: &Tensor<D::Memory>,
        gain: &Tensor<D::Memory>,
        bias: Option<&Tensor<D::Memory>>,
        epsilon: f64,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let (rows, width) = (x.n_rows(), x.width());
        let x = self.cast(x)?;
        let y = self.activation_of(&x.shape)?;
        let n_stats = if bias.is_some() { 2 } else { 1 };
        let stats = self.empty(&[rows, n_stats], Element::F32)?;
        let args = [
            x.read(),
            gain.read(),
            bias.map_or(Arg::Null, Tensor::read),
            y.write(),
            stats.write(),
            long(rows),
            int(width),
            float(epsilon),
        ];
        self.run("row_norm", by_rows(rows), BLOCK, &args)?;
        Ok((y, stats))
    }

    pub(super) fn normalise_backward_input(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        stats: &Tensor<D::Memory>,
        gain: &Tensor<D::Memory>,
        residual: Option<&Tensor<D::Memory>>,
    ) -> Result<Tensor<D::Memory>> {
        let (rows, width) = (x.n_rows(), x.width());
        let (dy, x) = (self.cast(dy)?, self.cast(x)?);
        let residual = residual.map(|residual| self.cast(residual)).transpose()?;
        let dx = self.activation_of(&x.shape)?;
        let args = [
            dy.read(),
            x.read(),
            stats.read(),
            gain.read(),
            residual.as_ref().map_or(Arg::Null, Tensor::read),
            dx.write(),
            long(rows),
            int(width),
            Arg::Int((stats.width() - 1) as i32), // layer norm keeps the mean too
        ];
        self.run("row_norm_dx", by_rows(rows), BLOCK, &args)?;
        Ok(dx)
    }

    pub(super) fn normalise_backward_weight(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        stats: &Tensor<D::Memory>,
        d_gain: &Tensor<D::Memory>,
        d_bias: Option<&Tensor<D::Memory>>,
    ) -> Result<()> {
        let (rows, width) = (x.n_rows(), x.width());
        let (dy, x) = (self.cast(dy)?, self.cast(x)?);
        let ranges = Ranges::of(rows, width);
        let n_sums = if d_bias.is_some() { 2 } else { 1 };
        let (parts, arrived) = (self.allocate(n_sums * ranges.bytes())?, self.arrived(&ranges)?);
        let args = [
            dy.read(),
            x.read(),
            stats.read(),
            Arg::Write(&parts, 0),
            Arg::Write(&*arrived, 0),
            d_gain.write(),
            d_bias.map_or(Arg::Null, Tensor::write),
            long(rows),
            int(width),
            int(ranges.range),
        ];
        self.run("row_norm_dw", ranges.grid(), BLOCK, &args)
    }
}

/// Returns the grid of a kernel whose warps process a row each.
fn by_rows(rows: usize) -> [usize; 2] {
    [rows.div_ceil(BLOCK / WARP), 1]
}

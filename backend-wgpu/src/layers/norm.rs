//! Layer norm and RMS norm.

use chimera_core::device::Result;

use super::{CHUNK, cut, number};
use crate::gpu::{Call, Gpu};
use crate::shader::{Constants, Kernel, NORM};
use crate::tensor::Tensor;
use crate::tuning::Tuning;

static FORWARD: Kernel =
    Kernel { source: &NORM, entry: "forward", n_written: 2, n_read: 3, n_numbers: 3 };
static BACKWARD_INPUT: Kernel =
    Kernel { source: &NORM, entry: "backward_input", n_written: 1, n_read: 5, n_numbers: 3 };
static BACKWARD_WEIGHT: Kernel =
    Kernel { source: &NORM, entry: "backward_weight", n_written: 1, n_read: 3, n_numbers: 3 };

impl Gpu {
    /// Computes layer norm if there is a bias, and otherwise RMS norm.
    pub(crate) fn norm(
        &self,
        op: &'static str,
        x: &Tensor,
        gain: &Tensor,
        bias: Option<&Tensor>,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor)> {
        let (rows, width) = (x.n_rows(), x.width());
        let n_stats = if bias.is_some() { 2 } else { 1 };
        // Rounds for the mean, the variance and twice the result; or for squares and result.
        self.check_rounds(op, 2 * n_stats * width.div_ceil(self.tuning().lanes as usize))?;
        let (y, stats) = (self.tensor(op, &[rows, width])?, self.tensor(op, &[rows, n_stats])?);
        let bias = bias.map_or(self.nothing(), Tensor::all);
        for block in self.blocks(op, rows, width, 1)? {
            let (start, len) = (block.start, block.len());
            let [x, y, stats] = [x, &y, &stats].map(|t| t.rows(start, len));
            self.run(
                op,
                &Call {
                    kernel: &FORWARD,
                    constants: self.tuning().norm_constants(stats.width()),
                    operands: &[y.all(), stats.all(), x.all(), gain.all(), bias],
                    numbers: &[number(len), number(width), (epsilon as f32).to_bits()],
                    groups: self.row_grid(len),
                },
            )?;
        }
        Ok((y, stats))
    }

    pub(crate) fn norm_dx(
        &self,
        op: &'static str,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, width) = (x.n_rows(), x.width());
        self.check_rounds(op, (stats.width() + 1) * width.div_ceil(self.tuning().lanes as usize))?;
        let dx = self.tensor(op, &[rows, width])?;
        for block in self.blocks(op, rows, width, 1)? {
            let (start, len) = (block.start, block.len());
            let [dx, dy, x, stats] = [&dx, dy, x, stats].map(|t| t.rows(start, len));
            let residual = residual.map(|t| t.rows(start, len));
            let around = residual.as_ref().map_or(self.nothing(), Tensor::all);
            self.run(
                op,
                &Call {
                    kernel: &BACKWARD_INPUT,
                    constants: self.tuning().norm_constants(stats.width()),
                    operands: &[dx.all(), dy.all(), x.all(), stats.all(), gain.all(), around],
                    numbers: &[number(len), number(width), residual.is_some().into()],
                    groups: self.row_grid(len),
                },
            )?;
        }
        Ok(dx)
    }

    /// `d_weights` are the gradients of the gain and, for layer norm, of the bias.
    pub(crate) fn norm_dw(
        &self,
        op: &'static str,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_weights: &[&Tensor],
    ) -> Result<()> {
        let (rows, width) = (x.n_rows(), x.width());
        let most = self.most_chunked_rows();
        for block in self.blocks(op, rows, width, 1)?.flat_map(|block| cut(block, most)) {
            let [dy, x, stats] = [dy, x, stats].map(|t| t.rows(block.start, block.len()));
            let n_chunks = block.len().div_ceil(CHUNK);
            let parts = self.tensor(op, &[n_chunks, d_weights.len() * width])?;
            self.run(
                op,
                &Call {
                    kernel: &BACKWARD_WEIGHT,
                    constants: self.tuning().norm_constants(stats.width()),
                    operands: &[parts.all(), dy.all(), x.all(), stats.all()],
                    numbers: &[block.len(), width, CHUNK].map(number),
                    groups: [number(width).div_ceil(self.tuning().row_group), number(n_chunks), 1],
                },
            )?;
            for (d_weight, nth) in d_weights.iter().zip(0..) {
                self.add_parts(op, d_weight, &parts, nth * width)?;
            }
        }
        Ok(())
    }
}

impl Tuning {
    /// Returns the constants for this many numbers kept per row: layer norm also keeps the mean.
    pub(super) fn norm_constants(&self, n_stats: usize) -> Constants {
        let mut constants = self.row_constants();
        constants.push(("CENTRED", number(n_stats - 1)));
        constants
    }
}

//! Layer norm.

use chimera_core::device::Result;

use super::{CHUNK, cut, number};
use crate::gpu::{Call, Gpu};
use crate::shader::{Kernel, LAYER_NORM};
use crate::tensor::Tensor;

static FORWARD: Kernel =
    Kernel { source: &LAYER_NORM, entry: "forward", n_written: 2, n_read: 3, n_numbers: 3 };
static BACKWARD_INPUT: Kernel =
    Kernel { source: &LAYER_NORM, entry: "backward_input", n_written: 1, n_read: 5, n_numbers: 3 };
static BACKWARD_WEIGHT: Kernel =
    Kernel { source: &LAYER_NORM, entry: "backward_weight", n_written: 1, n_read: 3, n_numbers: 3 };

impl Gpu {
    pub(crate) fn layer_norm(
        &self,
        x: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor)> {
        let op = "layer_norm";
        let (rows, width) = (x.n_rows(), x.width());
        let (y, stats) = (self.tensor(op, &[rows, width])?, self.tensor(op, &[rows, 2])?);
        for block in self.blocks(op, rows, width, 1)? {
            let (start, len) = (block.start, block.len());
            let [x, y, stats] = [x, &y, &stats].map(|t| t.rows(start, len));
            self.run(
                op,
                &Call {
                    kernel: &FORWARD,
                    constants: self.tuning().row_constants(),
                    operands: &[y.all(), stats.all(), x.all(), gain.all(), bias.all()],
                    numbers: &[number(len), number(width), (epsilon as f32).to_bits()],
                    groups: self.row_grid(len),
                },
            )?;
        }
        Ok((y, stats))
    }

    pub(crate) fn layer_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let op = "layer_norm_dx";
        let (rows, width) = (x.n_rows(), x.width());
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
                    constants: self.tuning().row_constants(),
                    operands: &[dx.all(), dy.all(), x.all(), stats.all(), gain.all(), around],
                    numbers: &[number(len), number(width), residual.is_some().into()],
                    groups: self.row_grid(len),
                },
            )?;
        }
        Ok(dx)
    }

    pub(crate) fn layer_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &Tensor,
        d_bias: &Tensor,
    ) -> Result<()> {
        let op = "layer_norm_dw";
        let (rows, width) = (x.n_rows(), x.width());
        let most = self.most_chunked_rows();
        for block in self.blocks(op, rows, width, 1)?.flat_map(|block| cut(block, most)) {
            let [dy, x, stats] = [dy, x, stats].map(|t| t.rows(block.start, block.len()));
            let n_chunks = block.len().div_ceil(CHUNK);
            let parts = self.tensor(op, &[n_chunks, 2 * width])?;
            self.run(
                op,
                &Call {
                    kernel: &BACKWARD_WEIGHT,
                    constants: self.tuning().row_constants(),
                    operands: &[parts.all(), dy.all(), x.all(), stats.all()],
                    numbers: &[block.len(), width, CHUNK].map(number),
                    groups: [number(width).div_ceil(self.tuning().row_group), number(n_chunks), 1],
                },
            )?;
            self.add_parts(op, d_gain, &parts, 0)?;
            self.add_parts(op, d_bias, &parts, width)?;
        }
        Ok(())
    }
}

//! Rotary positions.

use chimera_core::device::Result;
use chimera_core::layers::Rotary;

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{Kernel, ROTARY};
use crate::tensor::Tensor;

static KERNEL: Kernel =
    Kernel { source: &ROTARY, entry: "rotary", n_written: 1, n_read: 2, n_numbers: 9 };

impl Gpu {
    pub(crate) fn rotary(&self, x: &Tensor, table: &Tensor, by: Rotary) -> Result<Tensor> {
        let op = "rotary";
        let (rows, width) = (x.n_rows(), x.width());
        let (context, dim) = (table.n_rows(), table.width());
        let turned = by.heads * dim;
        assert!(turned <= width, "{op}");
        let y = self.tensor(op, &[rows, width])?;
        let sign = if by.backward { -1.0f32 } else { 1.0 };
        // Each block of the table rotates the rows whose positions it has.
        let places: Vec<_> = self.blocks(op, context, dim, 1)?.collect();
        for block in self.blocks(op, rows, width, 1)? {
            let [x, y] = [x, &y].map(|t| t.rows(block.start, block.len()));
            for place in &places {
                let table = table.rows(place.start, place.len());
                let sizes =
                    [block.len(), width, context, turned, dim, block.start, place.start, place.end];
                self.run(
                    op,
                    &Call {
                        kernel: &KERNEL,
                        constants: self.tuning().element_constants(),
                        operands: &[y.all(), x.all(), table.all()],
                        numbers: &[&sizes.map(number)[..], &[sign.to_bits()]].concat(),
                        groups: self.element_grid(x.n_elements()),
                    },
                )?;
            }
        }
        Ok(y)
    }
}

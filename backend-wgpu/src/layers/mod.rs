//! The layers, one file per family: operands cut into what can be bound, and the kernels' numbers.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod optimizer;
mod pointwise;
mod sums;

use crate::gpu::Gpu;
use crate::shader::Constants;

/// Rows that are summed by themselves before their sums are, which keeps rounding small and a device busy.
const CHUNK: usize = 64;

impl Gpu {
    /// Of kernels that work on elements.
    fn element_constants(&self) -> Constants {
        vec![("GROUP", self.tuning().group)]
    }

    /// Of kernels that work on rows.
    fn row_constants(&self) -> Constants {
        vec![("GROUP", self.tuning().row_group), ("LANES", self.tuning().lanes)]
    }

    /// Workgroups for `n` elements.
    fn element_grid(&self, n: usize) -> [u32; 3] {
        self.grid(n.div_ceil(self.tuning().group as usize))
    }

    /// Workgroups for `n` rows.
    fn row_grid(&self, n: usize) -> [u32; 3] {
        let per_group = self.tuning().row_group / self.tuning().lanes;
        self.grid(n.div_ceil(per_group as usize))
    }
}

/// A kernel's immediates are 32 bits each.
fn number(n: usize) -> u32 {
    n as u32
}

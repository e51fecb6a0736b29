//! The layers, one file per family: operands cut into parts to bind, and the kernels' numbers.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod linear;
mod norm;
mod optimizer;
mod pointwise;
mod rotary;
mod sums;

use std::ops::Range;

use chimera_core::device::Result;

use crate::gpu::Gpu;
use crate::shader::Constants;
use crate::tuning::Tuning;

/// Rows that are summed separately first: less rounding, and more work at once.
const CHUNK: usize = 64;

/// The most rounds of all loops of an invocation: llvmpipe silently ends them there.
const MAX_ROUNDS: usize = 65_535;

impl Tuning {
    /// Returns the constants of elementwise kernels.
    fn element_constants(&self) -> Constants {
        vec![("GROUP", self.group)]
    }

    /// Returns the constants of kernels that work on rows.
    fn row_constants(&self) -> Constants {
        vec![("GROUP", self.row_group), ("LANES", self.lanes)]
    }
}

impl Gpu {
    /// Refuses a kernel whose loops take more rounds than the device allows.
    fn check_rounds(&self, op: &'static str, rounds: usize) -> Result<()> {
        if rounds <= MAX_ROUNDS || !self.name().contains("llvmpipe") {
            return Ok(());
        }
        let reason = format!(
            "its loops take {rounds} rounds, and llvmpipe ends them after {MAX_ROUNDS}: shorten the context, \
             the vocabulary or the hidden size, or choose another device"
        );
        Err(self.failed(op, reason))
    }

    /// Returns the grid of workgroups for `n` elements.
    fn element_grid(&self, n: usize) -> [u32; 3] {
        self.grid(n.div_ceil(self.tuning().group as usize))
    }

    /// Returns the most rows, if each [`CHUNK`] takes a workgroup number along one dimension.
    fn most_chunked_rows(&self) -> usize {
        (self.max_groups() as usize).saturating_mul(CHUNK)
    }

    /// Returns the grid of workgroups for `n` rows.
    fn row_grid(&self, n: usize) -> [u32; 3] {
        let per_group = self.tuning().row_group / self.tuning().lanes;
        self.grid(n.div_ceil(per_group as usize))
    }
}

/// Cuts rows or columns into parts of at most `most`, to limit workgroups or loop rounds.
fn cut(all: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = all;
    (start..end).step_by(most).map(move |start| start..end.min(start + most))
}

/// Converts a number to a kernel's immediate, which has 32 bits.
fn number(n: usize) -> u32 {
    n as u32
}

/// Returns the sources of all layers, with all their constants.
#[cfg(test)]
pub(crate) fn sources(tuning: &Tuning) -> Vec<(&'static crate::shader::Source, Constants)> {
    use crate::shader::*;
    use chimera_core::layers::Activation;
    let of_elements = [&DROPOUT, &EMBEDDING, &OPTIMIZER, &POINTWISE, &ROTARY, &SUMS];
    let of_elements = of_elements.map(|source| (source, tuning.element_constants()));
    let of_rows = [(&CROSS_ENTROPY, tuning.row_constants())];
    let norms = [1, 2].map(|n_stats| (&NORM, tuning.norm_constants(n_stats)));
    let functions = [Activation::GeluTanh, Activation::Gelu, Activation::Tanh, Activation::Silu];
    let functions = functions.map(|f| (&ACTIVATION, tuning.activation_constants(f)));
    let dims = [1, 3, 4, 6, 16, 64, 80, 128, 256];
    let attention = [&ATTENTION_FORWARD, &ATTENTION_BACKWARD]
        .into_iter()
        .flat_map(|source| dims.map(|dim| (source, tuning.attention_constants(dim))));
    let sources = of_elements.into_iter().chain(of_rows).chain(norms).chain(functions);
    sources.chain(attention).chain(linear::sources()).collect()
}

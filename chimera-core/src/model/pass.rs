//! What a block needs beside its weights and its input.

use crate::kernels::{Dropout, Kernels, Layout, Mask, Result};
use crate::stage::Micro;

/// The dropout of a model: none, unless a stage is told otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rate {
    /// Probability of being dropped.
    pub(super) rate: f64,
    /// With step, layer and sample it decides which elements are.
    pub(super) seed: u64,
}

/// The layer of the dropout behind the embedding.
pub(super) const EMBEDDED: u64 = 0;

/// The layers of the dropouts behind a block's projections back to the residual stream: of its attention, and
/// of its MLP.
pub(super) fn projections(block: usize) -> [u64; 2] {
    [1 + 2 * block as u64, 2 + 2 * block as u64]
}

/// The layer of the first block's attention weights; those of the others follow, apart from all of the above.
const ATTENTION: u64 = 1 << 32;

/// One micro-batch on its way through the layers of a stage, forward or backward.
pub(super) struct Pass<'p, K> {
    /// The device.
    pub(super) kernels: &'p K,
    /// Heads per row.
    pub(super) heads: usize,
    /// Rows per sample.
    pub(super) sequence: usize,
    /// Who sees whom.
    pub(super) mask: Mask<'p>,
    /// The dropout of layer 0 from the micro-batch's first row on, per feature of a row; `None` if nothing
    /// is dropped.
    dropout: Option<(Rate, u64, u64)>,
}

impl<'p, K: Kernels> Pass<'p, K> {
    pub(super) fn new(
        kernels: &'p K,
        heads: usize,
        sequence: usize,
        mask: Mask<'p>,
        rate: Rate,
        micro: &Micro<'_>,
    ) -> Self {
        let first_row = micro.sample * sequence as u64;
        let drops = micro.training && rate.rate > 0.0;
        let dropout = drops.then_some((rate, micro.step, first_row));
        Pass { kernels, heads, sequence, mask, dropout }
    }

    /// `dropout(x w + bias) + residual`, with the dropout of `layer`.
    pub(super) fn linear(
        &self,
        layer: u64,
        x: &K::Tensor,
        w: &K::Tensor,
        layout: Layout,
        bias: &K::Tensor,
        residual: &K::Tensor,
    ) -> Result<K::Tensor> {
        let k = self.kernels;
        match self.dropout(layer, residual) {
            None => k.linear(x, w, layout, Some(bias), Some(residual)),
            Some(by) => {
                let y = k.linear(x, w, layout, Some(bias), None)?;
                k.dropout(&y, &by, Some(residual))
            }
        }
    }

    /// The dropout of `layer` on its output, or on the gradient of its output.
    pub(super) fn dropped(&self, layer: u64, x: &K::Tensor) -> Result<K::Tensor> {
        match self.dropout(layer, x) {
            None => Ok(x.clone()),
            Some(by) => self.kernels.dropout(x, &by, None),
        }
    }

    /// Mixed values and log-sum-exp of block `block`.
    pub(super) fn attention(
        &self,
        block: usize,
        qkv: &K::Tensor,
    ) -> Result<(K::Tensor, K::Tensor)> {
        let drop = self.attention_dropout(block);
        self.kernels.attention(qkv, self.heads, self.sequence, self.mask, drop.as_ref())
    }

    /// The gradient of its `qkv`.
    pub(super) fn attention_dx(
        &self,
        block: usize,
        dy: &K::Tensor,
        qkv: &K::Tensor,
        out: &K::Tensor,
        log_sum: &K::Tensor,
    ) -> Result<K::Tensor> {
        let (k, drop) = (self.kernels, self.attention_dropout(block));
        let Pass { heads, sequence, mask, .. } = *self;
        k.attention_dx(dy, qkv, out, log_sum, heads, sequence, mask, drop.as_ref())
    }

    /// That of the weights of attention.
    fn attention_dropout(&self, block: usize) -> Option<Dropout> {
        let (Rate { rate, seed }, step, first_row) = self.dropout?;
        let first = first_row * (self.heads * self.sequence) as u64;
        Some(Dropout::new(rate, seed, step, ATTENTION + block as u64, first))
    }

    /// That of `layer` on the rows of the micro-batch, as wide as `like`.
    fn dropout(&self, layer: u64, like: &K::Tensor) -> Option<Dropout> {
        let (Rate { rate, seed }, step, first_row) = self.dropout?;
        let width: usize = self.kernels.shape(like)[1..].iter().product();
        Some(Dropout::new(rate, seed, step, layer, first_row * width as u64))
    }
}

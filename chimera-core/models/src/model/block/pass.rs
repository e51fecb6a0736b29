//! The inputs of a block other than its weights and activation.

use std::cell::RefCell;
use std::collections::btree_map::Entry;

use chimera_engine::device::Result;
use chimera_engine::layers::{Attention, Dropout, Layers};
use chimera_engine::stage::{Left, Micro};

use super::cache::{KvCache, Texts};
use super::slices::PassSlice;
use crate::model::config::DropoutRate;

/// The dropout layer after the embedding.
pub(crate) const EMBEDDED: u64 = 0;

/// The dropout layers after a block's projections to the residual stream: attention and MLP.
pub(crate) fn projections(block: usize) -> [u64; 2] {
    [1 + 2 * block as u64, 2 + 2 * block as u64]
}

/// The dropout layer of the first block's attention weights; the other blocks' follow.
const ATTENTION: u64 = 1 << 32;

/// One micro-batch on its way through the layers of a stage, forward or backward.
pub(crate) struct Pass<'p, D: Layers> {
    /// The device.
    pub(crate) device: &'p D,
    /// The attention between rows, without dropout.
    attention: Attention<'p>,
    /// Rate and seed of dropout, the step, and the first row; `None` if nothing is dropped.
    dropout: Option<(DropoutRate, u64, u64)>,
    /// The texts of the rows, if they continue texts.
    texts: Option<RefCell<Texts<D::Tensor>>>,
    /// The slice of the rows, if they are not whole samples.
    slice: Option<PassSlice<'p, D::Tensor>>,
}

impl<'p, D: Layers> Pass<'p, D> {
    pub(crate) fn new(
        device: &'p D,
        attention: Attention<'p>,
        rate: DropoutRate,
        micro: &Micro<'_>,
    ) -> Self {
        let first_row = micro.sample * attention.context as u64;
        let drops = micro.training && rate.rate > 0.0;
        let dropout = drops.then_some((rate, micro.step, first_row));
        Pass { device, attention, dropout, texts: None, slice: None }
    }

    /// Makes a forward pass of rows that follow those in the caches of `texts`.
    pub(crate) fn following(
        device: &'p D,
        attention: Attention<'p>,
        texts: Texts<D::Tensor>,
    ) -> Self {
        Pass { device, attention, dropout: None, texts: Some(RefCell::new(texts)), slice: None }
    }

    /// Returns the caches of the texts, which have seen the rows; none without texts.
    pub(crate) fn into_caches(self) -> Vec<KvCache<D::Tensor>> {
        self.texts.map_or_else(Vec::new, |texts| texts.into_inner().seen())
    }

    /// Makes a pass of a slice of samples, in which nothing is dropped. `attention` has the rows of
    /// a sample up to the slice's end.
    pub(crate) fn of_slice(
        device: &'p D,
        attention: Attention<'p>,
        slice: PassSlice<'p, D::Tensor>,
    ) -> Self {
        Pass { device, attention, dropout: None, texts: None, slice: Some(slice) }
    }

    /// Returns the state that a slice [left](PassSlice::end) on its way; empty for whole samples.
    pub(crate) fn end(self) -> (Left<D::Tensor>, Vec<Left<D::Tensor>>) {
        self.slice.map(PassSlice::end).unwrap_or_default()
    }

    /// Computes `dropout(x w + bias) + residual`, with the dropout of `layer`.
    pub(crate) fn linear(
        &self,
        layer: u64,
        residual: &D::Tensor,
        linear: impl FnOnce(Option<&D::Tensor>) -> Result<D::Tensor>,
    ) -> Result<D::Tensor> {
        match self.dropout(layer, residual) {
            None => linear(Some(residual)),
            Some(by) => self.device.dropout(&linear(None)?, &by, Some(residual)),
        }
    }

    /// Applies the dropout of `layer` to its output, or to the gradient of its output.
    pub(crate) fn dropped(&self, layer: u64, x: &D::Tensor) -> Result<D::Tensor> {
        match self.dropout(layer, x) {
            None => Ok(x.clone()),
            Some(by) => self.device.dropout(x, &by, None),
        }
    }

    /// Returns mixed values and log-sum-exp of block `block`.
    pub(crate) fn attention(
        &self,
        block: usize,
        qkv: &D::Tensor,
    ) -> Result<(D::Tensor, D::Tensor)> {
        if let Some(slice) = &self.slice {
            return slice.attention(self.device, block, qkv, &self.attention);
        }
        match &self.texts {
            None => self.device.attention(qkv, &self.attention_of(block)),
            Some(texts) => self.attention_after(block, qkv, &mut texts.borrow_mut()),
        }
    }

    /// Returns mixed values and log-sum-exp of rows that see the earlier rows of their text.
    fn attention_after(
        &self,
        block: usize,
        qkv: &D::Tensor,
        texts: &mut Texts<D::Tensor>,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let (device, width) = (self.device, self.device.shape(qkv)[1]);
        let (mut start, mut of_texts) = (0, Vec::with_capacity(texts.rows.len()));
        for (&rows, cache) in texts.rows.iter().zip(texts.caches.iter_mut()) {
            let past = cache.len();
            let cache = match cache.blocks.entry(block) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(room) => room.insert(device.zeros(&[self.attention.context, width])?),
            };
            let own = device.rows(qkv, start, rows)?;
            of_texts.push(device.attention_after(&own, cache, past, &self.attention)?);
            start += rows;
        }
        if of_texts.len() == 1 {
            return Ok(of_texts.remove(0));
        }
        let (mixed, log_sums): (Vec<_>, Vec<_>) = of_texts.iter().map(|(x, log)| (x, log)).unzip();
        Ok((device.join(&mixed)?, device.join(&log_sums)?))
    }

    /// Returns the gradient of attention's `qkv`.
    pub(crate) fn attention_dx(
        &self,
        block: usize,
        dy: &D::Tensor,
        qkv: &D::Tensor,
        out: &D::Tensor,
        log_sum: &D::Tensor,
    ) -> Result<D::Tensor> {
        if let Some(slice) = &self.slice {
            let mixed = (out, log_sum);
            return slice.attention_dx(self.device, block, dy, qkv, mixed, &self.attention);
        }
        self.device.attention_dx(dy, qkv, out, log_sum, &self.attention_of(block))
    }

    /// Returns the attention of block `block`, with the dropout of its weights.
    fn attention_of(&self, block: usize) -> Attention<'p> {
        let dropout = self.dropout.map(|(DropoutRate { rate, seed }, step, first_row)| {
            let first = first_row * self.attention.weight(1, 0);
            Dropout::new(rate, seed, step, ATTENTION + block as u64, first)
        });
        Attention { dropout, ..self.attention }
    }

    /// Returns the dropout of `layer` on the rows of the micro-batch, as wide as `like`.
    fn dropout(&self, layer: u64, like: &D::Tensor) -> Option<Dropout> {
        let (DropoutRate { rate, seed }, step, first_row) = self.dropout?;
        let width: usize = self.device.shape(like)[1..].iter().product();
        Some(Dropout::new(rate, seed, step, layer, first_row * width as u64))
    }
}

//! Decoder-only transformers as pipeline stages: pre-norm causal blocks that predict the next
//! token. A [form](DecoderForm) defines its layers, so that GPT-2 and Llama are two forms.

mod block;
mod body;
mod documents;
mod follow;
mod params;
mod saved;
mod slice;

use std::borrow::Cow;
use std::ops::Range;
use std::slice::ChunksExact;

use block::Blocks;
use chimera_engine::device::Result;
use chimera_engine::layers::{Attention, Layers, Layout, Mask};
use chimera_engine::stage::{
    DynMovable, DynSelective, DynSizes, DynSliced, DynSplittable, Micro, Output, Param, Stage,
};
use documents::{Documents, rows_of};
use saved::{SavedHead, SelectedHead};

use super::adapted::AdapterDropout;
use super::block::deferred::Deferred;
use super::block::kept::Kept;
use super::block::pass::Pass;
use super::config::{Cut, DropoutRate, ModelConfig};
use super::error::ModelError;
use super::form::DecoderForm;
use super::lora::diagonal;
use super::operands::{add_embedding, is_frozen};
use super::rope::frequencies;

pub use follow::decoder;
pub(super) use params::params;
pub use saved::{DecoderDeferred, DecoderSaved, DecoderSelected};

/// One stage of a decoder-only transformer, such as GPT-2 or Llama, on the device of `D`.
#[derive(Clone, Debug)]
pub struct DecoderStage<D: Layers> {
    device: D,
    cut: Cut,
    form: DecoderForm,
    attention: Attention<'static>,
    /// Cosines and sines of each position, if positions are rotary.
    rotary: Option<D::Tensor>,
    /// The token that ends each document, if tokens only see their own.
    end_of_text: Option<u32>,
    hidden: usize,
    dropout: DropoutRate,
    params: Vec<Param>,
    /// Index of the head's matrix: the token table itself if it is tied and on this stage.
    head: usize,
    /// The scale of adapters, unless it is 1 and there are no magnitudes.
    scale: Option<D::Tensor>,
    /// Number of the stage's first blocks whose input gradients are not needed.
    n_idle: usize,
}

impl<D: Layers> DecoderStage<D> {
    /// Returns the stage `cut` of `config`, for samples of `sequence` tokens, at most `context`.
    ///
    /// # Errors
    /// If there are no such samples, if the model is not a decoder, or if the device lacks its
    /// layers.
    pub fn new(
        device: D,
        config: &ModelConfig,
        sequence: usize,
        cut: Cut,
    ) -> std::result::Result<Self, ModelError> {
        config.check_sequence(sequence)?;
        let model = config.architecture.0.title();
        let family = config.architecture.0;
        let mut form = family.decoder(config).ok_or(ModelError::NoDecoder { model })?;
        let mut scale = None;
        if let Some(lora) = &cut.tuning.lora {
            form.adapters = lora.places(family, &config.block_params(&cut));
            scale = diagonal(&device, lora)?;
        }
        let ModelConfig { heads, hidden, .. } = *config;
        let rotary = form.rotary.map(|(theta, scaling)| {
            if device.llama().is_none() {
                return Err(ModelError::Device { device: device.name(), model });
            }
            let frequencies = frequencies(theta, &scaling, config.head_dim(), sequence);
            Ok(device.rotary_table(&frequencies, scaling.factor(), sequence)?)
        });
        let DecoderForm { kv_heads, mask, .. } = form;
        let attention = Attention { kv_heads, mask, ..Attention::causal(heads, sequence) };
        let (params, n_idle) = (config.params(&cut), config.n_idle_blocks(&cut));
        // A stage without a layer has no tensor, and no head that would be read.
        let last = params.len().saturating_sub(1);
        let head = if config.tied && cut.first { 0 } else { last };
        let (rotary, dropout) = (rotary.transpose()?, DropoutRate::default());
        let end_of_text = config.end_of_text;
        let stage = Self {
            device,
            cut,
            form,
            attention,
            rotary,
            end_of_text,
            hidden,
            dropout,
            params,
            head,
            scale,
            n_idle,
        };
        Ok(stage)
    }

    /// Sets training's dropout on the embedding and the blocks' outputs to the residual stream.
    pub fn with_dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: DropoutRate { rate, seed }, ..self }
    }

    /// Returns the documents of samples, if tokens only see their own.
    fn documents(&self, ids: &[u32]) -> Option<Documents> {
        Some(Documents::of(ids, self.end_of_text?, self.attention.context))
    }

    /// Returns the first row that each row sees, unless it only depends on the row's position.
    fn seen(&self, micro: &Micro<'_>) -> Option<Vec<u32>> {
        Some(self.documents(micro.input)?.seen(self.attention.mask))
    }

    fn blocks<'b>(&'b self, micro: &Micro<'_>, seen: Option<&'b [u32]>) -> Blocks<'b, D> {
        let mask = seen.map_or(self.attention.mask, Mask::Documents);
        let pass =
            Pass::new(&self.device, Attention { mask, ..self.attention }, self.dropout, micro);
        let dropout = self.adapter_dropout(micro, &self.whole());
        Blocks { dropout, ..self.blocks_of(pass, self.rotary.as_ref()) }
    }

    fn blocks_of<'b>(&'b self, pass: Pass<'b, D>, rotary: Option<&'b D::Tensor>) -> Blocks<'b, D> {
        let turned = self.attention.heads + self.attention.kv_heads;
        let (form, scale, dropout) = (&self.form, self.scale.as_ref(), None);
        Blocks { pass, form, rotary: rotary.map(|table| (table, turned)), scale, dropout }
    }

    /// Returns the dropout of adapters in these rows of each sample.
    fn adapter_dropout(&self, micro: &Micro<'_>, rows: &Range<usize>) -> Option<AdapterDropout> {
        let by = (self.cut.tuning.lora.as_ref()?.dropout, self.dropout.seed);
        AdapterDropout::new(by, micro, self.attention.context, rows)
    }

    /// Returns the range of the blocks' tensors.
    fn body(&self) -> Range<usize> {
        let start = if self.cut.first { self.form.embedding_len() } else { 0 };
        start..start + self.cut.blocks.len() * self.form.block_len()
    }

    fn weights<'w>(&self, w: &'w [D::Tensor]) -> ChunksExact<'w, D::Tensor> {
        w[self.body()].chunks_exact(self.form.block_len())
    }

    /// Returns one row of zeros instead of a position table, for rotary positions.
    fn no_positions(&self) -> Result<D::Tensor> {
        self.device.zeros(&[1, self.hidden])
    }

    fn whole(&self) -> Range<usize> {
        0..self.attention.context
    }

    /// Picks from `values`, one per row, those of these `rows` of each sample.
    fn picked<'v>(&self, values: &'v [u32], rows: &Range<usize>) -> Cow<'v, [u32]> {
        if *rows == self.whole() {
            return Cow::Borrowed(values);
        }
        let of_sample = |sample: &'v [u32]| sample.get(rows.clone()).unwrap_or_default();
        values.chunks(self.attention.context).flat_map(of_sample).copied().collect()
    }

    /// Returns the positions of `rows` in the samples of `ids`; `None` if they are the row numbers.
    fn positions(&self, ids: &[u32], rows: &Range<usize>) -> Option<Vec<u32>> {
        match self.documents(ids) {
            Some(documents) => Some(self.picked(&documents.positions(), rows).into_owned()),
            None if *rows == self.whole() => None,
            None => {
                let of_sample = || rows.clone().map(|row| row as u32);
                let n_samples = ids.len() / self.attention.context;
                Some((0..n_samples).flat_map(|_| of_sample()).collect())
            }
        }
    }

    /// Returns the embedding of these `rows` of the samples of `ids`.
    fn embedded(&self, w: &[D::Tensor], ids: &[u32], rows: &Range<usize>) -> Result<D::Tensor> {
        let device = &self.device;
        if self.rotary.is_some() {
            return device.embedding(&self.picked(ids, rows), 1, &w[0], &self.no_positions()?);
        }
        let Some(positions) = self.positions(ids, rows) else {
            return device.embedding(ids, self.attention.context, &w[0], &w[1]);
        };
        let table = rows_of(device, &w[1], &positions)?;
        device.embedding(&self.picked(ids, rows), positions.len(), &w[0], &table)
    }

    /// Applies the final norm, and returns the input of the head with its saved activations.
    fn norm_head(
        &self,
        w: &[D::Tensor],
        selected: SelectedHead<D::Tensor>,
    ) -> Result<SavedHead<D::Tensor>> {
        let norm = &w[self.body().end..];
        let (normed, stats) = self.form.norm.forward(&self.device, &selected.x, norm)?;
        Ok(SavedHead { selected, stats, normed })
    }
}

pub(super) fn stage<D: Layers>(
    device: D,
    config: &ModelConfig,
    sequence: usize,
    dropout: DropoutRate,
    cut: Cut,
) -> std::result::Result<DecoderStage<D>, ModelError> {
    Ok(DecoderStage { dropout, ..DecoderStage::new(device, config, sequence, cut)? })
}

impl<D: Layers> Stage for DecoderStage<D> {
    type Tensor = D::Tensor;
    type Item = u32;
    type Saved = Kept<DecoderSaved<D::Tensor>, DecoderSelected<D::Tensor>>;
    type Deferred = DecoderDeferred<D::Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn needs_inputs(&self) -> bool {
        self.cut.first || self.cut.last || self.end_of_text.is_some()
    }

    fn forward(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(Output<D::Tensor>, Self::Saved)> {
        let seen = self.seen(micro);
        let blocks = self.blocks(micro, seen.as_deref());
        let (x, saved) = self.through(w, &blocks, (micro.input, &self.whole()), x)?;
        let output = self.output(w, (x, &saved), micro.target, micro.loss_scale)?;
        Ok((output, Kept::Whole(saved)))
    }

    fn recompute(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<Self::Saved> {
        let seen = self.seen(micro);
        let blocks = self.blocks(micro, seen.as_deref());
        let (_, saved) = self.through(w, &blocks, (micro.input, &self.whole()), x)?;
        Ok(Kept::Whole(saved))
    }

    fn backward_input(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        saved: Self::Saved,
        dy: D::Tensor,
    ) -> Result<(Option<D::Tensor>, DecoderDeferred<D::Tensor>)> {
        let seen = self.seen(micro);
        let blocks = self.blocks(micro, seen.as_deref());
        self.back_through(w, &blocks, self.whole(), saved.whole(), dy)
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: DecoderDeferred<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let device = &self.device;
        if let Some((norm, linear)) = deferred.head {
            linear.add(device, Layout::OutIn, &mut into[self.head], None)?;
            self.form.norm.add_dw(device, norm, &mut into[self.body().end..])?;
        }
        let blocks = into[self.body()].chunks_exact_mut(self.form.block_len());
        let blocks = self.cut.blocks.clone().zip(blocks).rev();
        let dropout = self.adapter_dropout(micro, &deferred.rows);
        for ((block, into), deferred) in blocks.zip(deferred.blocks) {
            block::backward_weight(device, &self.form, (block, dropout), deferred, into)?;
        }
        if let Some(dy) = deferred.embedding {
            let (tokens, positions) = into.split_at_mut(1);
            let (tokens, rows) = (&mut tokens[0], &deferred.rows);
            let ids = self.picked(micro.input, rows);
            let places = self.positions(micro.input, rows);
            if self.rotary.is_none() && places.is_none() {
                let context = self.attention.context;
                let tables = [tokens, &mut positions[0]];
                return add_embedding(device, (&ids, context), &dy, &self.params[..2], tables);
            }
            let nowhere = &mut self.no_positions()?;
            if !is_frozen(device, tokens) {
                device.embedding_dw(&ids, 1, &dy, tokens, nowhere)?;
            }
            if let (None, Some(places)) = (&self.rotary, places)
                && !is_frozen(device, &positions[0])
            {
                device.embedding_dw(&places, 1, &dy, &mut positions[0], nowhere)?;
            }
        }
        Ok(())
    }

    fn operands(&self, deferred: &DecoderDeferred<D::Tensor>) -> Vec<[D::Tensor; 2]> {
        deferred.blocks.iter().rev().flat_map(Deferred::operands).collect()
    }

    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        Some(self)
    }

    fn sliced(&self) -> Option<&DynSliced<'_, Self>> {
        if self.dropout.rate == 0.0 { Some(self) } else { None }
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        Some(self)
    }

    fn movable(&self) -> Option<&DynMovable<'_, Self>> {
        Some(self)
    }

    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        Some(self)
    }
}

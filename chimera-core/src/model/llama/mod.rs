//! Llama as pipeline stages (Touvron et al., 2023): rotary positions, pre-norm blocks with RMS norms and gated MLPs. With
//! grouped heads, biases and a sliding window it is Llama 3, Qwen2 and Mistral too.

mod block;
mod family;
mod saved;
mod tensors;

use std::ops::Range;
use std::slice::ChunksExact;

pub(super) use family::Family;
use saved::LlamaSavedHead;
pub use saved::{LlamaDeferred, LlamaSaved, LlamaSelected};

use super::config::{Cut, DropoutRate, Family as _, ModelConfig};
use super::decoder::{Decoder, KvCache};
use super::error::ModelError;
use super::kept::Kept;
use super::operands::{Linear, Norm};
use super::parts::bytes;
use super::pass::{EMBEDDED, Pass};
use super::rope::{RopeScaling, frequencies};

use crate::device::Result;
use crate::layers::{Attention, Layers, Layout, Mask};
use crate::stage::{Micro, Output, Param, Stage};

/// One stage of a Llama on the device of `D`.
#[derive(Clone, Debug)]
pub struct LlamaStage<D: Layers> {
    device: D,
    cut: Cut,
    attention: Attention<'static>,
    form: block::BlockForm<D::Tensor>,
    hidden: usize,
    dropout: DropoutRate,
    params: Vec<Param>,
    /// Weight tensors of a block.
    n_block: usize,
    /// Where the head's matrix lies among the weights: the token table itself if tied and at hand.
    head: usize,
}

/// Tensors before the blocks of a first stage: the token table.
const EMBEDDING: usize = 1;

impl<D: Layers> LlamaStage<D> {
    /// The stage `cut` of `config`, for samples of `sequence` tokens each: usually `config.context`,
    /// or fewer.
    pub fn new(
        device: D,
        config: &ModelConfig,
        sequence: usize,
        cut: Cut,
    ) -> std::result::Result<Self, ModelError> {
        config.check_sequence(sequence)?;
        if !device.has_llama_layers() {
            return Err(ModelError::Device { device: device.name(), model: Family.title() });
        }
        let llama = config.choices();
        let ModelConfig { heads, hidden, .. } = *config;
        let dim = hidden / heads;
        let scaling = &llama.rope_scaling;
        let frequencies = frequencies(llama.rope_theta, scaling, dim, sequence);
        let form = block::BlockForm {
            turned: heads + llama.kv_heads,
            epsilon: llama.norm_epsilon,
            activation: llama.activation,
            rotary: device.rotary_table(&frequencies, scaling.factor(), sequence)?,
        };
        let mask = llama.window.map_or(Mask::Causal, Mask::Window);
        let attention =
            Attention { kv_heads: llama.kv_heads, mask, ..Attention::causal(heads, sequence) };
        let params = tensors::params(config, &cut);
        let head = if config.tied && cut.first { 0 } else { params.len() - 1 };
        let n_block = block::TENSORS + usize::from(llama.qkv_bias);
        let dropout = DropoutRate::default();
        Ok(Self { device, cut, attention, form, hidden, dropout, params, n_block, head })
    }

    /// Drops elements of the embedding and of what blocks add to it, with probability `rate`, while
    /// training.
    pub fn with_dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: DropoutRate { rate, seed }, ..self }
    }

    fn pass(&self, micro: &Micro<'_>) -> Pass<'_, D> {
        Pass::new(&self.device, self.attention, self.dropout, micro)
    }

    /// The tensors of the blocks.
    fn blocks(&self) -> Range<usize> {
        let start = if self.cut.first { EMBEDDING } else { 0 };
        start..start + self.cut.blocks.len() * self.n_block
    }

    /// The weights of each block.
    fn weights<'w>(&self, w: &'w [D::Tensor]) -> ChunksExact<'w, D::Tensor> {
        w[self.blocks()].chunks_exact(self.n_block)
    }

    /// The input of the head with its norm.
    fn norm_head(&self, w: &[D::Tensor], x: D::Tensor) -> Result<LlamaSavedHead<D::Tensor>> {
        let gain = &w[self.blocks().end];
        let (normed, stats) = self.device.rms_norm(&x, gain, self.form.epsilon)?;
        Ok(LlamaSavedHead { x, stats, normed })
    }

    /// From the stage's input through its blocks: the last one's output, and the saved activations.
    fn through(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(D::Tensor, LlamaSaved<D::Tensor>)> {
        let device = &self.device;
        let pass = self.pass(micro);
        let embed = || {
            let nothing = device.zeros(&[1, self.hidden])?;
            let x = device.embedding(micro.input, 1, &w[0], &nothing)?;
            pass.dropped(EMBEDDED, &x)
        };
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let mut x = x.map_or_else(embed, Ok)?;

        let mut blocks = Vec::with_capacity(self.cut.blocks.len());
        for (block, w) in self.cut.blocks.clone().zip(self.weights(w)) {
            let (y, saved) = block::forward(&pass, &self.form, block, w, x)?;
            blocks.push(saved);
            x = y;
        }
        let head = self.cut.last.then(|| self.norm_head(w, x.clone())).transpose()?;
        Ok((x, LlamaSaved { blocks, head }))
    }
}

pub(super) fn stage<D: Layers>(
    device: D,
    config: &ModelConfig,
    sequence: usize,
    dropout: DropoutRate,
    cut: Cut,
) -> std::result::Result<LlamaStage<D>, ModelError> {
    Ok(LlamaStage { dropout, ..LlamaStage::new(device, config, sequence, cut)? })
}

impl<D: Layers> Decoder<D::Tensor> for LlamaStage<D> {
    fn follow(
        &self,
        w: &[D::Tensor],
        ids: &[u32],
        cache: &mut KvCache<D::Tensor>,
    ) -> Result<D::Tensor> {
        let device = &self.device;
        let rotary = device.rows(&self.form.rotary, cache.len(), ids.len())?;
        let form = block::BlockForm { rotary, ..self.form.clone() };
        let mut x = device.embedding(ids, 1, &w[0], &device.zeros(&[1, self.hidden])?)?;
        let pass = Pass::following(device, self.attention, cache);
        for (block, w) in self.cut.blocks.clone().zip(self.weights(w)) {
            x = block::forward(&pass, &form, block, w, x)?.0;
        }
        cache.advance(ids.len());
        Ok(x)
    }
}

/// None where the frequencies follow from the length of the text, which changes all that came before.
pub(super) fn decoder<D: Layers>(
    device: D,
    config: &ModelConfig,
    context: usize,
) -> std::result::Result<Option<Box<dyn Decoder<D::Tensor>>>, ModelError> {
    let scaling = config.choices().rope_scaling;
    if matches!(scaling, RopeScaling::Dynamic { original, .. } if context as f64 > original) {
        return Ok(None);
    }
    Ok(Some(Box::new(LlamaStage::new(device, config, context, Cut::body(config))?)))
}

impl<D: Layers> Stage for LlamaStage<D> {
    type Tensor = D::Tensor;
    type Item = u32;
    type Saved = Kept<LlamaSaved<D::Tensor>, LlamaSelected<D::Tensor>>;
    type Deferred = LlamaDeferred<D::Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples * self.attention.context, self.hidden])
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        self.input_shape(samples)
    }

    fn needs_inputs(&self) -> bool {
        self.cut.first || self.cut.last
    }

    fn forward(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(Output<D::Tensor>, Self::Saved)> {
        let (device, (x, saved)) = (&self.device, self.through(w, micro, x)?);
        let Some(head) = &saved.head else {
            return Ok((Output::Activation(x), Kept::Whole(saved)));
        };
        let logits = device.linear(&head.normed, &w[self.head], Layout::OutIn, None, None)?;
        if micro.target.is_empty() {
            return Ok((Output::Activation(logits), Kept::Whole(saved)));
        }
        let (loss, grad) = device.cross_entropy(logits, micro.target, micro.loss_scale)?;
        Ok((Output::Loss { loss, grad }, Kept::Whole(saved)))
    }

    fn recompute(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(Kept::Whole(self.through(w, micro, x)?.1))
    }

    fn has_selective_recompute(&self) -> bool {
        true
    }

    fn select(&self, saved: Self::Saved) -> Self::Saved {
        let saved = saved.whole();
        let blocks = saved.blocks.into_iter().map(block::Saved::select).collect();
        Kept::Selected(LlamaSelected { blocks, head: saved.head.map(|head| head.x) })
    }

    fn restore(
        &self,
        w: &[D::Tensor],
        _: &Micro<'_>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        let selected = selected.selected();
        let blocks = self.weights(w).zip(selected.blocks);
        let restore = |(w, selected)| block::restore(&self.device, &self.form, w, selected);
        let blocks = blocks.map(restore);
        Ok(Kept::Whole(LlamaSaved {
            blocks: blocks.collect::<Result<_>>()?,
            head: selected.head.map(|x| self.norm_head(w, x)).transpose()?,
        }))
    }

    fn backward_input(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        saved: Self::Saved,
        mut dy: D::Tensor,
    ) -> Result<(Option<D::Tensor>, LlamaDeferred<D::Tensor>)> {
        let saved = saved.whole();
        let (device, pass) = (&self.device, self.pass(micro));
        let mut head = None;
        if let Some(LlamaSavedHead { x, stats, normed }) = saved.head {
            let d_normed = device.linear_dx(&dy, &w[self.head], Layout::OutIn)?;
            let gain = &w[self.blocks().end];
            let dx = device.rms_norm_dx(&d_normed, &x, &stats, gain, None)?;
            let norm = Norm { dy: d_normed, x, stats };
            head = Some((norm, Linear { x: normed, dy }));
            dy = dx;
        }

        let mut blocks = Vec::with_capacity(saved.blocks.len());
        let blocks_saved = self.weights(w).zip(saved.blocks);
        for (block, (w, saved)) in self.cut.blocks.clone().zip(blocks_saved).rev() {
            let (dx, deferred) = block::backward_input(&pass, &self.form, block, w, saved, dy)?;
            blocks.push(deferred);
            dy = dx;
        }

        let (dx, embedding) = match self.cut.first {
            true => (None, Some(pass.dropped(EMBEDDED, &dy)?)),
            false => (Some(dy), None),
        };
        let deferred = LlamaDeferred { head, blocks, embedding };
        Ok((dx, deferred))
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: LlamaDeferred<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let device = &self.device;
        if let Some((norm, linear)) = deferred.head {
            let head = &mut into[self.head];
            device.linear_dw(&linear.x, &linear.dy, Layout::OutIn, head, None)?;
            norm.add_rms(device, &mut into[self.blocks().end])?;
        }
        let blocks = into[self.blocks()].chunks_exact_mut(self.n_block);
        for (into, deferred) in blocks.rev().zip(deferred.blocks) {
            block::backward_weight(device, deferred, into)?;
        }
        if let Some(dy) = deferred.embedding {
            let mut nothing = device.zeros(&[1, self.hidden])?;
            device.embedding_dw(micro.input, 1, &dy, &mut into[0], &mut nothing)?;
        }
        Ok(())
    }

    fn can_split_saved(&self) -> bool {
        true
    }

    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>> {
        saved.split(&self.device, parts)
    }

    fn saved_bytes(&self, saved: &Self::Saved) -> u64 {
        saved.bytes(&self.device)
    }

    fn deferred_bytes(&self, deferred: &LlamaDeferred<D::Tensor>) -> u64 {
        let head = deferred
            .head
            .iter()
            .flat_map(|(norm, linear)| norm.tensors().into_iter().chain(linear.tensors()));
        let blocks = deferred.blocks.iter().flat_map(block::Deferred::tensors);
        bytes(&self.device, blocks.chain(head).chain(&deferred.embedding))
    }
}

//! GPT-2 as pipeline stages: learned positions, pre-norm blocks, GELU, an output head without bias.

mod block;
mod tensors;

use std::ops::Range;

use super::config::{self, Cut, DropoutRate, ModelConfig, Objective};
use super::decoder::{Decoder, KvCache};
use super::error::ModelError;
use super::kept::{Kept, Tensors};
use super::operands::{Linear, Norm};
use super::parts::bytes;
use super::pass::{EMBEDDED, Pass};

use crate::device::Result;
use crate::layers::{Attention, Layers, Layout};
use crate::stage::{Micro, Output, Param, Stage};

/// One stage of a GPT-2 on the device of `D`.
#[derive(Clone, Debug)]
pub struct Gpt2Stage<D> {
    device: D,
    cut: Cut,
    heads: usize,
    sequence: usize,
    hidden: usize,
    dropout: DropoutRate,
    params: Vec<Param>,
    /// Where the head's matrix lies among the weights: the token table itself if tied and at hand.
    head: usize,
}

/// What the backward pass of a [`Gpt2Stage`] needs of its forward pass.
#[derive(Debug)]
pub struct Gpt2Saved<T> {
    blocks: Vec<block::Saved<T>>,
    head: Option<SavedHead<T>>,
}

/// The half of [`Gpt2Saved`] that the rest can be made from without attention.
#[derive(Debug)]
pub struct Gpt2Selected<T> {
    blocks: Vec<block::Selected<T>>,
    /// The input of the final norm.
    head: Option<T>,
}

/// What the weight half of a [`Gpt2Stage`]'s backward pass needs of its input half.
#[derive(Debug)]
pub struct Gpt2Deferred<T> {
    head: Option<(Norm<T>, Linear<T>)>,
    /// The last block first.
    blocks: Vec<block::Deferred<T>>,
    /// Gradient of the embedding's output.
    embedding: Option<T>,
}

#[derive(Debug)]
struct SavedHead<T> {
    x: T,
    stats: T,
    normed: T,
}

/// Tensors before the blocks of a first stage: the token and the position table.
const EMBEDDING: usize = 2;

impl<D: Layers> Gpt2Stage<D> {
    /// The stage `cut` of `config`, for samples of `sequence` tokens each: usually `config.context`,
    /// or fewer.
    pub fn new(
        device: D,
        config: &ModelConfig,
        sequence: usize,
        cut: Cut,
    ) -> std::result::Result<Self, ModelError> {
        config.check_sequence(sequence)?;
        let params = tensors::params(config, &cut);
        let head = if config.tied && cut.first { 0 } else { params.len() - 1 };
        let (heads, hidden, dropout) = (config.heads, config.hidden, DropoutRate::default());
        Ok(Self { device, cut, heads, sequence, hidden, dropout, params, head })
    }

    /// Drops elements of the embedding and of what blocks add to it, with probability `rate`, while
    /// training.
    pub fn with_dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: DropoutRate { rate, seed }, ..self }
    }

    fn pass(&self, micro: &Micro<'_>) -> Pass<'_, D> {
        let attention = Attention::causal(self.heads, self.sequence);
        Pass::new(&self.device, attention, self.dropout, micro)
    }

    /// The tensors of the blocks.
    fn blocks(&self) -> Range<usize> {
        let start = if self.cut.first { EMBEDDING } else { 0 };
        start..start + self.cut.blocks.len() * block::TENSORS
    }

    /// The input of the head with its norm.
    fn norm_head(&self, w: &[D::Tensor], x: D::Tensor) -> Result<SavedHead<D::Tensor>> {
        let norm = self.blocks().end;
        let (normed, stats) = self.device.layer_norm(&x, &w[norm], &w[norm + 1], block::EPSILON)?;
        Ok(SavedHead { x, stats, normed })
    }

    /// From the stage's input through its blocks: the last one's output, and the saved activations.
    fn through(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(D::Tensor, Gpt2Saved<D::Tensor>)> {
        let device = &self.device;
        let pass = self.pass(micro);
        let embed = || {
            let x = device.embedding(micro.input, self.sequence, &w[0], &w[1])?;
            pass.dropped(EMBEDDED, &x)
        };
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let mut x = x.map_or_else(embed, Ok)?;

        let mut blocks = Vec::with_capacity(self.cut.blocks.len());
        let weights = w[self.blocks()].as_chunks().0;
        for (block, w) in self.cut.blocks.clone().zip(weights) {
            let (y, saved) = block::forward(&pass, block, w, x)?;
            blocks.push(saved);
            x = y;
        }
        let head = self.cut.last.then(|| self.norm_head(w, x.clone())).transpose()?;
        Ok((x, Gpt2Saved { blocks, head }))
    }
}

/// What all GPT-2s have in common.
pub(super) struct Family;

impl config::Family for Family {
    fn name(&self) -> &'static str {
        "gpt2"
    }

    fn title(&self) -> &'static str {
        "GPT-2"
    }

    fn objective(&self) -> Objective {
        Objective::NextToken
    }

    fn n_params(&self, config: &ModelConfig) -> u64 {
        tensors::n_params(config)
    }

    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param> {
        tensors::params(config, cut)
    }

    fn head_flops(&self, config: &ModelConfig, sequence: usize) -> f64 {
        tensors::head_flops(config, sequence)
    }

    fn predictions(&self, sequence: usize) -> usize {
        sequence
    }

    fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        let follow = tokens.iter().skip(1).copied();
        (tokens.to_vec(), follow.chain([next]).take(tokens.len()).collect())
    }
}

pub(super) fn stage<D: Layers>(
    device: D,
    config: &ModelConfig,
    sequence: usize,
    dropout: DropoutRate,
    cut: Cut,
) -> std::result::Result<Gpt2Stage<D>, ModelError> {
    Ok(Gpt2Stage { dropout, ..Gpt2Stage::new(device, config, sequence, cut)? })
}

impl<D: Layers> Decoder<D::Tensor> for Gpt2Stage<D> {
    fn follow(
        &self,
        w: &[D::Tensor],
        ids: &[u32],
        cache: &mut KvCache<D::Tensor>,
    ) -> Result<D::Tensor> {
        let positions = self.device.rows(&w[1], cache.len(), ids.len())?;
        let mut x = self.device.embedding(ids, ids.len(), &w[0], &positions)?;
        let attention = Attention::causal(self.heads, self.sequence);
        let pass = Pass::following(&self.device, attention, cache);
        let weights = w[self.blocks()].as_chunks().0;
        for (block, w) in self.cut.blocks.clone().zip(weights) {
            x = block::forward(&pass, block, w, x)?.0;
        }
        cache.advance(ids.len());
        Ok(x)
    }
}

pub(super) fn decoder<D: Layers>(
    device: D,
    config: &ModelConfig,
    context: usize,
) -> std::result::Result<Option<Box<dyn Decoder<D::Tensor>>>, ModelError> {
    Ok(Some(Box::new(Gpt2Stage::new(device, config, context, Cut::body(config))?)))
}

impl<D: Layers> Stage for Gpt2Stage<D> {
    type Tensor = D::Tensor;
    type Item = u32;
    type Saved = Kept<Gpt2Saved<D::Tensor>, Gpt2Selected<D::Tensor>>;
    type Deferred = Gpt2Deferred<D::Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples * self.sequence, self.hidden])
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
        Kept::Selected(Gpt2Selected { blocks, head: saved.head.map(|head| head.x) })
    }

    fn restore(
        &self,
        w: &[D::Tensor],
        _: &Micro<'_>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        let selected = selected.selected();
        let weights = w[self.blocks()].as_chunks().0.iter();
        let blocks = weights.zip(selected.blocks);
        let blocks = blocks.map(|(w, selected)| block::restore(&self.device, w, selected));
        Ok(Kept::Whole(Gpt2Saved {
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
    ) -> Result<(Option<D::Tensor>, Gpt2Deferred<D::Tensor>)> {
        let saved = saved.whole();
        let (device, pass) = (&self.device, self.pass(micro));
        let mut head = None;
        if let Some(SavedHead { x, stats, normed }) = saved.head {
            let d_normed = device.linear_dx(&dy, &w[self.head], Layout::OutIn)?;
            let gain = &w[self.blocks().end];
            let dx = device.layer_norm_dx(&d_normed, &x, &stats, gain, None)?;
            let norm = Norm { dy: d_normed, x, stats };
            head = Some((norm, Linear { x: normed, dy }));
            dy = dx;
        }

        let mut blocks = Vec::with_capacity(saved.blocks.len());
        let weights = w[self.blocks()].as_chunks().0;
        let blocks_saved = weights.iter().zip(saved.blocks);
        for (block, (w, saved)) in self.cut.blocks.clone().zip(blocks_saved).rev() {
            let (dx, deferred) = block::backward_input(&pass, block, w, saved, dy)?;
            blocks.push(deferred);
            dy = dx;
        }

        let (dx, embedding) = match self.cut.first {
            true => (None, Some(pass.dropped(EMBEDDED, &dy)?)),
            false => (Some(dy), None),
        };
        let deferred = Gpt2Deferred { head, blocks, embedding };
        Ok((dx, deferred))
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: Gpt2Deferred<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let device = &self.device;
        if let Some((norm, linear)) = deferred.head {
            let head = &mut into[self.head];
            device.linear_dw(&linear.x, &linear.dy, Layout::OutIn, head, None)?;
            let (gain, bias) = into[self.blocks().end..].split_at_mut(1);
            device.layer_norm_dw(&norm.dy, &norm.x, &norm.stats, &mut gain[0], &mut bias[0])?;
        }
        let blocks = into[self.blocks()].as_chunks_mut().0;
        for (into, deferred) in blocks.iter_mut().rev().zip(deferred.blocks) {
            block::backward_weight(device, deferred, into)?;
        }
        if let Some(dy) = deferred.embedding {
            let ([tokens, positions], _) = into.split_first_chunk_mut().expect("two tables");
            device.embedding_dw(micro.input, self.sequence, &dy, tokens, positions)?;
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

    fn deferred_bytes(&self, deferred: &Gpt2Deferred<D::Tensor>) -> u64 {
        let head = deferred
            .head
            .iter()
            .flat_map(|(norm, linear)| norm.tensors().into_iter().chain(linear.tensors()));
        let blocks = deferred.blocks.iter().flat_map(block::Deferred::tensors);
        bytes(&self.device, blocks.chain(head).chain(&deferred.embedding))
    }
}

impl<T> Tensors for Gpt2Saved<T> {
    type Tensor = T;
    type Of<U> = Gpt2Saved<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Gpt2Saved<U>> {
        let head = match &self.head {
            Some(head) => {
                Some(SavedHead { x: f(&head.x)?, stats: f(&head.stats)?, normed: f(&head.normed)? })
            }
            None => None,
        };
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        Ok(Gpt2Saved { blocks: blocks.collect::<Result<_>>()?, head })
    }
}

impl<T> Tensors for Gpt2Selected<T> {
    type Tensor = T;
    type Of<U> = Gpt2Selected<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<Gpt2Selected<U>> {
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(Gpt2Selected { blocks, head: self.head.as_ref().map(f).transpose()? })
    }
}

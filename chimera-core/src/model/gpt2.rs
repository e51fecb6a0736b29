//! GPT-2 as pipeline stages: learned positions, pre-norm blocks, GELU, an output head without bias.

use std::ops::Range;

use super::block::{self, Attention, Linear, Norm};
use super::{Cut, Gpt2Config, ModelError};
use crate::kernels::{Kernels, Layout, Result};
use crate::stage::{Micro, Output, Param, Stage};

/// One stage of a GPT-2 on the device of `K`.
#[derive(Clone, Debug)]
pub struct Gpt2Stage<K> {
    kernels: K,
    cut: Cut,
    attention: Attention,
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

impl<K: Kernels> Gpt2Stage<K> {
    /// The stage `cut` of `config`, for samples of `sequence` tokens each: usually `config.context`,
    /// or fewer.
    pub fn new(
        kernels: K,
        config: &Gpt2Config,
        sequence: usize,
        cut: Cut,
    ) -> std::result::Result<Self, ModelError> {
        config.validate()?;
        if sequence == 0 {
            return Err(ModelError::Zero { what: "sequence" });
        }
        if sequence > config.context {
            return Err(ModelError::Sequence { sequence, context: config.context });
        }
        let params = config.params(&cut);
        let head = if config.tied && cut.first { 0 } else { params.len() - 1 };
        let heads = config.heads;
        Ok(Self { kernels, cut, attention: Attention { heads, sequence }, params, head })
    }

    /// The tensors of the blocks.
    fn blocks(&self) -> Range<usize> {
        let start = if self.cut.first { EMBEDDING } else { 0 };
        start..start + self.cut.blocks.len() * block::TENSORS
    }

    /// The input of the head with its norm.
    fn norm_head(&self, w: &[K::Tensor], x: K::Tensor) -> Result<SavedHead<K::Tensor>> {
        let norm = self.blocks().end;
        let (normed, stats) =
            self.kernels.layer_norm(&x, &w[norm], &w[norm + 1], block::EPSILON)?;
        Ok(SavedHead { x, stats, normed })
    }

    /// Device memory of tensors, four bytes an element.
    fn bytes<'t>(&self, tensors: impl Iterator<Item = &'t K::Tensor>) -> u64 {
        let elements = tensors.map(|t| self.kernels.shape(t).iter().product::<usize>());
        elements.sum::<usize>() as u64 * size_of::<f32>() as u64
    }

    /// Part `part` of `parts` of a tensor, in whole samples.
    fn part(&self, tensor: &K::Tensor, part: usize, parts: usize) -> Result<K::Tensor> {
        let rows = self.kernels.shape(tensor)[0];
        let sequence = self.attention.sequence;
        assert!(
            rows.is_multiple_of(parts * sequence),
            "{rows} rows, {sequence} per sample, do not divide into {parts} parts"
        );
        let len = rows / parts;
        self.kernels.rows(tensor, part * len, len)
    }
}

impl<K: Kernels> Stage for Gpt2Stage<K> {
    type Tensor = K::Tensor;
    type Saved = Gpt2Saved<K::Tensor>;
    type Selected = Gpt2Selected<K::Tensor>;
    type Deferred = Gpt2Deferred<K::Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<(Output<K::Tensor>, Gpt2Saved<K::Tensor>)> {
        let k = &self.kernels;
        let embed = || k.embedding(micro.input, self.attention.sequence, &w[0], &w[1]);
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let mut x = x.map_or_else(embed, Ok)?;

        let mut blocks = Vec::with_capacity(self.cut.blocks.len());
        for w in w[self.blocks()].as_chunks().0 {
            let (y, saved) = block::forward(k, self.attention, w, x)?;
            blocks.push(saved);
            x = y;
        }
        if !self.cut.last {
            return Ok((Output::Activation(x), Gpt2Saved { blocks, head: None }));
        }

        let head = self.norm_head(w, x)?;
        let logits = k.linear(&head.normed, &w[self.head], Layout::OutIn, None, None)?;
        let output = if micro.target.is_empty() {
            Output::Activation(logits)
        } else {
            let (loss, grad) = k.cross_entropy(logits, micro.target, micro.loss_scale)?;
            Output::Loss { loss, grad }
        };
        Ok((output, Gpt2Saved { blocks, head: Some(head) }))
    }

    fn select(&self, saved: Gpt2Saved<K::Tensor>) -> Gpt2Selected<K::Tensor> {
        let blocks = saved.blocks.into_iter().map(block::Saved::select).collect();
        Gpt2Selected { blocks, head: saved.head.map(|head| head.x) }
    }

    fn restore(
        &self,
        w: &[K::Tensor],
        _: &Micro<'_>,
        selected: Gpt2Selected<K::Tensor>,
    ) -> Result<Gpt2Saved<K::Tensor>> {
        let weights = w[self.blocks()].as_chunks().0.iter();
        let blocks = weights.zip(selected.blocks);
        let blocks = blocks.map(|(w, selected)| block::restore(&self.kernels, w, selected));
        Ok(Gpt2Saved {
            blocks: blocks.collect::<Result<_>>()?,
            head: selected.head.map(|x| self.norm_head(w, x)).transpose()?,
        })
    }

    fn backward_input(
        &self,
        w: &[K::Tensor],
        _: &Micro<'_>,
        saved: Gpt2Saved<K::Tensor>,
        mut dy: K::Tensor,
    ) -> Result<(Option<K::Tensor>, Gpt2Deferred<K::Tensor>)> {
        let k = &self.kernels;
        let mut head = None;
        if let Some(SavedHead { x, stats, normed }) = saved.head {
            let d_normed = k.linear_dx(&dy, &w[self.head], Layout::OutIn)?;
            let gain = &w[self.blocks().end];
            let dx = k.layer_norm_dx(&d_normed, &x, &stats, gain, None)?;
            let norm = Norm { dy: d_normed, x, stats };
            head = Some((norm, Linear { x: normed, dy }));
            dy = dx;
        }

        let mut blocks = Vec::with_capacity(saved.blocks.len());
        let weights = w[self.blocks()].as_chunks().0;
        for (w, saved) in weights.iter().zip(saved.blocks).rev() {
            let (dx, deferred) = block::backward_input(k, self.attention, w, saved, dy)?;
            blocks.push(deferred);
            dy = dx;
        }

        let (dx, embedding) = if self.cut.first { (None, Some(dy)) } else { (Some(dy), None) };
        let deferred = Gpt2Deferred { head, blocks, embedding };
        Ok((dx, deferred))
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: Gpt2Deferred<K::Tensor>,
        into: &mut [K::Tensor],
    ) -> Result<()> {
        let k = &self.kernels;
        if let Some((norm, linear)) = deferred.head {
            let head = &mut into[self.head];
            k.linear_dw(&linear.x, &linear.dy, Layout::OutIn, head, None)?;
            let (gain, bias) = into[self.blocks().end..].split_at_mut(1);
            k.layer_norm_dw(&norm.dy, &norm.x, &norm.stats, &mut gain[0], &mut bias[0])?;
        }
        let blocks = into[self.blocks()].as_chunks_mut().0;
        for (into, deferred) in blocks.iter_mut().rev().zip(deferred.blocks) {
            block::backward_weight(k, deferred, into)?;
        }
        if let Some(dy) = deferred.embedding {
            let ([tokens, positions], _) = into.split_first_chunk_mut().expect("two tables");
            let sequence = self.attention.sequence;
            k.embedding_dw(micro.input, sequence, &dy, tokens, positions)?;
        }
        Ok(())
    }

    fn split_saved(
        &self,
        saved: Gpt2Saved<K::Tensor>,
        parts: usize,
    ) -> Result<Vec<Gpt2Saved<K::Tensor>>> {
        (0..parts).map(|part| saved.map(|tensor| self.part(tensor, part, parts))).collect()
    }

    fn split_tensor(&self, tensor: K::Tensor, parts: usize) -> Result<Vec<K::Tensor>> {
        (0..parts).map(|part| self.part(&tensor, part, parts)).collect()
    }

    fn saved_bytes(&self, saved: &Gpt2Saved<K::Tensor>) -> u64 {
        let mut elements = 0;
        // Infallible, as the closure is.
        let _ = saved.map(|tensor| {
            elements += self.kernels.shape(tensor).iter().product::<usize>();
            Ok(())
        });
        elements as u64 * size_of::<f32>() as u64
    }

    fn selected_bytes(&self, selected: &Gpt2Selected<K::Tensor>) -> u64 {
        let blocks = selected.blocks.iter().flat_map(block::Selected::tensors);
        self.bytes(blocks.chain(&selected.head))
    }

    fn deferred_bytes(&self, deferred: &Gpt2Deferred<K::Tensor>) -> u64 {
        let head = deferred
            .head
            .iter()
            .flat_map(|(norm, linear)| norm.tensors().into_iter().chain(linear.tensors()));
        let blocks = deferred.blocks.iter().flat_map(block::Deferred::tensors);
        self.bytes(blocks.chain(head).chain(&deferred.embedding))
    }
}

impl<T> Gpt2Saved<T> {
    /// Applies `f` to each tensor.
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

//! What passes of a stage keep for later ones.

use std::ops::Range;

use chimera_engine::device::Result;

use super::block;
use crate::model::kept::{KeptBlock, Tensors};
use crate::model::operands::{Linear, Norm};

/// What the backward pass of a [`DecoderStage`](super::DecoderStage) needs of its forward pass.
#[derive(Debug)]
pub struct DecoderSaved<T> {
    pub(super) blocks: Vec<block::Saved<T>>,
    pub(super) head: Option<SavedHead<T>>,
}

/// The part of [`DecoderSaved`] that selective recomputation keeps, from which the rest can be made.
#[derive(Debug)]
pub struct DecoderSelected<T> {
    pub(super) blocks: Vec<KeptBlock<block::Saved<T>, block::Selected<T>, T>>,
    /// The input of the final norm.
    pub(super) head: Option<T>,
}

/// What the weight half of a [`DecoderStage`](super::DecoderStage)'s backward pass needs of its input half.
#[derive(Debug)]
pub struct DecoderDeferred<T> {
    pub(super) head: Option<(Norm<T>, Linear<T>)>,
    /// The last block first.
    pub(super) blocks: Vec<block::Deferred<T>>,
    /// Gradient of the embedding's output.
    pub(super) embedding: Option<T>,
    /// Which rows of each sample went through.
    pub(super) rows: Range<usize>,
}

#[derive(Debug)]
pub(super) struct SavedHead<T> {
    pub(super) x: T,
    pub(super) stats: T,
    pub(super) normed: T,
}

impl<T> Tensors for DecoderSaved<T> {
    type Tensor = T;
    type Of<U> = DecoderSaved<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<DecoderSaved<U>> {
        let head = match &self.head {
            Some(head) => {
                Some(SavedHead { x: f(&head.x)?, stats: f(&head.stats)?, normed: f(&head.normed)? })
            }
            None => None,
        };
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        Ok(DecoderSaved { blocks: blocks.collect::<Result<_>>()?, head })
    }
}

impl<T> Tensors for DecoderSelected<T> {
    type Tensor = T;
    type Of<U> = DecoderSelected<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<DecoderSelected<U>> {
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(DecoderSelected { blocks, head: self.head.as_ref().map(f).transpose()? })
    }
}

//! What passes of a stage keep for later ones.

use super::super::kept::Tensors;
use super::super::operands::{Linear, Norm};
use super::block;
use crate::device::Result;

/// What the backward pass of a [`LlamaStage`](super::LlamaStage) needs of its forward pass.
#[derive(Debug)]
pub struct LlamaSaved<T> {
    pub(super) blocks: Vec<block::Saved<T>>,
    pub(super) head: Option<LlamaSavedHead<T>>,
}

/// The half of [`LlamaSaved`] that the rest can be made from without attention.
#[derive(Debug)]
pub struct LlamaSelected<T> {
    pub(super) blocks: Vec<block::Selected<T>>,
    /// The input of the final norm.
    pub(super) head: Option<T>,
}

/// What the weight half of a [`LlamaStage`](super::LlamaStage)'s backward pass needs of its input half.
#[derive(Debug)]
pub struct LlamaDeferred<T> {
    pub(super) head: Option<(Norm<T>, Linear<T>)>,
    /// The last block first.
    pub(super) blocks: Vec<block::Deferred<T>>,
    /// Gradient of the embedding's output.
    pub(super) embedding: Option<T>,
}

#[derive(Debug)]
pub(super) struct LlamaSavedHead<T> {
    pub(super) x: T,
    pub(super) stats: T,
    pub(super) normed: T,
}

impl<T> Tensors for LlamaSaved<T> {
    type Tensor = T;
    type Of<U> = LlamaSaved<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<LlamaSaved<U>> {
        let head = match &self.head {
            Some(head) => Some(LlamaSavedHead {
                x: f(&head.x)?,
                stats: f(&head.stats)?,
                normed: f(&head.normed)?,
            }),
            None => None,
        };
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        Ok(LlamaSaved { blocks: blocks.collect::<Result<_>>()?, head })
    }
}

impl<T> Tensors for LlamaSelected<T> {
    type Tensor = T;
    type Of<U> = LlamaSelected<U>;

    fn map<U>(&self, mut f: impl FnMut(&T) -> Result<U>) -> Result<LlamaSelected<U>> {
        let blocks = self.blocks.iter().map(|block| block.map(&mut f));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(LlamaSelected { blocks, head: self.head.as_ref().map(f).transpose()? })
    }
}

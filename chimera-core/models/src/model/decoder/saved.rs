//! The results of a stage's passes that later passes need.

use std::ops::Range;

use chimera_engine::device::Result;
use chimera_engine::layers::Layers;
use chimera_engine::stage::{Micro, Movable, Selective, Sizes, Slice, Splittable, TakenApart};

use super::DecoderStage;
use super::block::{self, Blocks};
use crate::model::block::deferred::Deferred;
use crate::model::block::kept::{Kept, KeptBlock, tensors};
use crate::model::block::parts::bytes;
use crate::model::operands::{Linear, Norm};

tensors! {
    /// The saved activations of a [`DecoderStage`]'s forward pass.
    pub DecoderSaved { blocks: Vec<block::Saved<T>>, head: Option<SavedHead<T>> } {}
}

tensors! {
    /// The part of [`DecoderSaved`] that selective recomputation keeps, from which the rest can be made.
    pub DecoderSelected {
        blocks: Vec<KeptBlock<block::Saved<T>, block::Selected<T>, T>>,
        head: Option<SelectedHead<T>>
    } {}
}

/// The results of the input half of a [`DecoderStage`]'s backward pass that its weight half needs.
#[derive(Debug)]
pub struct DecoderDeferred<T> {
    pub(super) head: Option<(Norm<T>, Linear<T>)>,
    /// The last block first.
    pub(super) blocks: Vec<Deferred<T>>,
    /// Gradient of the embedding's output.
    pub(super) embedding: Option<T>,
    /// The rows of each sample that went through.
    pub(super) rows: Range<usize>,
}

tensors! {
    pub(super) SavedHead { selected: SelectedHead<T> } { stats, normed }
}

tensors! {
    /// The input of the final norm.
    pub(super) SelectedHead {} { x }
}

impl<D: Layers> Selective for DecoderStage<D> {
    fn select(&self, saved: Self::Saved) -> Self::Saved {
        let saved = saved.whole();
        let blocks = KeptBlock::select(
            saved.blocks,
            self.cut.selection,
            |saved| saved.selected,
            |saved| saved.selected.x,
        );
        Kept::Selected(DecoderSelected { blocks, head: saved.head.map(|head| head.selected) })
    }

    fn restore(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        let seen = self.seen(micro);
        self.restored(w, &self.blocks(micro, seen.as_deref()), selected)
    }

    fn restore_slice(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, D::Tensor>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        let restored = |blocks: &Blocks<'_, D>, _: &_| self.restored(w, blocks, selected);
        Ok(self.run_slice(micro, slice, None, restored)?.made)
    }
}

impl<D: Layers> Splittable for DecoderStage<D> {
    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>> {
        saved.split(&self.device, parts)
    }
}

impl<D: Layers> Movable for DecoderStage<D> {
    fn take_apart(&self, saved: Self::Saved) -> Result<TakenApart<D::Tensor, Self::Saved>> {
        saved.take_apart()
    }
}

impl<D: Layers> Sizes for DecoderStage<D> {
    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples * self.attention.context, self.hidden])
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        self.input_shape(samples)
    }

    fn saved_bytes(&self, saved: &Self::Saved) -> u64 {
        saved.bytes(&self.device)
    }

    fn deferred_bytes(&self, deferred: &DecoderDeferred<D::Tensor>) -> u64 {
        let head = deferred
            .head
            .iter()
            .flat_map(|(norm, linear)| norm.tensors().into_iter().chain(linear.tensors()));
        let blocks = deferred.blocks.iter().flat_map(Deferred::tensors);
        bytes(&self.device, blocks.chain(head).chain(&deferred.embedding))
    }
}

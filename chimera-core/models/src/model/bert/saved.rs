//! Saved activations and deferred work of a BERT: selecting, moving, cutting and counting them.

use chimera_engine::device::Result;
use chimera_engine::layers::Layers;
use chimera_engine::stage::{Micro, Movable, Selective, Sizes, Splittable, TakenApart};

use super::{BertStage, block, embedding, head};
use crate::model::block::deferred::Deferred;
use crate::model::block::kept::{Kept, KeptBlock, tensors};
use crate::model::block::parts::bytes;

tensors! {
    /// The saved activations of a [`BertStage`]'s forward pass.
    pub BertSaved {
        blocks: Vec<block::Saved<T>>,
        embedding: Option<embedding::Saved<T>>,
        head: Option<head::Saved<T>>
    } {}
}

tensors! {
    /// The part of [`BertSaved`] that selective recomputation keeps, from which the rest can be made.
    pub BertSelected {
        blocks: Vec<KeptBlock<block::Saved<T>, block::Selected<T>, T>>,
        embedding: Option<embedding::Selected<T>>,
        head: Option<head::Selected<T>>
    } {}
}

/// The results of the input half of a [`BertStage`]'s backward pass that its weight half needs.
#[derive(Debug)]
pub struct BertDeferred<T> {
    pub(super) head: Option<head::Deferred<T>>,
    /// The last block first.
    pub(super) blocks: Vec<Deferred<T>>,
    pub(super) embedding: Option<embedding::Deferred<T>>,
}

impl<D: Layers> Selective for BertStage<D> {
    fn select(&self, saved: Self::Saved) -> Self::Saved {
        let saved = saved.whole();
        Kept::Selected(BertSelected {
            embedding: saved.embedding.map(|saved| saved.selected),
            blocks: KeptBlock::select(
                saved.blocks,
                self.cut.selection,
                |saved| saved.selected,
                |saved| saved.selected.x,
            ),
            head: saved.head.map(|saved| saved.selected),
        })
    }

    fn restore(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        let selected = selected.selected();
        let (device, lengths) = (&self.device, self.form.lengths(micro));
        let pass = self.pass(&lengths, micro);
        let embedding =
            selected.embedding.map(|sum| embedding::restore(device, self.embedding(w), sum));
        let weights = w[self.blocks()].as_chunks().0;
        let blocks = self.cut.blocks.clone().zip(weights.iter().zip(selected.blocks));
        let blocks = blocks.map(|(block, (w, kept))| block::restore(&pass, block, w, kept));
        let head = selected.head.map(|selected| head::restore(device, &self.head(w), selected));
        Ok(Kept::Whole(BertSaved {
            embedding: embedding.transpose()?,
            blocks: blocks.collect::<Result<_>>()?,
            head: head.transpose()?,
        }))
    }
}

impl<D: Layers> Splittable for BertStage<D> {
    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>> {
        saved.split(&self.device, parts)
    }
}

impl<D: Layers> Movable for BertStage<D> {
    fn take_apart(&self, saved: Self::Saved) -> Result<TakenApart<D::Tensor, Self::Saved>> {
        saved.take_apart()
    }
}

impl<D: Layers> Sizes for BertStage<D> {
    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples * self.form.sequence, self.hidden])
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        self.input_shape(samples)
    }

    fn saved_bytes(&self, saved: &Self::Saved) -> u64 {
        saved.bytes(&self.device)
    }

    fn deferred_bytes(&self, deferred: &BertDeferred<D::Tensor>) -> u64 {
        let head = deferred.head.iter().flat_map(head::Deferred::tensors);
        let blocks = deferred.blocks.iter().flat_map(Deferred::tensors);
        let embedding = deferred.embedding.iter().flat_map(embedding::Deferred::tensors);
        bytes(&self.device, blocks.chain(head).chain(embedding))
    }
}

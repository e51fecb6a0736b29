//! The way of a micro-batch through the blocks of a stage and back.

use std::ops::Range;

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout};
use chimera_engine::stage::{Output, Stage};

use super::block::Blocks;
use super::saved::{SavedHead, SelectedHead};
use super::{DecoderDeferred, DecoderSaved, DecoderStage};
use crate::model::block::kept::Kept;
use crate::model::block::pass::EMBEDDED;
use crate::model::operands::{Linear, Norm};

impl<D: Layers> DecoderStage<D> {
    /// Runs some rows through the blocks. Returns the last output and the saved activations.
    pub(super) fn through(
        &self,
        w: &[D::Tensor],
        blocks: &Blocks<'_, D>,
        (ids, rows): (&[u32], &Range<usize>),
        x: Option<D::Tensor>,
    ) -> Result<(D::Tensor, DecoderSaved<D::Tensor>)> {
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let embed = || blocks.pass.dropped(EMBEDDED, &self.embedded(w, ids, rows)?);
        let mut x = x.map_or_else(embed, Ok)?;

        let mut saved = Vec::with_capacity(self.cut.blocks.len());
        for (block, w) in self.cut.blocks.clone().zip(self.weights(w)) {
            let (y, kept) = blocks.forward(block, w, x)?;
            saved.push(kept);
            x = y;
        }
        let head =
            self.cut.last.then(|| self.norm_head(w, SelectedHead { x: x.clone() })).transpose()?;
        Ok((x, DecoderSaved { blocks: saved, head }))
    }

    /// Restores the saved activations of some rows from their selection.
    pub(super) fn restored(
        &self,
        w: &[D::Tensor],
        blocks: &Blocks<'_, D>,
        selected: <Self as Stage>::Saved,
    ) -> Result<<Self as Stage>::Saved> {
        let selected = selected.selected();
        let kept = self.cut.blocks.clone().zip(self.weights(w).zip(selected.blocks));
        let saved = kept.map(|(block, (w, kept))| blocks.restore(block, w, kept));
        Ok(Kept::Whole(DecoderSaved {
            blocks: saved.collect::<Result<_>>()?,
            head: selected.head.map(|selected| self.norm_head(w, selected)).transpose()?,
        }))
    }

    /// Returns the stage's output: that of its last block, logits, or with targets their loss.
    pub(super) fn output(
        &self,
        w: &[D::Tensor],
        (x, saved): (D::Tensor, &DecoderSaved<D::Tensor>),
        target: &[u32],
        loss_scale: f64,
    ) -> Result<Output<D::Tensor>> {
        let device = &self.device;
        let Some(head) = &saved.head else { return Ok(Output::Activation(x)) };
        let logits = device.linear(&head.normed, &w[self.head], Layout::OutIn, None, None)?;
        if target.is_empty() {
            return Ok(Output::Activation(logits));
        }
        let (loss, grad) = device.cross_entropy(logits, target, loss_scale)?;
        Ok(Output::Loss { loss, grad })
    }

    /// Runs the input half of the backward pass of some rows.
    pub(super) fn back_through(
        &self,
        w: &[D::Tensor],
        blocks: &Blocks<'_, D>,
        rows: Range<usize>,
        saved: DecoderSaved<D::Tensor>,
        mut dy: D::Tensor,
    ) -> Result<(Option<D::Tensor>, DecoderDeferred<D::Tensor>)> {
        let device = &self.device;
        let mut head = None;
        if let Some(SavedHead { selected, stats, normed }) = saved.head {
            let d_normed = device.linear_dx(&dy, &w[self.head], Layout::OutIn)?;
            let norm = Norm { dy: d_normed, x: selected.x, stats };
            let dx = self.form.norm.dx(device, &norm, &w[self.body().end..], None)?;
            head = Some((norm, Linear { x: normed, dy }));
            dy = dx;
        }

        let mut of_blocks = Vec::with_capacity(saved.blocks.len());
        let blocks_saved = self.weights(w).zip(saved.blocks);
        let visited = self.cut.blocks.clone().zip(blocks_saved).skip(self.n_idle);
        for (block, (w, saved)) in visited.rev() {
            let (dx, deferred) = blocks.backward_input(block, w, saved, dy)?;
            of_blocks.push(deferred);
            dy = dx;
        }

        let (dx, embedding) = if self.cut.first && self.n_idle > 0 {
            (None, None)
        } else if self.cut.first {
            (None, Some(blocks.pass.dropped(EMBEDDED, &dy)?))
        } else {
            (Some(dy), None)
        };
        Ok((dx, DecoderDeferred { head, blocks: of_blocks, embedding, rows }))
    }
}

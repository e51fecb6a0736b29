//! Passes over a slice of each sample's sequence.

use std::ops::Range;

use chimera_engine::device::{DeviceError, Result};
use chimera_engine::layers::{Attention, Layers, Mask};
use chimera_engine::stage::{Left, Micro, Output, Slice, SliceGradients, Sliced, slice_range};

use super::block::Blocks;
use super::{DecoderDeferred, DecoderStage, Pass};
use crate::model::block::kept::Kept;
use crate::model::block::slices::PassSlice;

/// The results of a slice's pass through a stage.
pub(super) struct Made<R, T> {
    pub(super) made: R,
    left: Left<T>,
    d_past: Vec<Left<T>>,
}

impl<D: Layers> DecoderStage<D> {
    /// Calls `run` with the blocks on the slice's way through them, and with its rows of each
    /// sample. Returns the result of `run`, together with the state that the slice left in the
    /// forward pass, or the gradients of the state that earlier slices left in the backward pass.
    /// `d_left` is the gradient of the state that this slice left.
    pub(super) fn run_slice<R>(
        &self,
        micro: &Micro<'_>,
        slice: Slice<'_, D::Tensor>,
        d_left: Option<Left<D::Tensor>>,
        run: impl FnOnce(&Blocks<'_, D>, &Range<usize>) -> Result<R>,
    ) -> Result<Made<R, D::Tensor>> {
        let Attention { context, mask, .. } = self.attention;
        let rows = slice.range(context);
        if rows.is_empty() || self.dropout.rate > 0.0 {
            return Err(self.no_slice(slice.of));
        }
        let documents = self.documents(micro.input).map(|documents| documents.up_to(rows.end));
        let seen = documents.map(|documents| documents.seen(mask));
        let mask = seen.as_deref().map_or(mask, Mask::Documents);
        let own_rows = |table| self.device.rows(table, rows.start, rows.len());
        let rotary = self.rotary.as_ref().map(own_rows).transpose()?;

        let ends = (0..=slice.index()).map(|n| slice_range(n, slice.of, context).end).collect();
        let first = self.cut.blocks.start;
        let pass_slice = PassSlice::new([first, first + self.n_idle], ends, slice.past, d_left);
        let attention = Attention { context: rows.end, mask, ..self.attention };
        let pass = Pass::of_slice(&self.device, attention, pass_slice);
        let dropout = self.adapter_dropout(micro, &rows);
        let blocks = Blocks { dropout, ..self.blocks_of(pass, rotary.as_ref()) };
        let made = run(&blocks, &rows)?;
        let (left, d_past) = blocks.pass.end();
        Ok(Made { made, left, d_past })
    }

    fn no_slice(&self, of: usize) -> DeviceError {
        let context = self.attention.context;
        let reason = if self.dropout.rate > 0.0 {
            "dropout is drawn for whole sequences: train slices of them without".into()
        } else {
            format!("sequences of {context} tokens cannot be cut into {of} slices")
        };
        DeviceError::Failed { device: self.device.name(), op: "slice", reason }
    }
}

impl<D: Layers> Sliced for DecoderStage<D> {
    fn forward_slice(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, D::Tensor>,
        x: Option<D::Tensor>,
    ) -> Result<(Output<D::Tensor>, Self::Saved, Left<D::Tensor>)> {
        let Made { made: (output, saved), left, .. } =
            self.run_slice(micro, slice, None, |blocks, rows| {
                let (x, saved) = self.through(w, blocks, (micro.input, rows), x)?;
                let target = self.picked(micro.target, rows);
                let output = self.output(w, (x, &saved), &target, micro.loss_scale)?;
                Ok((output, Kept::Whole(saved)))
            })?;
        Ok((output, saved, left))
    }

    fn recompute_slice(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, D::Tensor>,
        x: Option<D::Tensor>,
    ) -> Result<Self::Saved> {
        let saved = self.run_slice(micro, slice, None, |blocks, rows| {
            self.through(w, blocks, (micro.input, rows), x)
        });
        Ok(Kept::Whole(saved?.made.1))
    }

    fn backward_input_slice(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        slice: Slice<'_, D::Tensor>,
        saved: Self::Saved,
        gradients: SliceGradients<D::Tensor>,
    ) -> Result<(Option<D::Tensor>, DecoderDeferred<D::Tensor>, Vec<Left<D::Tensor>>)> {
        let SliceGradients { output, left } = gradients;
        let Made { made: (dx, deferred), d_past, .. } =
            self.run_slice(micro, slice, left, |blocks, rows| {
                self.back_through(w, blocks, rows.clone(), saved.whole(), output)
            })?;
        Ok((dx, deferred, d_past))
    }
}

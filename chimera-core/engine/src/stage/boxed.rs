//! A box of a stage is one.

use super::{Left, Micro, Output, Param, Slice, SliceGradients, Stage, TakenApart};
use crate::device::Result;

impl<S: Stage + ?Sized> Stage for Box<S> {
    type Tensor = S::Tensor;
    type Item = S::Item;
    type Saved = S::Saved;
    type Deferred = S::Deferred;

    fn params(&self) -> &[Param] {
        (**self).params()
    }

    fn forward(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, S::Saved)> {
        (**self).forward(w, micro, x)
    }

    fn backward_input(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: S::Saved,
        dy: S::Tensor,
    ) -> Result<(Option<S::Tensor>, S::Deferred)> {
        (**self).backward_input(w, micro, saved, dy)
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_, S::Item>,
        deferred: S::Deferred,
        into: &mut [S::Tensor],
    ) -> Result<()> {
        (**self).backward_weight(micro, deferred, into)
    }

    fn operands(&self, deferred: &S::Deferred) -> Vec<[S::Tensor; 2]> {
        (**self).operands(deferred)
    }

    fn forward_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        inputs: Vec<S::Tensor>,
    ) -> Result<(Vec<Output<S::Tensor>>, S::Saved)> {
        (**self).forward_edges(w, micro, inputs)
    }

    fn backward_input_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: S::Saved,
        gradients: Vec<S::Tensor>,
    ) -> Result<(Vec<S::Tensor>, S::Deferred)> {
        (**self).backward_input_edges(w, micro, saved, gradients)
    }

    fn has_output_per_edge(&self) -> bool {
        (**self).has_output_per_edge()
    }

    fn needs_inputs(&self) -> bool {
        (**self).needs_inputs()
    }

    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        (**self).input_shape(samples)
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        (**self).output_shape(samples)
    }

    fn recompute(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        x: Option<S::Tensor>,
    ) -> Result<S::Saved> {
        (**self).recompute(w, micro, x)
    }

    fn recompute_edges(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        inputs: Vec<S::Tensor>,
    ) -> Result<S::Saved> {
        (**self).recompute_edges(w, micro, inputs)
    }

    fn has_selective_recompute(&self) -> bool {
        (**self).has_selective_recompute()
    }

    fn select(&self, saved: S::Saved) -> S::Saved {
        (**self).select(saved)
    }

    fn restore(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        selected: S::Saved,
    ) -> Result<S::Saved> {
        (**self).restore(w, micro, selected)
    }

    fn has_slices(&self) -> bool {
        (**self).has_slices()
    }

    fn forward_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        x: Option<S::Tensor>,
    ) -> Result<(Output<S::Tensor>, S::Saved, Left<S::Tensor>)> {
        (**self).forward_slice(w, micro, slice, x)
    }

    fn recompute_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        x: Option<S::Tensor>,
    ) -> Result<S::Saved> {
        (**self).recompute_slice(w, micro, slice, x)
    }

    fn restore_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        selected: S::Saved,
    ) -> Result<S::Saved> {
        (**self).restore_slice(w, micro, slice, selected)
    }

    fn backward_input_slice(
        &self,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        slice: Slice<'_, S::Tensor>,
        saved: S::Saved,
        gradients: SliceGradients<S::Tensor>,
    ) -> Result<(Option<S::Tensor>, S::Deferred, Vec<Left<S::Tensor>>)> {
        (**self).backward_input_slice(w, micro, slice, saved, gradients)
    }

    fn can_take_apart(&self) -> bool {
        (**self).can_take_apart()
    }

    fn take_apart(&self, saved: S::Saved) -> Result<TakenApart<S::Tensor, S::Saved>> {
        (**self).take_apart(saved)
    }

    fn can_split_saved(&self) -> bool {
        (**self).can_split_saved()
    }

    fn split_saved(&self, saved: S::Saved, parts: usize) -> Result<Vec<S::Saved>> {
        (**self).split_saved(saved, parts)
    }

    fn saved_bytes(&self, saved: &S::Saved) -> u64 {
        (**self).saved_bytes(saved)
    }

    fn deferred_bytes(&self, deferred: &S::Deferred) -> u64 {
        (**self).deferred_bytes(deferred)
    }
}

//! Stages that recompute a part of what they save.

use super::{Micro, Slice, Stage};
use crate::device::Result;

/// A stage that drops cheap activations after a forward and computes them again before the backward (selective
/// recomputation).
pub trait Selective: Stage {
    /// Drops those saved activations that are cheap to compute again.
    fn select(&self, saved: Self::Saved) -> Self::Saved;

    /// Computes again, to the bit, what [`select`](Selective::select) dropped.
    fn restore(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        selected: Self::Saved,
    ) -> Result<Self::Saved>;

    /// Computes again, to the bit, what [`select`](Selective::select) dropped of a slice of a
    /// [sliced](super::Sliced) stage.
    fn restore_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        _slice: Slice<'_, Self::Tensor>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        self.restore(w, micro, selected)
    }
}

/// Any [`Selective`] stage with the types of `S`.
pub type DynSelective<'s, S> = dyn Selective<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

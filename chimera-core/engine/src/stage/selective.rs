//! Stages that recompute a part of their saved activations.

use super::{Micro, Slice, Stage};
use crate::device::Result;

/// A stage that drops cheap activations after a forward pass and recomputes them before the
/// backward pass (selective recomputation).
pub trait Selective: Stage {
    /// Drops the saved activations that are cheap to recompute.
    fn select(&self, saved: Self::Saved) -> Self::Saved;

    /// Recomputes, bit for bit, the activations that [`select`](Selective::select) dropped.
    fn restore(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        selected: Self::Saved,
    ) -> Result<Self::Saved>;

    /// Recomputes, bit for bit, the activations that [`select`](Selective::select) dropped from a
    /// slice of a [sliced](super::Sliced) stage.
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

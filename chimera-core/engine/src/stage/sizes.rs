//! Sizes of activations.

use super::Stage;

/// A stage that knows the sizes of its activations.
pub trait Sizes: Stage {
    /// Shape of the stage's input activation for a number of samples, to check what another rank
    /// sends; `None` disables the check, as several input edges do.
    fn input_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Shape of the stage's output activation for a number of samples; `None` disables the check.
    /// It is not checked for stages with one activation per output edge.
    fn output_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Device memory of `saved`, in bytes, whether whole or [selected](super::Selective::select).
    /// Reports of activation memory leave out a stage that returns 0.
    fn saved_bytes(&self, _saved: &Self::Saved) -> u64 {
        0
    }

    /// Device memory that `deferred` holds, in bytes.
    fn deferred_bytes(&self, _deferred: &Self::Deferred) -> u64 {
        0
    }
}

/// Any [`Sizes`] stage with the types of `S`.
pub type DynSizes<'s, S> = dyn Sizes<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

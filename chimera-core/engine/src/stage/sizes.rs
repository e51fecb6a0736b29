//! Sizes of activations.

use super::Stage;

/// A stage that knows the sizes of its activations.
pub trait Sizes: Stage {
    /// Extents of the activation that the stage takes for a number of samples, against which the engine checks what
    /// another rank sends; `None` checks nothing. With several input edges nothing is checked.
    fn input_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Extents of the activation that the stage gives for a number of samples; `None` checks nothing. With an activation
    /// for each output edge nothing is checked.
    fn output_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Device memory that `saved` holds, in bytes, whole or [selected](super::Selective::select). Reports of activation
    /// memory leave out a stage that gives 0.
    fn saved_bytes(&self, _saved: &Self::Saved) -> u64 {
        0
    }

    /// Device memory that `deferred` holds, in bytes.
    fn deferred_bytes(&self, _deferred: &Self::Deferred) -> u64 {
        0
    }
}

/// Any stage of [`Sizes`] with the types of `S`.
pub type DynSizes<'s, S> = dyn Sizes<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

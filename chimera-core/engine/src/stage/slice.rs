//! Slices of sequences, and stages that run on them.

use std::ops::Range;

use super::{Micro, Output, Stage};
use crate::device::Result;

/// The tensors that one slice of a sequence leaves for the slices after it, such as keys and
/// values. The stage chooses their order.
pub type Left<T> = Vec<T>;

/// A slice of the sequence of each sample in a micro-batch, and what the slices before it left.
#[derive(Debug)]
pub struct Slice<'s, T> {
    /// The tensors that each earlier slice left, first slice first.
    pub past: &'s [Left<T>],
    /// Number of slices of the sequence.
    pub of: usize,
}

impl<T> Clone for Slice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<'_, T> {}

impl<T> Slice<'_, T> {
    /// Number of the slice, from 0.
    pub fn index(&self) -> usize {
        self.past.len()
    }

    /// The positions of a sequence of length `len` in the slice. Lengths differ by at most one.
    pub fn range(&self, len: usize) -> Range<usize> {
        slice_range(self.index(), self.of, len)
    }
}

/// The gradients with which the backward pass of a slice begins.
#[derive(Clone, Debug)]
pub struct SliceGradients<T> {
    /// The gradient of the slice's output.
    pub output: T,
    /// The gradient of what the slice left, summed over later slices; `None` for the last.
    pub left: Option<Left<T>>,
}

/// A stage that runs on slices of each sample's sequence, as programs with slices need.
pub trait Sliced: Stage {
    /// Runs the stage on a slice of the sequence of each sample. `micro` holds whole samples; `x`
    /// and the output have only the rows of the slice, sample after sample. Also returns what the
    /// slice leaves for the slices after it.
    fn forward_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        x: Option<Self::Tensor>,
    ) -> Result<(Output<Self::Tensor>, Self::Saved, Left<Self::Tensor>)>;

    /// Computes the saved activations of a slice again, bit for bit.
    fn recompute_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        x: Option<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward_slice(w, micro, slice, x)?.1)
    }

    /// Maps the gradients of a slice's output and of what it left to the gradient of its input and
    /// of what the slices before it left, as far as this slice read it. Slices run backward from
    /// the last to the first, so the gradient of what a slice left is complete by then; the engine
    /// adds it up.
    fn backward_input_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        saved: Self::Saved,
        gradients: SliceGradients<Self::Tensor>,
    ) -> Result<(Option<Self::Tensor>, Self::Deferred, Vec<Left<Self::Tensor>>)>;
}

/// Any [`Sliced`] stage with the types of `S`.
pub type DynSliced<'s, S> = dyn Sliced<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

/// The positions of a sequence of length `len` in slice number `index` of `of`.
pub fn slice_range(index: usize, of: usize, len: usize) -> Range<usize> {
    len * index / of..len * (index + 1) / of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_sequence_once() {
        for len in 1..40 {
            for of in 1..=len {
                let mut at = 0;
                for index in 0..of {
                    let range = slice_range(index, of, len);
                    assert_eq!(range.start, at);
                    assert!((len / of..=len.div_ceil(of)).contains(&range.len()), "{range:?}");
                    at = range.end;
                }
                assert_eq!(at, len);
            }
        }
    }
}

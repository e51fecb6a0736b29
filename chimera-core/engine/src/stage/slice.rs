//! A slice of the sequence of samples.

use std::ops::Range;

use crate::device::{DeviceError, Result};

/// What one slice of a sequence leaves for those behind it, such as keys and values: tensors in an order of the stage's own.
pub type Left<T> = Vec<T>;

/// A slice of the sequence of each sample of a micro-batch, and what the slices before it left.
#[derive(Debug)]
pub struct Slice<'s, T> {
    /// What each slice before this one left, the first one's first.
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

    /// Which of a sequence of `len` positions it has. Slices are equally long, or differ by one.
    pub fn range(&self, len: usize) -> Range<usize> {
        slice_range(self.index(), self.of, len)
    }
}

/// What the backward of a slice begins with.
#[derive(Clone, Debug)]
pub struct SliceGradients<T> {
    /// The gradient of the slice's output.
    pub output: T,
    /// The gradient of what the slice left, over all slices behind it; `None` of the last one.
    pub left: Option<Left<T>>,
}

/// Refuses slices for a stage that has no functions for them.
pub(super) fn no_slices<T>(op: &'static str, n_slices: usize) -> Result<T> {
    let reason = format!(
        "its sequence is to be cut into {n_slices} slices: implement `forward_slice` and `backward_input_slice`"
    );
    Err(DeviceError::Failed { device: "the stage".into(), op, reason })
}

/// Which of a sequence of `len` positions the slice number `index` of `of` has.
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

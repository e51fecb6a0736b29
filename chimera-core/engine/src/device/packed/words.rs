//! Packed matrices as the words of messages and checkpoints.

use super::Packed;
use crate::device::{Dtype, Elements};

impl Dtype {
    /// Returns true if these words hold `n_elements`.
    pub fn fits(self, words: &[f32], n_elements: usize) -> bool {
        if self != Dtype::Packed {
            return self.n_words(n_elements) == Some(words.len());
        }
        let shape = Packed::read(&bytes(words)).map(|packed| packed.matrix.shape);
        shape.is_some_and(|[rows, columns]| rows * columns == n_elements)
    }
}

impl Elements {
    /// Returns the bytes of the words, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        bytes(&self.words)
    }
}

/// Returns the values of a packed matrix, row-major; none if it is not one.
pub(in crate::device) fn values(words: &[f32]) -> Vec<f32> {
    Packed::read(&bytes(words)).map(|packed| packed.values()).unwrap_or_default()
}

fn bytes(words: &[f32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_bits().to_le_bytes()).collect()
}

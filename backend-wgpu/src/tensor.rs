//! Tensors: a shape over elements of a device's memory.

use std::sync::Arc;

use crate::pool::Memory;

/// A row-major f32 tensor in a device's memory. Clones and rows of it share that memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Vec<usize>,
    memory: Arc<Memory>,
    /// Index of the first element.
    start: usize,
}

/// Consecutive elements, as a kernel's operand.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Tensor {
    /// Returns a tensor over all of `memory`.
    pub(crate) fn whole(memory: Memory, shape: &[usize]) -> Tensor {
        Tensor { shape: shape.to_vec(), memory: Arc::new(memory), start: 0 }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size of the first dimension.
    pub(crate) fn n_rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of elements per index of the first dimension.
    pub(crate) fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the rows `start .. start + len`.
    pub(crate) fn rows(&self, start: usize, len: usize) -> Tensor {
        assert!(start + len <= self.n_rows(), "rows {start} + {len} of {:?}", self.shape);
        let mut rows = self.clone();
        rows.start += start * self.width();
        if let Some(extent) = rows.shape.first_mut() {
            *extent = len;
        }
        rows
    }

    pub(crate) fn reshape(&self, shape: &[usize]) -> Tensor {
        assert_eq!(
            shape.iter().product::<usize>(),
            self.n_elements(),
            "{:?} as {shape:?}",
            self.shape
        );
        Tensor { shape: shape.to_vec(), ..self.clone() }
    }

    /// Returns some of its elements, row-major.
    pub(crate) fn slice(&self, start: usize, len: usize) -> Slice<'_> {
        assert!(start + len <= self.n_elements(), "{start} + {len} of {:?}", self.shape);
        Slice { memory: &self.memory, start: self.start + start, len }
    }

    pub(crate) fn all(&self) -> Slice<'_> {
        self.slice(0, self.n_elements())
    }
}

//! Tensors in a GPU's memory.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{Arg, MatrixRef};

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    /// 32 bits.
    F32,
    /// The upper 16 bits of f32.
    Bf16,
}

impl Element {
    /// Returns the bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
        }
    }
}

/// Number format of activations, and of the operands of matrix products. Sums, weights and their gradients are f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// f32 throughout.
    F32,
    /// Activations in f32; operands of products and attention rounded to TF32, for tensor cores.
    Tf32,
    /// Activations and operands in bf16.
    Bf16,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 3] = [Format::F32, Format::Tf32, Format::Bf16];

    /// Returns the element type of activations.
    pub fn activations(self) -> Element {
        match self {
            Format::F32 | Format::Tf32 => Element::F32,
            Format::Bf16 => Element::Bf16,
        }
    }
}

/// Elements in row-major order, within memory that clones and views share.
pub struct Tensor<M> {
    pub(super) buffer: Arc<Buffer<M>>,
    pub(super) element: Element,
    /// Index of the first element in the buffer.
    pub(super) start: usize,
    pub(super) shape: Vec<usize>,
    /// Elements from one row to the next, which may be more than a row has.
    pub(super) pitch: usize,
}

/// An allocation, and its cast copy.
pub(super) struct Buffer<M> {
    pub(super) memory: M,
    cast: Mutex<Option<Cast<M>>>,
}

/// A buffer's first elements as activations: weights are cast once between two updates.
pub(super) struct Cast<M> {
    pub(super) buffer: Arc<Buffer<M>>,
    pub(super) len: usize,
}

impl<M> Buffer<M> {
    pub(super) fn new(memory: M) -> Arc<Self> {
        Arc::new(Self { memory, cast: Mutex::new(None) })
    }

    pub(super) fn cast(&self) -> MutexGuard<'_, Option<Cast<M>>> {
        self.cast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Tensor<M> {
    /// Wraps elements in row-major order from the start of `memory`, which has room for them.
    pub fn of(memory: M, element: Element, shape: Vec<usize>) -> Self {
        let pitch = shape.iter().skip(1).product();
        Self { buffer: Buffer::new(memory), element, start: 0, shape, pitch }
    }

    /// Returns the element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the memory that it shares with clones and views.
    pub fn memory(&self) -> &M {
        &self.buffer.memory
    }

    /// Returns its byte range in the memory.
    ///
    /// # Panics
    /// If its rows are not contiguous, which is only so for logits; these never leave their rank.
    pub fn bytes(&self) -> Range<usize> {
        assert!(self.is_packed(), "the rows of {self:?} lie apart");
        let start = self.start * self.element.bytes();
        start..start + self.len() * self.element.bytes()
    }

    /// Returns true if its rows are contiguous.
    pub(super) fn is_packed(&self) -> bool {
        self.pitch == self.width()
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the number of rows, if the last dimension is the row.
    pub(super) fn n_rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    pub(super) fn read(&self) -> Arg<'_, M> {
        Arg::Read(&self.buffer.memory, self.start * self.element.bytes())
    }

    /// Returns it as a written argument; only for tensors that are new or not shared.
    pub(super) fn write(&self) -> Arg<'_, M> {
        *self.buffer.cast() = None;
        Arg::Write(&self.buffer.memory, self.start * self.element.bytes())
    }

    pub(super) fn place(&self) -> MatrixRef<'_, M> {
        let start = self.start * self.element.bytes();
        MatrixRef { memory: &self.buffer.memory, start, element: self.element, pitch: self.pitch }
    }
}

impl<M> Clone for Tensor<M> {
    fn clone(&self) -> Self {
        Self { buffer: Arc::clone(&self.buffer), shape: self.shape.clone(), ..*self }
    }
}

impl<M> fmt::Debug for Tensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.element, self.shape)
    }
}

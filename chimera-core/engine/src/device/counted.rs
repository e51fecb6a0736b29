//! A device that computes nothing and counts the memory that its tensors would take.
//!
//! A stage runs on it as on any other device. All memory that the stage holds at once is counted,
//! whether kept for long or dropped a line later, so no formula has to follow the models. The
//! memory that layers use is counted by its implementation of [`Layers`](crate::layers::Layers).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AdamW, Device, Products, Result, Sgd, Updated, WithMomentum};

pub(crate) const WIDE: u64 = 4;

/// The device. Clones share one count.
#[derive(Clone, Debug)]
pub struct Counted {
    used: Arc<Mutex<Used>>,
    /// Bytes of an element of an activation.
    pub(crate) activation: u64,
}

/// Bytes in use. 128 bits, because the largest models that settings allow overflow 64.
#[derive(Debug, Default)]
struct Used {
    now: u128,
    peak: u128,
}

/// A tensor's shape, and the allocation that it shares with clones and views.
#[derive(Clone, Debug)]
pub struct Extents {
    pub(crate) shape: Vec<usize>,
    pub(crate) element: u64,
    memory: Arc<Allocation>,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    /// Bytes of the activation that may be cast from this memory.
    bytes_cast: u64,
    /// True once an activation was cast from it. The activation is kept as long as the memory is.
    is_cast: AtomicBool,
    used: Arc<Mutex<Used>>,
}

impl Counted {
    /// A device whose activations have elements of `activation` bytes: 4, or 2 for bf16.
    pub fn new(activation: u64) -> Counted {
        Counted { used: Arc::default(), activation }
    }

    /// Bytes in use now.
    pub fn used(&self) -> u128 {
        of(&self.used).now
    }

    /// Runs `act`; returns the peak of the additional bytes in use, and the result.
    pub fn during<R>(&self, act: impl FnOnce() -> R) -> (u128, R) {
        let before = self.used();
        of(&self.used).peak = before;
        let result = act();
        (of(&self.used).peak - before, result)
    }

    pub(crate) fn of(&self, shape: &[usize], element: u64) -> Extents {
        let bytes = elements(shape) * element;
        of(&self.used).add(bytes);
        let memory = Allocation {
            bytes,
            bytes_cast: padded(shape) * self.activation,
            is_cast: false.into(),
            used: Arc::clone(&self.used),
        };
        Extents { shape: shape.to_vec(), element, memory: Arc::new(memory) }
    }

    pub(crate) fn activation_of(&self, shape: &[usize]) -> Extents {
        self.of(shape, self.activation)
    }

    /// Scratch memory of `bytes` bytes.
    pub(crate) fn scratch(&self, bytes: usize) -> Extents {
        self.of(&[bytes], 1)
    }

    /// Counts the cast of `x` to an activation, which is kept as long as `x` is.
    pub(crate) fn cast(&self, x: &Extents) {
        if x.element != self.activation && !x.memory.is_cast.swap(true, Ordering::Relaxed) {
            of(&self.used).add(x.memory.bytes_cast);
        }
    }
}

impl Extents {
    pub(crate) fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Bytes of the activation that was cast from this tensor.
    pub fn cast_bytes(&self) -> u64 {
        if self.memory.is_cast.load(Ordering::Relaxed) { self.memory.bytes_cast } else { 0 }
    }
}

impl Used {
    fn add(&mut self, bytes: u64) {
        self.now += u128::from(bytes);
        self.peak = self.peak.max(self.now);
    }
}

fn of(used: &Mutex<Used>) -> MutexGuard<'_, Used> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let cast = if *self.is_cast.get_mut() { self.bytes_cast } else { 0 };
        of(&self.used).now -= u128::from(self.bytes + cast);
    }
}

/// Elements of a cast tensor, padded: bf16 has no fast products of odd numbers of rows.
fn padded(shape: &[usize]) -> u64 {
    /// Rows are padded to a multiple of this.
    const ROWS: usize = 8;
    let (rows, row) = shape.split_first().unwrap_or((&1, &[]));
    rows.next_multiple_of(ROWS) as u64 * elements(row)
}

pub(crate) fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|extent| *extent as u64).product()
}

impl Device for Counted {
    type Tensor = Extents;

    fn name(&self) -> String {
        "no device".into()
    }

    fn upload(&self, shape: &[usize], _: &[f32]) -> Result<Extents> {
        Ok(self.of(shape, WIDE))
    }

    /// Returns zeros: the device keeps no numbers.
    fn download(&self, tensor: &Extents) -> Result<Vec<f32>> {
        Ok(vec![0.0; elements(&tensor.shape) as usize])
    }

    fn zeros(&self, shape: &[usize]) -> Result<Extents> {
        Ok(self.of(shape, WIDE))
    }

    fn shape(&self, tensor: &Extents) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn bytes(&self, tensor: &Extents) -> u64 {
        elements(&tensor.shape) * tensor.element
    }

    fn rows(&self, tensor: &Extents, _: usize, len: usize) -> Result<Extents> {
        let mut view = tensor.clone();
        view.shape[0] = len;
        Ok(view)
    }

    fn reshape(&self, tensor: &Extents, shape: &[usize]) -> Result<Extents> {
        let mut view = tensor.clone();
        view.shape = shape.to_vec();
        Ok(view)
    }

    fn join(&self, tensors: &[&Extents]) -> Result<Extents> {
        let mut shape = tensors[0].shape.clone();
        shape[0] = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        Ok(self.of(&shape, WIDE))
    }

    fn accumulate(&self, _: &mut Extents, _: &Extents) -> Result<()> {
        Ok(())
    }

    fn squared_norms(&self, tensors: &[&Extents]) -> Result<Extents> {
        Ok(self.of(&[tensors.len()], WIDE))
    }

    fn adamw(&self, _: &mut [Updated<'_, Extents>], _: &AdamW) -> Result<()> {
        Ok(())
    }

    fn lamb(&self, _: &mut [Updated<'_, Extents>], _: &AdamW) -> Result<()> {
        Ok(())
    }

    fn sgd(&self, _: &mut [WithMomentum<'_, Extents>], _: &Sgd) -> Result<()> {
        Ok(())
    }

    fn products(&self) -> Option<&dyn Products<Extents>> {
        Some(self)
    }
}

impl Products<Extents> for Counted {
    fn product(&self, a: &Extents, b: &Extents) -> Result<Extents> {
        Ok(self.of(&[a.shape[0], b.shape[0]], WIDE))
    }

    fn newton_schulz(&self, x: &Extents, _: [f64; 3], _: usize) -> Result<Extents> {
        Ok(self.of(&x.shape, WIDE))
    }
}

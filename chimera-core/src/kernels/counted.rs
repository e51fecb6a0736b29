//! A device that computes nothing and counts the memory that its tensors would take.
//!
//! A stage runs on it as on any other, so whatever it holds at once is counted, be it kept for long or dropped a
//! line later; no formula has to follow what the models do. Layers take what a GPU's take: results, f32 or bf16,
//! operands that are cast, and scratch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Activation, AdamW, Dropout, Kernels, Layout, Mask, Result, Sgd, Updated};

/// Bytes of an f32.
const WIDE: u64 = 4;
/// Rows of which a sum of columns is made at a time, and the columns of a result whose rows lie apart come in
/// multiples of so many: see the GPU's `sums` and `memory`.
const RANGE: usize = 128;
const PITCH: usize = 64;

/// The device. Clones count together.
#[derive(Clone, Debug)]
pub struct Counted {
    used: Arc<Mutex<Used>>,
    /// Bytes of an element of an activation.
    activation: u64,
}

/// Bytes, of which the largest models that settings allow have more than 64 bits count.
#[derive(Debug, Default)]
struct Used {
    now: u128,
    peak: u128,
}

/// A tensor's extents, and the memory that it shares with clones and views.
#[derive(Clone, Debug)]
pub struct Extents {
    shape: Vec<usize>,
    element: u64,
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Memory {
    bytes: u64,
    /// Whether an activation was made of it, which is kept beside it.
    is_cast: AtomicBool,
    used: Arc<Mutex<Used>>,
}

impl Counted {
    /// A device whose activations have so many bytes an element: 4, or 2 for bf16.
    pub fn new(activation: u64) -> Counted {
        Counted { used: Arc::default(), activation }
    }

    /// Bytes in use.
    pub fn used(&self) -> u128 {
        of(&self.used).now
    }

    /// The most bytes that are in use at once while `act` runs, beyond those before, and what it returns.
    pub fn during<R>(&self, act: impl FnOnce() -> R) -> (u128, R) {
        let before = self.used();
        of(&self.used).peak = before;
        let result = act();
        (of(&self.used).peak - before, result)
    }

    fn of(&self, shape: &[usize], element: u64) -> Extents {
        let bytes = elements(shape) * element;
        of(&self.used).add(bytes);
        let memory = Memory { bytes, is_cast: false.into(), used: Arc::clone(&self.used) };
        Extents { shape: shape.to_vec(), element, memory: Arc::new(memory) }
    }

    fn activation_of(&self, shape: &[usize]) -> Extents {
        self.of(shape, self.activation)
    }

    /// Scratch memory of so many bytes.
    fn scratch(&self, bytes: usize) -> Extents {
        self.of(&[bytes], 1)
    }

    /// Room for sums over ranges of rows.
    fn sums(&self, x: &Extents) -> Extents {
        self.of(&[x.shape[0].div_ceil(RANGE), x.width()], WIDE)
    }

    /// `x` as an activation, which is kept as long as `x` is.
    fn cast(&self, x: &Extents) {
        if x.element != self.activation && !x.memory.is_cast.swap(true, Ordering::Relaxed) {
            of(&self.used).add(x.memory.cast_bytes());
        }
    }
}

impl Extents {
    fn width(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Bytes of the activation that was made of it.
    pub fn cast_bytes(&self) -> u64 {
        match self.memory.is_cast.load(Ordering::Relaxed) {
            true => self.memory.cast_bytes(),
            false => 0,
        }
    }
}

impl Memory {
    /// bf16 beside f32: an activation of another size there is not.
    fn cast_bytes(&self) -> u64 {
        self.bytes / 2
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

impl Drop for Memory {
    fn drop(&mut self) {
        let cast = if *self.is_cast.get_mut() { self.cast_bytes() } else { 0 };
        of(&self.used).now -= u128::from(self.bytes + cast);
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|extent| *extent as u64).product()
}

impl Kernels for Counted {
    type Tensor = Extents;

    fn device(&self) -> String {
        "no device".into()
    }

    fn upload(&self, shape: &[usize], _: &[f32]) -> Result<Extents> {
        Ok(self.of(shape, WIDE))
    }

    /// Zeros: there are no numbers.
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

    fn embedding(&self, ids: &[u32], _: usize, tokens: &Extents, _: &Extents) -> Result<Extents> {
        let y = self.activation_of(&[ids.len(), tokens.width()]);
        let _wide = (tokens.element != WIDE).then(|| self.of(&tokens.shape, WIDE));
        let _ids = self.scratch(size_of_val(ids));
        Ok(y)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        _: usize,
        dy: &Extents,
        _: &mut Extents,
        _: &mut Extents,
    ) -> Result<()> {
        self.cast(dy);
        self.scratch(3 * size_of_val(ids));
        Ok(())
    }

    fn linear(
        &self,
        x: &Extents,
        w: &Extents,
        layout: Layout,
        _: Option<&Extents>,
        residual: Option<&Extents>,
    ) -> Result<Extents> {
        [Some(x), Some(w), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        let (rows, outputs) = (x.shape[0], outputs(w, layout));
        let lies_apart = residual.is_none() && self.activation != WIDE && outputs % 8 != 0;
        let pitch = if lies_apart { outputs.next_multiple_of(PITCH) } else { outputs };
        Ok(Extents { shape: vec![rows, outputs], ..self.activation_of(&[rows, pitch]) })
    }

    fn linear_dx(&self, dy: &Extents, w: &Extents, layout: Layout) -> Result<Extents> {
        [dy, w].into_iter().for_each(|operand| self.cast(operand));
        let inputs = elements(&w.shape) as usize / outputs(w, layout).max(1);
        Ok(self.activation_of(&[dy.shape[0], inputs]))
    }

    fn linear_dw(
        &self,
        x: &Extents,
        dy: &Extents,
        _: Layout,
        _: &mut Extents,
        d_bias: Option<&mut Extents>,
    ) -> Result<()> {
        [x, dy].into_iter().for_each(|operand| self.cast(operand));
        d_bias.map(|_| self.sums(dy));
        Ok(())
    }

    fn layer_norm(
        &self,
        x: &Extents,
        _: &Extents,
        _: &Extents,
        _: f64,
    ) -> Result<(Extents, Extents)> {
        self.cast(x);
        Ok((self.activation_of(&x.shape), self.of(&[x.shape[0], 2], WIDE)))
    }

    fn layer_norm_dx(
        &self,
        dy: &Extents,
        x: &Extents,
        _: &Extents,
        _: &Extents,
        residual: Option<&Extents>,
    ) -> Result<Extents> {
        [Some(dy), Some(x), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        Ok(self.activation_of(&x.shape))
    }

    fn layer_norm_dw(
        &self,
        dy: &Extents,
        x: &Extents,
        _: &Extents,
        _: &mut Extents,
        _: &mut Extents,
    ) -> Result<()> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        let _gains_and_biases = [self.sums(x), self.sums(x)];
        Ok(())
    }

    fn activation(&self, x: &Extents, _: Activation) -> Result<Extents> {
        self.cast(x);
        Ok(self.activation_of(&x.shape))
    }

    fn activation_dx(
        &self,
        dy: &Extents,
        x: &Extents,
        _: Activation,
    ) -> Result<(Extents, Extents)> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        Ok((self.activation_of(&x.shape), self.activation_of(&x.shape)))
    }

    fn dropout(&self, x: &Extents, _: &Dropout, residual: Option<&Extents>) -> Result<Extents> {
        [Some(x), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        Ok(self.activation_of(&x.shape))
    }

    fn attention(
        &self,
        qkv: &Extents,
        heads: usize,
        _: usize,
        _: Mask<'_>,
        _: Option<&Dropout>,
    ) -> Result<(Extents, Extents)> {
        let rows = qkv.shape[0];
        let mixed = self.activation_of(&[rows, qkv.width() / 3]);
        Ok((mixed, self.of(&[rows, heads], WIDE)))
    }

    fn attention_dx(
        &self,
        dy: &Extents,
        qkv: &Extents,
        _: &Extents,
        log_sum: &Extents,
        _: usize,
        _: usize,
        _: Mask<'_>,
        _: Option<&Dropout>,
    ) -> Result<Extents> {
        self.cast(dy);
        let _means = self.of(&log_sum.shape, WIDE);
        Ok(self.activation_of(&qkv.shape))
    }

    fn cross_entropy(
        &self,
        logits: Extents,
        targets: &[u32],
        _: f64,
    ) -> Result<(Extents, Extents)> {
        let _targets_and_losses =
            self.scratch((size_of::<u32>() + size_of::<f64>()) * targets.len());
        Ok((self.of(&[1], WIDE), logits))
    }

    fn adamw(&self, _: &mut [Updated<'_, Extents>], _: &AdamW) -> Result<()> {
        Ok(())
    }

    fn lamb(&self, _: &mut [Updated<'_, Extents>], _: &AdamW) -> Result<()> {
        Ok(())
    }

    fn sgd(&self, _: &mut [Updated<'_, Extents>], _: &Sgd) -> Result<()> {
        Ok(())
    }
}

fn outputs(w: &Extents, layout: Layout) -> usize {
    match layout {
        Layout::InOut => w.width(),
        Layout::OutIn => w.shape[0],
    }
}

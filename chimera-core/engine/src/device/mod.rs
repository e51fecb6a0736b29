//! The functions that the engine needs of a device: memory, transfers, sums, weight updates.
//!
//! The engine, reductions, checkpoints and transports use only [`Device`], so a framework that
//! brings its own stages implements nothing else. The models in this repository compute with
//! [`Layers`](crate::layers::Layers), which extends it.
//!
//! Conventions, for all functions:
//! - Tensors are row-major. An extent may be 0.
//! - A tensor passed by `&` is never changed. A tensor passed by `&mut` is an accumulator owned only
//!   by the caller: implementations may write into its memory, so a caller must not hold clones.
//! - Results are deterministic: the same call with the same bits gives the same bits.
//! - Shapes are checked by the callers in this crate; a wrong one is a bug and may panic.
//!
//! [`mod@reference`] is a slow and clear implementation in f64, the oracle of every backend;
//! [`conformance`] is the test suite for backends. [`Counted`] computes nothing and counts memory.

mod asynchronous;
mod clock;
pub mod conformance;
pub(crate) mod counted;
mod dtype;
mod error;
mod on_host;
mod optimizers;
mod packed;
pub mod reference;

pub use asynchronous::{Asynchronous, Fetch, Overlap};
pub(crate) use asynchronous::{flush, imported, record_ready, wait_ready};
pub use chimera_schedule::analyze::KernelRun;
pub use clock::{Clock, KernelTime};
pub use counted::{Counted, Extents};
pub use dtype::{Dtype, Elements};
pub use error::{DeviceError, Result};
pub(crate) use on_host::update_on_host;
pub use optimizers::{AdamW, Sgd, Updated, WithMomentum};
pub use packed::{MatrixShape, Packed, PackedMap, Packing, WeightFormat};
use reference::Reference;

/// Brings offloaded tensors back to the memory of the device.
pub type Reload<D> = Box<dyn FnOnce(&D) -> Result<Vec<<D as Device>::Tensor>> + Send>;

/// Memory, sums and weight updates of a device; see the [module](self) for conventions.
///
/// The tensor type and the first ten functions are required. The others have defaults, which a
/// device overrides if it gains by it.
pub trait Device: Clone + Send + Sync + 'static {
    /// A tensor in the device's memory. Clones share that memory.
    type Tensor: Clone + Send + Sync + 'static;

    /// Name of the device, for logs and errors.
    fn name(&self) -> String;

    /// Copies `data`, row-major, to the device.
    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Self::Tensor>;

    /// Copies a tensor to the host, row-major; waits for the device.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>>;

    /// A tensor of zeros, with memory of its own.
    fn zeros(&self, shape: &[usize]) -> Result<Self::Tensor>;

    /// The shape of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;

    /// Rows `start .. start + len` of the first dimension; they may share the tensor's memory.
    fn rows(&self, tensor: &Self::Tensor, start: usize, len: usize) -> Result<Self::Tensor>;

    /// The tensor with another shape of as many elements; it may share memory with the tensor.
    fn reshape(&self, tensor: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor>;

    /// Concatenates tensors along the first dimension, into memory of its own. There is at least
    /// one, and all have equal widths.
    fn join(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// `into += x`, element by element.
    fn accumulate(&self, into: &mut Self::Tensor, x: &Self::Tensor) -> Result<()>;

    /// The sum of squares of each tensor, as a tensor of shape `[tensors.len()]`. Not finite if an
    /// element of its tensor is not. Its bits depend only on its own tensor.
    fn squared_norms(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// One AdamW update of each tensor; by default on the host, in f64. The bits of each tensor do
    /// not depend on the other tensors; this holds for the other optimizers too.
    fn adamw(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        on_host::update(self, tensors, |tensors| Reference.adamw(tensors, by))
    }

    /// One LAMB update of each tensor, which must be whole: its norm sets the step length.
    fn lamb(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        on_host::update(self, tensors, |tensors| Reference.lamb(tensors, by))
    }

    /// One update of each tensor by gradient descent with momentum `m`.
    fn sgd(&self, tensors: &mut [WithMomentum<'_, Self::Tensor>], by: &Sgd) -> Result<()> {
        on_host::sgd(self, tensors, by)
    }

    /// Returns true if an f32 keeps all its digits on the device, as weights and optimizer state
    /// need. The default copies a number there and back, which waits for the device; devices that
    /// know the answer override it.
    fn keeps_f32(&self) -> Result<bool> {
        let number = [f32::from_bits(0x3F80_3F81)];
        Ok(self.download(&self.upload(&[1], &number)?)? == number)
    }

    /// Bytes of a tensor's elements; by default four per element.
    fn bytes(&self, tensor: &Self::Tensor) -> u64 {
        4 * self.shape(tensor).iter().product::<usize>() as u64
    }

    /// Type of a tensor's elements, in which messages between processes carry them.
    fn dtype(&self, _tensor: &Self::Tensor) -> Dtype {
        Dtype::F32
    }

    /// Copies the elements of a tensor to the host as words of its [`Dtype`], appended to `into`.
    /// Devices with types other than f32 override it.
    fn download_words(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.download_into(tensor, into)
    }

    /// Makes a tensor from words that another rank downloaded. The device may convert them to f32.
    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Self::Tensor> {
        self.upload_vec(shape, dtype.to_f32(words, shape.iter().product()))
    }

    /// [`upload`](Device::upload) of a vector that the device may keep, for devices in host memory.
    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<Self::Tensor> {
        self.upload(shape, &data)
    }

    /// [`download`](Device::download), appended to `into`; overridden to write there directly.
    fn download_into(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        into.extend(self.download(tensor)?);
        Ok(())
    }

    /// The device's matrix products, which some optimizers need; `None` if it has none.
    fn products(&self) -> Option<&dyn Products<Self::Tensor>> {
        None
    }

    /// Downloads several tensors in their own types; a device can override it to wait only once.
    fn download_all(&self, tensors: &[&Self::Tensor]) -> Result<Vec<Elements>> {
        on_host::download_all(self, tensors)
    }

    /// Moves tensors out of the device's memory until the returned function brings them back, bit
    /// for bit. The default keeps them in host memory, in their own types. A device whose memory is
    /// the host's offloads elsewhere.
    fn offload(&self, tensors: Vec<Self::Tensor>) -> Result<Reload<Self>> {
        on_host::offload(self, tensors)
    }

    /// The device's asynchronous functions, if it works while its rank goes on, or has memory that
    /// other ranks cannot read.
    fn asynchronous(&self) -> Option<&dyn Asynchronous<Self::Tensor>> {
        None
    }

    /// A clock, for devices whose functions return before their work is done.
    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(None)
    }
}

/// Matrix products for optimizers. `T` is the device's tensor type.
pub trait Products<T> {
    /// `a bᵀ` of the matrices `a` `[m, k]` and `b` `[n, k]`.
    fn product(&self, a: &T, b: &T) -> Result<T>;

    /// `x` `[m, n]` after some iterations. Each replaces `x` by `a x + b s x + c s s x` with
    /// `s = x xᵀ`. They are few operations if `m` is the smaller extent.
    fn newton_schulz(&self, x: &T, coefficients: [f64; 3], n_iterations: usize) -> Result<T>;
}

/// The [`Products`] of `device`.
///
/// # Errors
/// If the device has none.
pub(crate) fn products_of<D: Device>(device: &D) -> Result<&dyn Products<D::Tensor>> {
    device.products().ok_or_else(|| {
        let reason = "the device has no products of matrices".into();
        DeviceError::Failed { device: device.name(), op: "product", reason }
    })
}

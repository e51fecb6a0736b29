//! What a device must be able to do for the engine: keep tensors, move them, add them and update weights.
//!
//! The engine, reductions, checkpoints and transports ask for [`Device`] alone, so a framework that brings stages of
//! its own implements nothing else. What the models here compute with is [`Layers`](crate::layers::Layers), above it.
//!
//! Conventions, for all functions:
//! - Tensors are row-major. An extent may be 0.
//! - A tensor passed by `&` is never changed. A tensor passed by `&mut` is an accumulator owned by
//!   the caller alone: implementations may write into its memory, so a caller must not hold clones.
//! - Results are deterministic: the same call with the same bits gives the same bits.
//! - Shapes are checked by the callers in this crate; a wrong one is a bug and may panic.
//!
//! [`mod@reference`] is the slow, clear implementation in f64, the oracle of every backend;
//! [`conformance`] is the suite that every backend calls. [`Counted`] computes nothing: it counts memory.

mod asynchronous;
mod clock;
pub mod conformance;
pub(crate) mod counted;
mod dtype;
mod error;
mod on_host;
mod optimizers;
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
use reference::Reference;

/// Brings tensors back to the memory of the device that moved them out.
pub type Reload<D> = Box<dyn FnOnce(&D) -> Result<Vec<<D as Device>::Tensor>> + Send>;

/// Memory, sums and updates of weights, see the [module](self).
///
/// The first ten functions and the type are required. Each of the others has a default, for devices that gain
/// nothing by it.
pub trait Device: Clone + Send + Sync + 'static {
    /// A tensor in the device's memory. Clones share that memory.
    type Tensor: Clone + Send + Sync + 'static;

    /// The device, in words.
    fn name(&self) -> String;

    /// Copies `data`, row-major, to the device.
    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Self::Tensor>;

    /// Copies a tensor to the host, row-major; waits for the device.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>>;

    /// A tensor of zeros, with memory of its own.
    fn zeros(&self, shape: &[usize]) -> Result<Self::Tensor>;

    /// The extents of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;

    /// The rows `start .. start + len` of the first dimension; they may share memory with the tensor.
    fn rows(&self, tensor: &Self::Tensor, start: usize, len: usize) -> Result<Self::Tensor>;

    /// The elements of a tensor in other extents, as many; it may share memory with the tensor.
    fn reshape(&self, tensor: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor>;

    /// The rows of some tensors, at least one and as wide as each other, one below the other, with memory of their
    /// own.
    fn join(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// `into += x`, element by element.
    fn accumulate(&self, into: &mut Self::Tensor, x: &Self::Tensor) -> Result<()>;

    /// The sums of squares of some tensors: `[tensors.len()]`. Not finite if any element of a tensor is not. The
    /// bits of each are its tensor's alone, whatever the others are.
    fn squared_norms(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// One AdamW update of each tensor, on the host in f64 unless the device has its own. The bits of each tensor are
    /// its own, whatever the others are; so with the optimizers below.
    fn adamw(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        on_host::update(self, tensors, |tensors| Reference.adamw(tensors, by))
    }

    /// One LAMB update of each tensor, whole ones: the norm of each sets the length of its step.
    fn lamb(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()> {
        on_host::update(self, tensors, |tensors| Reference.lamb(tensors, by))
    }

    /// One update of each tensor by gradient descent, with the momentum `m`.
    fn sgd(&self, tensors: &mut [WithMomentum<'_, Self::Tensor>], by: &Sgd) -> Result<()> {
        on_host::sgd(self, tensors, by)
    }

    /// Whether a number of f32 keeps all its digits on the device, as weights and the optimizer's state need. One is copied there
    /// and back, which waits for the device: one that knows has its own.
    fn keeps_f32(&self) -> Result<bool> {
        let number = [f32::from_bits(0x3F80_3F81)];
        Ok(self.download(&self.upload(&[1], &number)?)? == number)
    }

    /// Bytes of the elements of a tensor: four of each, unless the device says otherwise.
    fn bytes(&self, tensor: &Self::Tensor) -> u64 {
        4 * self.shape(tensor).iter().product::<usize>() as u64
    }

    /// Type of a tensor's elements, in which messages between processes carry it.
    fn dtype(&self, _tensor: &Self::Tensor) -> Dtype {
        Dtype::F32
    }

    /// Copies the elements of a tensor to the host as words of its [`Dtype`], behind what `into` holds. A device of
    /// more types than f32 has its own.
    fn download_words(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.download_into(tensor, into)
    }

    /// A tensor of words that another rank downloaded; its elements may become f32 here.
    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Self::Tensor> {
        self.upload_vec(shape, dtype.to_f32(words, shape.iter().product()))
    }

    /// [`upload`](Device::upload) of values that may be kept, for devices whose memory is the host's.
    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<Self::Tensor> {
        self.upload(shape, &data)
    }

    /// [`download`](Device::download) behind what `into` holds, for devices that can write there at once.
    fn download_into(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        into.extend(self.download(tensor)?);
        Ok(())
    }

    /// The device, if it multiplies matrices for optimizers, which some of them need.
    fn products(&self) -> Option<&dyn Products<Self::Tensor>> {
        None
    }

    /// The elements of several tensors in their own types, for devices that can be waited for once.
    fn download_all(&self, tensors: &[&Self::Tensor]) -> Result<Vec<Elements>> {
        on_host::download_all(self, tensors)
    }

    /// Moves tensors out of the device's memory, until what is returned brings them back, to the bit: to the memory of the
    /// host, in the types of their elements. A device whose memory that is has another place for them.
    fn offload(&self, tensors: Vec<Self::Tensor>) -> Result<Reload<Self>> {
        on_host::offload(self, tensors)
    }

    /// The device, if it works on its own while its rank goes on, or has memory that other ranks do not read.
    fn asynchronous(&self) -> Option<&dyn Asynchronous<Self::Tensor>> {
        None
    }

    /// A clock, of devices whose functions return before their work is done.
    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(None)
    }
}

/// Products of matrices for optimizers. `T` is a tensor of the device.
pub trait Products<T> {
    /// `a bᵀ` of the matrices `a` `[m, k]` and `b` `[n, k]`.
    fn product(&self, a: &T, b: &T) -> Result<T>;
}

/// The [`Products`] of `device`.
///
/// # Errors
/// If it has none.
pub(crate) fn products_of<D: Device>(device: &D) -> Result<&dyn Products<D::Tensor>> {
    device.products().ok_or_else(|| {
        let reason = "the device has no products of matrices".into();
        DeviceError::Failed { device: device.name(), op: "product", reason }
    })
}

//! What a device must be able to do: about twenty layer-level functions, each backward apart.
//!
//! Models are written once over [`Kernels`] and run on every device. The functions sit at the level
//! of layers, not of tensor primitives: that is what the models here need, it leaves each device free
//! to fuse, and it keeps a backend small. Autograd is not used: a pipeline wants the input half and
//! the weight half of a backward pass apart, and weights as arguments.
//!
//! Conventions, for all functions:
//! - Activations are matrices `[rows, features]`, row-major, with `rows = samples * context`: the
//!   tokens of one sample are consecutive rows.
//! - A tensor passed by `&` is never changed. A tensor passed by `&mut` is an accumulator owned by
//!   the caller alone: implementations may write into its memory, so a caller must not hold clones.
//! - `_dx` computes the gradient of the input, `_dw` **adds** the gradients of the weights to
//!   accumulators.
//! - Results are deterministic: the same call with the same bits gives the same bits.
//! - Shapes are checked by the callers in this crate; a wrong one is a bug and may panic.
//!
//! [`mod@reference`] is the slow, clear implementation in f64, the oracle of every backend;
//! [`conformance`] is the suite that every backend calls. [`Counted`] computes nothing: it counts memory.

mod arguments;
pub mod conformance;
mod counted;
mod dropout;
pub mod reference;

pub use arguments::{Activation, AdamW, Layout, Mask, Sgd, Updated};
pub use counted::{Counted, Extents};
pub use dropout::{Dropout, threefry};

use crate::fault::{Class, Fault};
use crate::ids::Rank;

/// What went wrong on a device.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device has no memory left.
    #[error("out of memory on {device}: {} for {what}", asked(.asked_bytes))]
    OutOfMemory {
        /// The device, in words.
        device: String,
        /// What the memory was for.
        what: String,
        /// How much was asked for; 0 if the device does not say.
        asked_bytes: u64,
    },
    /// The device or its library reported a failure.
    #[error("{op} failed on {device}: {reason}")]
    Failed {
        /// The device, in words.
        device: String,
        /// The operation.
        op: &'static str,
        /// What the library said.
        reason: String,
    },
}

fn asked(bytes: &u64) -> String {
    if *bytes == 0 { "no room".into() } else { format!("{bytes} bytes asked") }
}

impl DeviceError {
    /// What ends a run, as `rank` sees it.
    pub fn into_fault(self, rank: Rank) -> Fault {
        Fault::new(self.class(), rank, self.to_string())
    }

    /// What kind of failure it is.
    pub fn class(&self) -> Class {
        match self {
            DeviceError::OutOfMemory { .. } => Class::OutOfMemory,
            DeviceError::Failed { .. } => Class::Internal,
        }
    }
}

/// What every function of a device returns.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A copy to the host that is under way while the device works on.
pub trait Fetch: Send {
    /// Whether it is there.
    fn is_there(&mut self) -> Result<bool>;

    /// Waits for it, and puts it behind what `into` holds.
    fn finish(self: Box<Self>, into: &mut Vec<f32>) -> Result<()>;
}

/// The clock of a device that works on its own.
pub trait Clock: Send {
    /// Marks this point of the work that was asked for so far. A device that fails to says so in
    /// [`ages`](Clock::ages).
    fn mark(&mut self);

    /// How many seconds ago the device came to each mark, in order. Waits for the last, and forgets them.
    fn ages(&mut self) -> Result<Vec<f64>>;
}

/// The layers of a device, see the [module](self).
pub trait Kernels: Clone + Send + Sync + 'static {
    /// A tensor in the device's memory. Clones share that memory.
    type Tensor: Clone + Send + Sync + 'static;

    /// The device, in words.
    fn device(&self) -> String;

    /// Copies `data`, row-major, to the device.
    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Self::Tensor>;

    /// Copies a tensor to the host, row-major; waits for the device.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>>;

    /// [`upload`](Kernels::upload) of values that may be kept, for devices whose memory is the host's.
    fn adopt(&self, shape: &[usize], data: Vec<f32>) -> Result<Self::Tensor> {
        self.upload(shape, &data)
    }

    /// [`download`](Kernels::download) behind what `into` holds, for devices that can write there at once.
    fn download_into(&self, tensor: &Self::Tensor, into: &mut Vec<f32>) -> Result<()> {
        into.extend(self.download(tensor)?);
        Ok(())
    }

    /// Begins a [`download`](Kernels::download) of a tensor as it is now, on devices on which this gains time.
    fn fetch(&self, _tensor: &Self::Tensor) -> Result<Option<Box<dyn Fetch>>> {
        Ok(None)
    }

    /// [`download`](Kernels::download) of several tensors, for devices that can be waited for once.
    fn download_all(&self, tensors: &[&Self::Tensor]) -> Result<Vec<Vec<f32>>> {
        tensors.iter().map(|tensor| self.download(tensor)).collect()
    }

    /// Begins everything that was asked of the device so far. The engine calls this before it waits for other ranks,
    /// on devices that gather work before they begin it.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// A clock, of devices whose functions return before their work is done.
    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(None)
    }

    /// A tensor of zeros, with memory of its own.
    fn zeros(&self, shape: &[usize]) -> Result<Self::Tensor>;

    /// The extents of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;

    /// Bytes of the elements of a tensor: four of each, unless the device says otherwise.
    fn bytes(&self, tensor: &Self::Tensor) -> u64 {
        let elements: usize = self.shape(tensor).iter().product();
        elements as u64 * size_of::<f32>() as u64
    }

    /// The rows `start .. start + len` of the first dimension.
    fn rows(&self, tensor: &Self::Tensor, start: usize, len: usize) -> Result<Self::Tensor>;

    /// The elements of a tensor in other extents, as many; it may share memory with the tensor.
    fn reshape(&self, tensor: &Self::Tensor, shape: &[usize]) -> Result<Self::Tensor>;

    /// The rows of some tensors, at least one and as wide as each other, one below the other, with memory of their
    /// own.
    fn join(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// Told before `tensor`, complete as far as this device has been asked, goes to another rank in this
    /// process: a device that works on its own marks it as ready from here on.
    fn hand_over(&self, _tensor: &Self::Tensor) -> Result<()> {
        Ok(())
    }

    /// A tensor that another rank in this process made, brought to this device if it lies elsewhere.
    fn take_over(&self, tensor: Self::Tensor) -> Result<Self::Tensor> {
        Ok(tensor)
    }

    /// Lets work that is asked for from here on begin when a tensor of another rank is complete.
    fn wait_for(&self, _tensor: &Self::Tensor) -> Result<()> {
        Ok(())
    }

    /// `into += x`, element by element.
    fn accumulate(&self, into: &mut Self::Tensor, x: &Self::Tensor) -> Result<()>;

    /// The sums of squares of some tensors: `[tensors.len()]`. Not finite if any element of a tensor is not. The
    /// bits of each are its tensor's alone, whatever the others are.
    fn squared_norms(&self, tensors: &[&Self::Tensor]) -> Result<Self::Tensor>;

    /// `tokens[ids[r]] + positions[r mod context]` for each row `r`: `[ids.len(), hidden]` from
    /// `tokens: [vocab, hidden]` and `positions: [at least context, hidden]`.
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Self::Tensor,
        positions: &Self::Tensor,
    ) -> Result<Self::Tensor>;

    /// Adds the gradients of [`embedding`](Kernels::embedding) for `dy: [ids.len(), hidden]`.
    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Self::Tensor,
        d_tokens: &mut Self::Tensor,
        d_positions: &mut Self::Tensor,
    ) -> Result<()>;

    /// `x w + bias + residual`: `[rows, outputs]` from `x: [rows, inputs]`, `w` in `layout`,
    /// `bias: [outputs]`, `residual: [rows, outputs]`.
    fn linear(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
        bias: Option<&Self::Tensor>,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// `dy wᵀ`: the gradient of [`linear`](Kernels::linear)'s `x`. (That of `residual` is `dy`.)
    fn linear_dx(
        &self,
        dy: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
    ) -> Result<Self::Tensor>;

    /// Adds `xᵀ dy` to `dw`, in `layout`, and the column sums of `dy` to `d_bias`.
    fn linear_dw(
        &self,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        layout: Layout,
        dw: &mut Self::Tensor,
        d_bias: Option<&mut Self::Tensor>,
    ) -> Result<()>;

    /// Normalises each row to mean 0 and variance 1 (biased, plus `epsilon`), times `gain: [features]`
    /// plus `bias: [features]`. Also returns `[rows, 2]`: each row's mean and reciprocal deviation.
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        bias: &Self::Tensor,
        epsilon: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`layer_norm`](Kernels::layer_norm)'s `x`, plus `residual` if given (the
    /// gradient that reaches `x` on the path around the layer).
    fn layer_norm_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Tensor,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// Adds the gradients of `gain` and `bias`.
    fn layer_norm_dw(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        d_gain: &mut Self::Tensor,
        d_bias: &mut Self::Tensor,
    ) -> Result<()>;

    /// `f` of each element.
    fn activation(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor>;

    /// The gradient of [`activation`](Kernels::activation)'s `x`, and `f(x)` again: a backward pass has
    /// both for the price of one, so the larger of the two need not be kept since the forward pass.
    fn activation_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        f: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// Drops elements of `x`, and multiplies the others by `1/(1 - rate)`; plus `residual` if given. Its
    /// own gradient: that of `x` is the dropout of `dy` by the same choice, without a residual.
    fn dropout(
        &self,
        x: &Self::Tensor,
        by: &Dropout,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor>;

    /// Self-attention of each sample of `context` rows on its own, scaled by `1/√(hidden/heads)`: every
    /// row queries the keys that `mask` lets it see. `drop` drops weights of the softmax, which are numbered as
    /// [`Dropout::weight`] says.
    /// `qkv: [rows, 3 hidden]` holds queries, keys, values side by side, each split into heads.
    /// Returns the mixed values `[rows, hidden]` and the log-sum-exp of the scores `[rows, heads]`.
    fn attention(
        &self,
        qkv: &Self::Tensor,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// The gradient of [`attention`](Kernels::attention)'s `qkv`; `out` and `log_sum` are its results.
    fn attention_dx(
        &self,
        dy: &Self::Tensor,
        qkv: &Self::Tensor,
        out: &Self::Tensor,
        log_sum: &Self::Tensor,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<Self::Tensor>;

    /// Softmax cross-entropy of `logits: [rows, vocab]` against `targets` (one class per row), forward
    /// and backward in one pass. Returns the sum over rows of the loss in nats times `scale`, shape
    /// `[1]`, and its gradient `scale * (softmax - one_hot)`, which may take the memory of `logits`.
    fn cross_entropy(
        &self,
        logits: Self::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    /// One AdamW update of each tensor. The bits of each are its own, whatever the others are; so with the
    /// optimizers below.
    fn adamw(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()>;

    /// One LAMB update of each tensor, whole ones: the norm of each sets the length of its step.
    fn lamb(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &AdamW) -> Result<()>;

    /// One update of each tensor by gradient descent, with the momentum `m`; `v` stays as it is.
    fn sgd(&self, tensors: &mut [Updated<'_, Self::Tensor>], by: &Sgd) -> Result<()>;
}

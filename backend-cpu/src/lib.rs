//! Chimera's [`Device`] and [`Layers`] on the CPU, with candle's tensors ([`Candle`]).
//!
//! Candle holds the memory and names the device; the layers are written here, since composing them
//! from tensor primitives costs a pass over memory per primitive, and since candle's own fused ones
//! have no backward. A layer is a matrix product or one fused loop, and uses as many
//! threads as the current rayon pool has: run each worker inside a pool of its own.

#![allow(unsafe_code)] // matrix products take pointers, and results are written before they are read

mod kernels;

pub use kernels::{measured_bf16_peak, measured_peak};

use candle_core::Tensor;
use chimera_core::device::{
    AdamW, Device, DeviceError, Reload, Result, Sgd, Updated, WithMomentum,
};
use chimera_core::layers::{Activation, Attention, Dropout, Layers, Layout, Rotary};

use crate::kernels::bf16::Supported;
use crate::kernels::matmul::Operands;
use crate::kernels::pool::{FilePool, IN_WORDS, Stored};

/// A device of candle.
#[derive(Clone, Debug)]
pub struct Candle {
    device: candle_core::Device,
    /// Of the products of layers. Those of optimizers are in f32.
    operands: Operands,
    /// The file that holds offloaded tensors.
    pool: FilePool,
}

impl Candle {
    /// The processor and its memory.
    pub fn cpu() -> Self {
        Self {
            device: candle_core::Device::Cpu,
            operands: Operands::F32,
            pool: FilePool::default(),
        }
    }

    /// The processor and its memory, with linear layers whose matrix products round their operands to bf16 and add in
    /// f32, if the processor has the instructions for it: those of AVX-512 BF16. All that is in memory, and all that is
    /// no product of such a layer, attention included, is f32 as on [`cpu`](Candle::cpu).
    ///
    /// Denormal operands count as zero in such products, and so do sums that are denormal; infinities and what is not
    /// a number stay what they are.
    pub fn cpu_bf16() -> Option<Self> {
        let operands = Operands::Bf16(Supported::detect()?);
        Some(Self { operands, ..Self::cpu() })
    }

    /// Makes the file to which [`offload`](Device::offload) moves tensors.
    ///
    /// # Errors
    /// If it cannot be made in the system's folder for temporary files.
    pub fn open_offload_file(&self) -> std::io::Result<()> {
        self.pool.open()
    }

    fn named<T>(&self, op: &'static str, result: candle_core::Result<T>) -> Result<T> {
        result.map_err(|error| DeviceError::Failed {
            device: self.name(),
            op,
            reason: error.to_string(),
        })
    }
}

impl Device for Candle {
    type Tensor = Tensor;

    fn name(&self) -> String {
        format!("{:?}", self.device.location()).to_lowercase()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        self.named("upload", Tensor::from_slice(data, shape, &self.device))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let flat = tensor.flatten_all().and_then(|flat| flat.to_vec1());
        self.named("download", flat)
    }

    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<Tensor> {
        self.named("upload", Tensor::from_vec(data, shape, &self.device))
    }

    fn download_into(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        let copied = kernels::copy_into(tensor, into);
        self.named("download", copied)
    }

    /// To a file: the memory of the host is the device's own.
    fn offload(&self, tensors: Vec<Tensor>) -> Result<Reload<Self>> {
        let failed = |device: &Self, op, error: std::io::Error| DeviceError::File {
            device: device.name(),
            op,
            reason: format!("{}: {error}; TMPDIR says where it is", IN_WORDS),
        };
        let store = |tensor: Tensor| {
            let stored = self.pool.store(&self.download(&tensor)?);
            Ok((tensor.dims().to_vec(), stored.map_err(|error| failed(self, "offload", error))?))
        };
        let stored = tensors.into_iter().map(store).collect::<Result<Vec<_>>>()?;
        let reload = move |device: &Self| {
            let load = |(shape, stored): (Vec<usize>, Stored)| {
                let elements = stored.load().map_err(|error| failed(device, "reload", error))?;
                device.upload_vec(&shape, elements)
            };
            stored.into_iter().map(load).collect()
        };
        Ok(Box::new(reload))
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        let zeros = Tensor::zeros(shape, candle_core::DType::F32, &self.device);
        self.named("zeros", zeros)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.dims().to_vec()
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        self.named("rows", tensor.narrow(0, start, len))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        self.named("reshape", tensor.reshape(shape))
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.named("join", kernels::join(tensors))
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        self.named("accumulate", kernels::sums::accumulate(into, x))
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.named("squared_norms", kernels::sums::squared_norms(tensors))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        self.named(
            "adamw",
            tensors.iter_mut().try_for_each(|tensor| kernels::adamw::update(tensor, by)),
        )
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        self.named(
            "lamb",
            tensors.iter_mut().try_for_each(|tensor| kernels::lamb::update(tensor, by)),
        )
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, Tensor>], by: &Sgd) -> Result<()> {
        self.named(
            "sgd",
            tensors.iter_mut().try_for_each(|tensor| kernels::sgd::update(tensor, by)),
        )
    }

    fn has_products(&self) -> bool {
        true
    }

    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.named(
            "product",
            kernels::linear::forward(Operands::F32, a, b, Layout::OutIn, None, None),
        )
    }
}

impl Layers for Candle {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Tensor,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let y = kernels::embedding::forward(ids, context, tokens, positions);
        self.named("embedding", y)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Tensor,
        d_tokens: &mut Tensor,
        d_positions: &mut Tensor,
    ) -> Result<()> {
        let done = kernels::embedding::backward(ids, context, dy, d_tokens, d_positions);
        self.named("embedding_dw", done)
    }

    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        layout: Layout,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let y = kernels::linear::forward(self.operands, x, w, layout, bias, residual);
        self.named("linear", y)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor, layout: Layout) -> Result<Tensor> {
        self.named("linear_dx", kernels::linear::backward_input(self.operands, dy, w, layout))
    }

    fn linear_dw(
        &self,
        x: &Tensor,
        dy: &Tensor,
        layout: Layout,
        dw: &mut Tensor,
        d_bias: Option<&mut Tensor>,
    ) -> Result<()> {
        let done = kernels::linear::backward_weight(
            self.operands,
            x,
            dy,
            layout,
            dw,
            d_bias.map(|bias| &*bias),
        );
        self.named("linear_dw", done)
    }

    fn layer_norm(
        &self,
        x: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor)> {
        self.named("layer_norm", kernels::norm::forward(x, gain, Some(bias), epsilon))
    }

    fn layer_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let dx = kernels::norm::backward_input(dy, x, stats, gain, residual);
        self.named("layer_norm_dx", dx)
    }

    fn layer_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
        d_bias: &mut Tensor,
    ) -> Result<()> {
        let done = kernels::norm::backward_weight(dy, x, stats, d_gain, Some(d_bias));
        self.named("layer_norm_dw", done)
    }

    fn activation(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        self.named("activation", kernels::activation::forward(x, f))
    }

    fn activation_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        self.named("activation_dx", kernels::activation::backward(dy, x, f))
    }

    fn has_llama_layers(&self) -> bool {
        true
    }

    fn rms_norm(&self, x: &Tensor, gain: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
        self.named("rms_norm", kernels::norm::forward(x, gain, None, epsilon))
    }

    fn rms_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let dx = kernels::norm::backward_input(dy, x, stats, gain, residual);
        self.named("rms_norm_dx", dx)
    }

    fn rms_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
    ) -> Result<()> {
        self.named("rms_norm_dw", kernels::norm::backward_weight(dy, x, stats, d_gain, None))
    }

    fn gated(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        self.named("gated", kernels::gated::forward(x, f))
    }

    fn gated_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        self.named("gated_dx", kernels::gated::backward(dy, x, f))
    }

    fn rotary(&self, x: &Tensor, table: &Tensor, by: Rotary) -> Result<Tensor> {
        self.named("rotary", kernels::rotary::turn(x, table, by))
    }

    fn dropout(&self, x: &Tensor, by: &Dropout, residual: Option<&Tensor>) -> Result<Tensor> {
        self.named("dropout", kernels::dropout::forward(x, by, residual))
    }

    fn attention(&self, qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
        self.named("attention", kernels::attention::forward(qkv, by))
    }

    fn attention_dx(
        &self,
        dy: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        log_sum: &Tensor,
        by: &Attention<'_>,
    ) -> Result<Tensor> {
        let dx = kernels::attention::backward(dy, qkv, out, log_sum, by);
        self.named("attention_dx", dx)
    }

    fn attention_after(
        &self,
        qkv: &Tensor,
        cache: &mut Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor, Tensor)> {
        self.named("attention_after", kernels::attention::after(qkv, cache, past, by))
    }

    fn attention_slice(
        &self,
        qkv: &Tensor,
        first: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let mixed = kernels::attention::forward_from(qkv, first, by);
        self.named("attention_slice", mixed)
    }

    fn attention_slice_dx(
        &self,
        dy: &Tensor,
        qkv: &Tensor,
        mixed: (&Tensor, &Tensor),
        first: usize,
        by: &Attention<'_>,
    ) -> Result<Tensor> {
        let dx = kernels::attention::backward_from(dy, qkv, mixed, first, by);
        self.named("attention_slice_dx", dx)
    }

    fn cross_entropy(
        &self,
        logits: Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        let loss = kernels::cross_entropy::both(logits, targets, scale);
        self.named("cross_entropy", loss)
    }
}

//! Chimera's [`Device`] and [`Layers`] as compute shaders, for any GPU that Vulkan, Metal or DX12
//! reaches. With a software Vulkan they need no GPU.
//!
//! `shaders` has one WGSL file per layer; devices differ only in a few constants at its head. Calls
//! from all threads are recorded into one stream per device, in the order in which they are made.
//! They are submitted together: when results are read back, when a rank is about to wait, or when
//! enough have accumulated. So several workers can share a device and pass each other tensors
//! without copies. Only [`download`](Device::download) reads back.
//!
//! Sums have one order and there are no atomics, so the same call gives the same bits. Tensors
//! larger than the device binds at once are processed in blocks of rows. A device error (out of
//! memory, device lost, a refused call) becomes a
//! [`DeviceError`](chimera_core::device::DeviceError) of the next call that can report it.

mod adapter;
mod clock;
mod fastest;
mod freivalds;
mod gpu;
mod layers;
mod pool;
mod shader;
mod stream;
mod tensor;
mod tuning;
#[cfg(test)]
mod waits;

use std::sync::Arc;

use chimera_core::device::{
    AdamW, Asynchronous, Clock, Device, Elements, Fetch, Result, Sgd, Updated, WithMomentum,
};
use chimera_core::layers::{
    Activation, Attend, Attention, Dropout, Embed, Layers, Layout, Linear, LlamaLayers, Loss, Norm,
    Pointwise, Rotary,
};

pub use adapter::{Adapter, OpenError, Options, adapters, validated_adapters};
pub use fastest::Speeds;
pub use tensor::Tensor;
pub use tuning::{Product, Products, Target};

use clock::QueueClock;
use gpu::{Fetched, Gpu};

/// A wgpu device. Clones share it, and any thread may use them.
#[derive(Clone, Debug)]
pub struct Wgpu {
    gpu: Arc<Gpu>,
}

impl Wgpu {
    /// Returns the model with its driver: on all devices of one model a call gives the same bits.
    pub fn model(&self) -> &str {
        self.gpu.model()
    }

    /// Returns true if the adapter is software on the processor, whose memory is the host's.
    pub fn is_software(&self) -> bool {
        self.gpu.is_software()
    }
}

impl Device for Wgpu {
    type Tensor = Tensor;

    fn name(&self) -> String {
        self.gpu.name().into()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "upload");
        let memory = self.gpu.upload("upload", bytemuck::cast_slice(data))?;
        Ok(Tensor::whole(memory, shape))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let mut data = Vec::with_capacity(tensor.n_elements());
        self.download_into(tensor, &mut data)?;
        Ok(data)
    }

    fn download_into(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.gpu.fetch(tensor)?.read(into)
    }

    fn download_all(&self, tensors: &[&Tensor]) -> Result<Vec<Elements>> {
        // All copies are under way before the first is waited for.
        let fetched: Result<Vec<_>> = tensors.iter().map(|tensor| self.gpu.fetch(tensor)).collect();
        let read = |fetched: Fetched| {
            let mut data = Vec::new();
            fetched.read(&mut data)?;
            Ok(data.into())
        };
        fetched?.into_iter().map(read).collect()
    }

    fn keeps_f32(&self) -> Result<bool> {
        Ok(true)
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        let clock = || -> Box<dyn Clock> { Box::new(QueueClock::new(Arc::clone(&self.gpu))) };
        Ok(self.gpu.has_clock().then(clock))
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.gpu.tensor("zeros", shape)?;
        self.gpu.clear("zeros", &tensor)?;
        Ok(tensor)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.shape().to_vec()
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(tensor.rows(start, len))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(tensor.reshape(shape))
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.gpu.join(tensors)
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        self.gpu.accumulate(into, x)
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        self.gpu.squared_norms("squared_norms", tensors)
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.gpu.adamw(tensor, by))
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.gpu.lamb(tensor, by))
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, Tensor>], by: &Sgd) -> Result<()> {
        tensors.iter().try_for_each(|tensor| self.gpu.sgd(tensor, by))
    }

    fn asynchronous(&self) -> Option<&dyn Asynchronous<Tensor>> {
        Some(self)
    }
}

impl Asynchronous<Tensor> for Wgpu {
    fn fetch(&self, tensor: &Tensor) -> Result<Option<Box<dyn Fetch>>> {
        Ok(Some(Box::new(self.gpu.fetch(tensor)?)))
    }

    fn flush(&self) -> Result<()> {
        self.gpu.flush()
    }
}

impl Embed for Wgpu {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Tensor,
        positions: &Tensor,
    ) -> Result<Tensor> {
        self.gpu.embedding(ids, context, tokens, positions)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Tensor,
        d_tokens: &mut Tensor,
        d_positions: &mut Tensor,
    ) -> Result<()> {
        self.gpu.embedding_dw(ids, context, dy, d_tokens, d_positions)
    }
}

impl Linear for Wgpu {
    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        layout: Layout,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.gpu.linear(x, w, layout, bias, residual)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor, layout: Layout) -> Result<Tensor> {
        self.gpu.linear_dx(dy, w, layout)
    }

    fn linear_dw(
        &self,
        x: &Tensor,
        dy: &Tensor,
        layout: Layout,
        dw: &mut Tensor,
        d_bias: Option<&mut Tensor>,
    ) -> Result<()> {
        self.gpu.linear_dw(x, dy, layout, dw, d_bias)
    }
}

impl Norm for Wgpu {
    fn layer_norm(
        &self,
        x: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor)> {
        self.gpu.norm("layer_norm", x, gain, Some(bias), epsilon)
    }

    fn layer_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.gpu.norm_dx("layer_norm_dx", dy, x, stats, gain, residual)
    }

    fn layer_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
        d_bias: &mut Tensor,
    ) -> Result<()> {
        self.gpu.norm_dw("layer_norm_dw", dy, x, stats, &[d_gain, d_bias])
    }
}

impl Pointwise for Wgpu {
    fn activation(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        self.gpu.activation(x, f)
    }

    fn activation_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        self.gpu.activation_dx(dy, x, f)
    }

    fn dropout(&self, x: &Tensor, by: &Dropout, residual: Option<&Tensor>) -> Result<Tensor> {
        self.gpu.dropout(x, by, residual)
    }
}

impl Attend for Wgpu {
    fn attention(&self, qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
        self.gpu.attention(qkv, by)
    }

    fn attention_dx(
        &self,
        dy: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        log_sum: &Tensor,
        by: &Attention<'_>,
    ) -> Result<Tensor> {
        self.gpu.attention_dx(dy, qkv, out, log_sum, by)
    }

    fn attention_after(
        &self,
        qkv: &Tensor,
        cache: &mut Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor, Tensor)> {
        self.gpu.attention_after(qkv, cache, past, by)
    }
}

impl Loss for Wgpu {
    fn cross_entropy(
        &self,
        logits: Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        self.gpu.cross_entropy(logits, targets, scale)
    }
}

impl Layers for Wgpu {
    fn llama(&self) -> Option<&dyn LlamaLayers<Tensor>> {
        Some(self)
    }
}

impl LlamaLayers<Tensor> for Wgpu {
    fn rms_norm(&self, x: &Tensor, gain: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
        self.gpu.norm("rms_norm", x, gain, None, epsilon)
    }

    fn rms_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.gpu.norm_dx("rms_norm_dx", dy, x, stats, gain, residual)
    }

    fn rms_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
    ) -> Result<()> {
        self.gpu.norm_dw("rms_norm_dw", dy, x, stats, &[d_gain])
    }

    fn gated(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        self.gpu.gated(x, f)
    }

    fn gated_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        self.gpu.gated_dx(dy, x, f)
    }

    fn rotary(&self, x: &Tensor, table: &Tensor, by: Rotary) -> Result<Tensor> {
        self.gpu.rotary(x, table, by)
    }
}

//! The operands of the weight half of a backward pass, layer by layer.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Layout, llama_layers};

/// The operands of a norm's weight gradient.
#[derive(Debug)]
pub(super) struct Norm<T> {
    pub(super) dy: T,
    pub(super) x: T,
    pub(super) stats: T,
}

/// The operands of a linear layer's weight gradient.
#[derive(Debug)]
pub(super) struct Linear<T> {
    pub(super) x: T,
    pub(super) dy: T,
}

/// The weight gradients of a block that are still to be computed.
#[derive(Debug)]
pub(super) struct Deferred<T> {
    pub(super) norm_1: Norm<T>,
    pub(super) qkv: Linear<T>,
    pub(super) out: Linear<T>,
    pub(super) norm_2: Norm<T>,
    pub(super) up: Linear<T>,
    pub(super) down: Linear<T>,
}

impl<T> Deferred<T> {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        let norms = [&self.norm_1, &self.norm_2].into_iter().flat_map(Norm::tensors);
        norms.chain(self.linears().into_iter().flat_map(Linear::tensors))
    }

    /// Returns the operands of the linear layers, in the order of their tensors.
    pub(super) fn operands(&self) -> [[T; 2]; 4]
    where
        T: Clone,
    {
        self.linears().map(Linear::shown)
    }

    fn linears(&self) -> [&Linear<T>; 4] {
        [&self.qkv, &self.out, &self.up, &self.down]
    }
}

impl<T> Norm<T> {
    pub(super) fn tensors(&self) -> [&T; 3] {
        [&self.dy, &self.x, &self.stats]
    }

    /// Adds the gradients of a layer norm's gain and bias, and frees the operands at once.
    pub(super) fn add<D: Layers<Tensor = T>>(
        self,
        device: &D,
        d_gain: &mut T,
        d_bias: &mut T,
    ) -> Result<()> {
        device.layer_norm_dw(&self.dy, &self.x, &self.stats, d_gain, d_bias)
    }

    /// Adds the gradient of an RMS norm's gain, and frees the operands at once.
    pub(super) fn add_rms<D: Layers<Tensor = T>>(self, device: &D, d_gain: &mut T) -> Result<()> {
        llama_layers(device)?.rms_norm_dw(&self.dy, &self.x, &self.stats, d_gain)
    }
}

impl<T> Linear<T> {
    pub(super) fn tensors(&self) -> [&T; 2] {
        [&self.x, &self.dy]
    }

    /// Returns copies, which share the memory of the operands.
    pub(super) fn shown(&self) -> [T; 2]
    where
        T: Clone,
    {
        [self.x.clone(), self.dy.clone()]
    }

    /// Adds the gradients of the matrix and a bias, and frees the operands at once.
    pub(super) fn add<D: Layers<Tensor = T>>(
        self,
        device: &D,
        layout: Layout,
        dw: &mut T,
        d_bias: Option<&mut T>,
    ) -> Result<()> {
        device.linear_dw(&self.x, &self.dy, layout, dw, d_bias)
    }
}

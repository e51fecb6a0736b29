//! The norms of [`Layers`] and the layers of a Llama; other layers are in their family's file.

use chimera_core::device::Result;
use chimera_core::layers::{Activation, Layers, LlamaLayers, Norm, Rotary};

use super::{Driver, Gpu, Tensor};

impl<D: Driver> Norm for Gpu<D> {
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        bias: &Self::Tensor,
        epsilon: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.normalise(x, gain, Some(bias), epsilon)
    }

    fn layer_norm_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Tensor,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.normalise_backward_input(dy, x, stats, gain, residual)
    }

    fn layer_norm_dw(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        d_gain: &mut Self::Tensor,
        d_bias: &mut Self::Tensor,
    ) -> Result<()> {
        self.normalise_backward_weight(dy, x, stats, d_gain, Some(d_bias))
    }
}

impl<D: Driver> Layers for Gpu<D> {
    fn llama(&self) -> Option<&dyn LlamaLayers<Tensor<D::Memory>>> {
        Some(self)
    }
}

impl<D: Driver> LlamaLayers<Tensor<D::Memory>> for Gpu<D> {
    fn rms_norm(
        &self,
        x: &Tensor<D::Memory>,
        gain: &Tensor<D::Memory>,
        epsilon: f64,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        self.normalise(x, gain, None, epsilon)
    }

    fn rms_norm_dx(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        stats: &Tensor<D::Memory>,
        gain: &Tensor<D::Memory>,
        residual: Option<&Tensor<D::Memory>>,
    ) -> Result<Tensor<D::Memory>> {
        self.normalise_backward_input(dy, x, stats, gain, residual)
    }

    fn rms_norm_dw(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        stats: &Tensor<D::Memory>,
        d_gain: &mut Tensor<D::Memory>,
    ) -> Result<()> {
        self.normalise_backward_weight(dy, x, stats, d_gain, None)
    }

    fn gated(&self, x: &Tensor<D::Memory>, f: Activation) -> Result<Tensor<D::Memory>> {
        self.gate(x, f)
    }

    fn gated_dx(
        &self,
        dy: &Tensor<D::Memory>,
        x: &Tensor<D::Memory>,
        f: Activation,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        self.gate_backward(dy, x, f)
    }

    fn rotary(
        &self,
        x: &Tensor<D::Memory>,
        table: &Tensor<D::Memory>,
        by: Rotary,
    ) -> Result<Tensor<D::Memory>> {
        self.turn(x, table, by)
    }
}

//! [`Layers`] on a GPU: each layer by the file of its family.

use chimera_core::device::Result;
use chimera_core::layers::{Activation, Attention, Dropout, Layers, Layout, Rotary};

use super::{Driver, Gpu};

impl<D: Driver> Layers for Gpu<D> {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Self::Tensor,
        positions: &Self::Tensor,
    ) -> Result<Self::Tensor> {
        self.embed(ids, context, tokens, positions)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Self::Tensor,
        d_tokens: &mut Self::Tensor,
        d_positions: &mut Self::Tensor,
    ) -> Result<()> {
        self.embed_backward(ids, context, dy, d_tokens, d_positions)
    }

    fn linear(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
        bias: Option<&Self::Tensor>,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.linear_forward(x, w, layout, bias, residual)
    }

    fn linear_dx(
        &self,
        dy: &Self::Tensor,
        w: &Self::Tensor,
        layout: Layout,
    ) -> Result<Self::Tensor> {
        self.linear_backward_input(dy, w, layout)
    }

    fn linear_dw(
        &self,
        x: &Self::Tensor,
        dy: &Self::Tensor,
        layout: Layout,
        dw: &mut Self::Tensor,
        d_bias: Option<&mut Self::Tensor>,
    ) -> Result<()> {
        self.linear_backward_weight(x, dy, layout, dw, d_bias.map(|bias| &*bias))
    }

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

    fn activation(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor> {
        self.activate(x, f)
    }

    fn activation_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        f: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.activate_backward(dy, x, f)
    }

    fn has_llama_layers(&self) -> bool {
        true
    }

    fn rms_norm(
        &self,
        x: &Self::Tensor,
        gain: &Self::Tensor,
        epsilon: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.normalise(x, gain, None, epsilon)
    }

    fn rms_norm_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        gain: &Self::Tensor,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.normalise_backward_input(dy, x, stats, gain, residual)
    }

    fn rms_norm_dw(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        stats: &Self::Tensor,
        d_gain: &mut Self::Tensor,
    ) -> Result<()> {
        self.normalise_backward_weight(dy, x, stats, d_gain, None)
    }

    fn gated(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor> {
        self.gate(x, f)
    }

    fn gated_dx(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        f: Activation,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.gate_backward(dy, x, f)
    }

    fn rotary(&self, x: &Self::Tensor, table: &Self::Tensor, by: Rotary) -> Result<Self::Tensor> {
        self.turn(x, table, by)
    }

    fn dropout(
        &self,
        x: &Self::Tensor,
        by: &Dropout,
        residual: Option<&Self::Tensor>,
    ) -> Result<Self::Tensor> {
        self.drop_out(x, by, residual)
    }

    fn attention(
        &self,
        qkv: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.attend(qkv, by)
    }

    fn attention_dx(
        &self,
        dy: &Self::Tensor,
        qkv: &Self::Tensor,
        out: &Self::Tensor,
        log_sum: &Self::Tensor,
        by: &Attention<'_>,
    ) -> Result<Self::Tensor> {
        self.attend_backward(dy, qkv, out, log_sum, by)
    }

    fn attention_after(
        &self,
        qkv: &Self::Tensor,
        cache: &mut Self::Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.attend_after(qkv, cache, past, by)
    }

    fn cross_entropy(
        &self,
        logits: Self::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        self.loss(logits, targets, scale)
    }
}

//! The layers of a [`Candle`]. Each calls its kernel, and adds the layer's name to errors.

use candle_core::Tensor;
use chimera_core::device::Result;
use chimera_core::layers::{
    Activation, Attend, Attention, Dropout, Embed, Layers, Layout, Linear, LlamaLayers, Loss, Norm,
    Pointwise, Rotary,
};

use crate::{Candle, kernels};

impl Embed for Candle {
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
}

impl Linear for Candle {
    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        layout: Layout,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let y = kernels::packed::forward(self.operands, x, w, layout, bias, residual);
        self.named("linear", y)
    }

    fn linear_dx(&self, dy: &Tensor, w: &Tensor, layout: Layout) -> Result<Tensor> {
        self.named("linear_dx", kernels::packed::backward_input(self.operands, dy, w, layout))
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
}

impl Norm for Candle {
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
}

impl Pointwise for Candle {
    fn activation(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        self.named("activation", kernels::activation::forward(x, f))
    }

    fn activation_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        self.named("activation_dx", kernels::activation::backward(dy, x, f))
    }

    fn dropout(&self, x: &Tensor, by: &Dropout, residual: Option<&Tensor>) -> Result<Tensor> {
        self.named("dropout", kernels::dropout::forward(x, by, residual))
    }
}

impl Attend for Candle {
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
}

impl Loss for Candle {
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

impl Layers for Candle {
    fn llama(&self) -> Option<&dyn LlamaLayers<Tensor>> {
        Some(self)
    }
}

impl LlamaLayers<Tensor> for Candle {
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
}

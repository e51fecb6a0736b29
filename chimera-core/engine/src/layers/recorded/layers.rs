//! Recording of layers.

use super::Recorded;
use crate::device::Result;
use crate::layers::{
    Activation, Attend, Attention, Dropout, Embed, Layers, Layout, Linear, LlamaLayers, Loss, Norm,
    Pointwise, Rotary, llama_layers,
};

impl<D: Layers> Embed for Recorded<D> {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &D::Tensor,
        positions: &D::Tensor,
    ) -> Result<D::Tensor> {
        let extents = [ids.len(), self.matrix(tokens)[1]];
        self.call("embedding", &extents, |device| device.embedding(ids, context, tokens, positions))
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &D::Tensor,
        d_tokens: &mut D::Tensor,
        d_positions: &mut D::Tensor,
    ) -> Result<()> {
        self.call("embedding_dw", &self.matrix(dy), |device| {
            device.embedding_dw(ids, context, dy, d_tokens, d_positions)
        })
    }

    fn rotary_table(&self, frequencies: &[f64], factor: f64, context: usize) -> Result<D::Tensor> {
        self.device.rotary_table(frequencies, factor, context)
    }
}

impl<D: Layers> Linear for Recorded<D> {
    fn linear(
        &self,
        x: &D::Tensor,
        w: &D::Tensor,
        layout: Layout,
        bias: Option<&D::Tensor>,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let layer = match (layout, residual.is_some()) {
            (Layout::InOut, false) => "linear",
            (Layout::InOut, true) => "linear with residual",
            (Layout::OutIn, false) => "linear out-in",
            (Layout::OutIn, true) => "linear out-in with residual",
        };
        let [rows, inputs] = self.matrix(x);
        let extents = [rows, inputs, self.n_elements([w]) / inputs.max(1)];
        self.call(layer, &extents, |device| device.linear(x, w, layout, bias, residual))
    }

    fn linear_dx(&self, dy: &D::Tensor, w: &D::Tensor, layout: Layout) -> Result<D::Tensor> {
        let layer = match layout {
            Layout::InOut => "linear_dx",
            Layout::OutIn => "linear_dx out-in",
        };
        let [rows, outputs] = self.matrix(dy);
        let extents = [rows, self.n_elements([w]) / outputs.max(1), outputs];
        self.call(layer, &extents, |device| device.linear_dx(dy, w, layout))
    }

    fn linear_dw(
        &self,
        x: &D::Tensor,
        dy: &D::Tensor,
        layout: Layout,
        dw: &mut D::Tensor,
        d_bias: Option<&mut D::Tensor>,
    ) -> Result<()> {
        let layer = match (layout, d_bias.is_some()) {
            (Layout::InOut, false) => "linear_dw",
            (Layout::InOut, true) => "linear_dw with bias",
            (Layout::OutIn, false) => "linear_dw out-in",
            (Layout::OutIn, true) => "linear_dw out-in with bias",
        };
        let [[rows, inputs], [_, outputs]] = [x, dy].map(|tensor| self.matrix(tensor));
        let extents = [rows, inputs, outputs];
        self.call(layer, &extents, |device| device.linear_dw(x, dy, layout, dw, d_bias))
    }
}

impl<D: Layers> Norm for Recorded<D> {
    fn layer_norm(
        &self,
        x: &D::Tensor,
        gain: &D::Tensor,
        bias: &D::Tensor,
        epsilon: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call("layer_norm", &self.matrix(x), |device| device.layer_norm(x, gain, bias, epsilon))
    }

    fn layer_norm_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        gain: &D::Tensor,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("layer_norm_dx", &self.matrix(x), |device| {
            device.layer_norm_dx(dy, x, stats, gain, residual)
        })
    }

    fn layer_norm_dw(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        d_gain: &mut D::Tensor,
        d_bias: &mut D::Tensor,
    ) -> Result<()> {
        self.call("layer_norm_dw", &self.matrix(x), |device| {
            device.layer_norm_dw(dy, x, stats, d_gain, d_bias)
        })
    }
}

impl<D: Layers> Pointwise for Recorded<D> {
    fn activation(&self, x: &D::Tensor, f: Activation) -> Result<D::Tensor> {
        let layer = match f {
            Activation::GeluTanh => "gelu-tanh",
            Activation::Gelu => "gelu",
            Activation::Tanh => "tanh",
            Activation::Silu => "silu",
        };
        self.call(layer, &self.matrix(x), |device| device.activation(x, f))
    }

    fn activation_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        f: Activation,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let layer = match f {
            Activation::GeluTanh => "gelu-tanh_dx",
            Activation::Gelu => "gelu_dx",
            Activation::Tanh => "tanh_dx",
            Activation::Silu => "silu_dx",
        };
        self.call(layer, &self.matrix(x), |device| device.activation_dx(dy, x, f))
    }

    fn dropout(
        &self,
        x: &D::Tensor,
        by: &Dropout,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("dropout", &self.matrix(x), |device| device.dropout(x, by, residual))
    }
}

impl<D: Layers> Attend for Recorded<D> {
    fn attention(&self, qkv: &D::Tensor, by: &Attention<'_>) -> Result<(D::Tensor, D::Tensor)> {
        let layer = if by.dropout.is_some() { "attention with dropout" } else { "attention" };
        let extents = self.attention_extents(qkv, by);
        self.call(layer, &extents, |device| device.attention(qkv, by))
    }

    fn attention_dx(
        &self,
        dy: &D::Tensor,
        qkv: &D::Tensor,
        out: &D::Tensor,
        log_sum: &D::Tensor,
        by: &Attention<'_>,
    ) -> Result<D::Tensor> {
        let layer = if by.dropout.is_some() { "attention_dx with dropout" } else { "attention_dx" };
        let extents = self.attention_extents(qkv, by);
        self.call(layer, &extents, |device| device.attention_dx(dy, qkv, out, log_sum, by))
    }

    fn attention_after(
        &self,
        qkv: &D::Tensor,
        cache: &mut D::Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.device.attention_after(qkv, cache, past, by)
    }

    /// Recorded as the attention of as many queries, with slices as samples, and with as many keys
    /// as there are on average.
    fn attention_slice(
        &self,
        qkv: &D::Tensor,
        first: usize,
        by: &Attention<'_>,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let extents = self.slice_extents(qkv, first, by);
        self.call("attention", &extents, |device| device.attention_slice(qkv, first, by))
    }

    fn attention_slice_dx(
        &self,
        dy: &D::Tensor,
        qkv: &D::Tensor,
        mixed: (&D::Tensor, &D::Tensor),
        first: usize,
        by: &Attention<'_>,
    ) -> Result<D::Tensor> {
        let extents = self.slice_extents(qkv, first, by);
        self.call("attention_dx", &extents, |device| {
            device.attention_slice_dx(dy, qkv, mixed, first, by)
        })
    }
}

impl<D: Layers> Loss for Recorded<D> {
    fn cross_entropy(
        &self,
        logits: D::Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        let extents = self.matrix(&logits);
        self.call("cross_entropy", &extents, |device| device.cross_entropy(logits, targets, scale))
    }
}

impl<D: Layers> Layers for Recorded<D> {
    fn llama(&self) -> Option<&dyn LlamaLayers<D::Tensor>> {
        self.device.llama().map(|_| self as _)
    }
}

impl<D: Layers> LlamaLayers<D::Tensor> for Recorded<D> {
    fn rms_norm(
        &self,
        x: &D::Tensor,
        gain: &D::Tensor,
        epsilon: f64,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call("rms_norm", &self.matrix(x), |device| {
            llama_layers(device)?.rms_norm(x, gain, epsilon)
        })
    }

    fn rms_norm_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        gain: &D::Tensor,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        self.call("rms_norm_dx", &self.matrix(x), |device| {
            llama_layers(device)?.rms_norm_dx(dy, x, stats, gain, residual)
        })
    }

    fn rms_norm_dw(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        stats: &D::Tensor,
        d_gain: &mut D::Tensor,
    ) -> Result<()> {
        self.call("rms_norm_dw", &self.matrix(x), |device| {
            llama_layers(device)?.rms_norm_dw(dy, x, stats, d_gain)
        })
    }

    fn gated(&self, x: &D::Tensor, f: Activation) -> Result<D::Tensor> {
        self.call(gated(f)[0], &self.matrix(x), |device| llama_layers(device)?.gated(x, f))
    }

    fn gated_dx(
        &self,
        dy: &D::Tensor,
        x: &D::Tensor,
        f: Activation,
    ) -> Result<(D::Tensor, D::Tensor)> {
        self.call(gated(f)[1], &self.matrix(x), |device| llama_layers(device)?.gated_dx(dy, x, f))
    }

    fn rotary(&self, x: &D::Tensor, table: &D::Tensor, by: Rotary) -> Result<D::Tensor> {
        self.call("rotary", &self.matrix(x), |device| llama_layers(device)?.rotary(x, table, by))
    }
}

/// Names of a gated activation and of its gradient.
fn gated(f: Activation) -> [&'static str; 2] {
    match f {
        Activation::GeluTanh => ["gated gelu-tanh", "gated gelu-tanh_dx"],
        Activation::Gelu => ["gated gelu", "gated gelu_dx"],
        Activation::Tanh => ["gated tanh", "gated tanh_dx"],
        Activation::Silu => ["gated silu", "gated silu_dx"],
    }
}

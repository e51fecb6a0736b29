//! One pre-norm transformer block. Without dropout `mid = x + attention(norm(x))`, `y = mid + mlp(norm(mid))`.

use chimera_engine::device::Result;
use chimera_engine::layers::{Layers, Rotary, llama_layers};

use crate::model::adapted::{AdaptedLinear, AdapterDropout};
use crate::model::block::deferred::Deferred;
use crate::model::block::kept::{KeptBlock, tensors};
use crate::model::block::pass::{Pass, projections};
use crate::model::form::{DOWN, DecoderForm, LAYERS, OUT, QKV, UP};
use crate::model::operands::Norm;

/// The state of a micro-batch on its way through the blocks of a stage.
pub(super) struct Blocks<'b, D: Layers> {
    pub(super) pass: Pass<'b, D>,
    pub(super) form: &'b DecoderForm,
    /// Cosines and sines of each position, and the number of rotated heads: queries and keys.
    pub(super) rotary: Option<(&'b D::Tensor, usize)>,
    /// The scale of adapters, unless it is 1.
    pub(super) scale: Option<&'b D::Tensor>,
    pub(super) dropout: Option<AdapterDropout>,
}

tensors! {
    /// The saved activations. The output of the activation function is recomputed.
    pub(super) Saved { selected: Selected<T> } { stats_1, norm_1, stats_2, norm_2, up }
}

tensors! {
    /// The half of [`Saved`] from which the product into the MLP makes the other half: the results
    /// of attention, and the inputs of both halves of the block.
    pub(super) Selected {} {
        x,
        /// Queries and keys are rotated if positions are rotary.
        qkv,
        mixed, log_sum, mid
    }
}

impl<D: Layers> Blocks<'_, D> {
    /// Maps `x: [rows, hidden]` to the output of block `block`, of the same shape.
    pub(super) fn forward(
        &self,
        block: usize,
        w: &[D::Tensor],
        x: D::Tensor,
    ) -> Result<(D::Tensor, Saved<D::Tensor>)> {
        let Blocks { pass, form, .. } = self;
        let [norm_1, qkv, out, norm_2, up, down] = form.layers(w);
        let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));
        let add = |drop, layer, x: &_, w: &[_], to: &_| {
            let layer = self.layer(block, layer);
            pass.linear(drop, to, |residual| layer.forward(x, w, residual))
        };

        let (norm_1, stats_1) = form.norm.forward(device, &x, norm_1)?;
        let qkv = self.turned(self.layer(block, QKV).forward(&norm_1, qkv, None)?, false)?;
        let (mixed, log_sum) = pass.attention(block, &qkv)?;
        let mid = add(drop_attn, OUT, &mixed, out, &x)?;

        let (norm_2, stats_2) = form.norm.forward(device, &mid, norm_2)?;
        let up = self.layer(block, UP).forward(&norm_2, up, None)?;
        let y = add(drop_mlp, DOWN, &self.activation(&up)?, down, &mid)?;

        let selected = Selected { x, qkv, mixed, log_sum, mid };
        Ok((y, Saved { selected, stats_1, norm_1, stats_2, norm_2, up }))
    }

    /// Restores the saved activations of the forward pass, bit by bit.
    pub(super) fn restore(
        &self,
        block: usize,
        w: &[D::Tensor],
        kept: KeptBlock<Saved<D::Tensor>, Selected<D::Tensor>, D::Tensor>,
    ) -> Result<Saved<D::Tensor>> {
        let from_input = |x| Ok(self.forward(block, w, x)?.1);
        kept.restore(|dear| self.restore_dear(block, w, dear), from_input)
    }

    fn restore_dear(
        &self,
        block: usize,
        w: &[D::Tensor],
        selected: Selected<D::Tensor>,
    ) -> Result<Saved<D::Tensor>> {
        let (device, form) = (self.pass.device, self.form);
        let [norm_1, _, _, norm_2, up, _] = form.layers(w);
        let (norm_1, stats_1) = form.norm.forward(device, &selected.x, norm_1)?;
        let (norm_2, stats_2) = form.norm.forward(device, &selected.mid, norm_2)?;
        let up = self.layer(block, UP).forward(&norm_2, up, None)?;
        Ok(Saved { selected, stats_1, norm_1, stats_2, norm_2, up })
    }

    /// Computes the gradient of the input from that of the output.
    pub(super) fn backward_input(
        &self,
        block: usize,
        w: &[D::Tensor],
        saved: Saved<D::Tensor>,
        dy: D::Tensor,
    ) -> Result<(D::Tensor, Deferred<D::Tensor>)> {
        let Blocks { pass, form, .. } = self;
        let [norm_1_w, qkv_w, out_w, norm_2_w, up_w, down_w] = form.layers(w);
        let (device, [drop_attn, drop_mlp]) = (pass.device, projections(block));

        let Selected { x, qkv, mixed, log_sum, mid } = saved.selected;
        let d_mlp = pass.dropped(drop_mlp, &dy)?;
        let (d_activation, d_inner) = self.layer(block, DOWN).dx(&d_mlp, down_w)?;
        let (d_up, activation) = self.activation_dx(&d_activation, &saved.up)?;
        let down = self.layer(block, DOWN).operands(activation, d_mlp, d_inner, down_w)?;
        let (d_norm_2, d_inner) = self.layer(block, UP).dx(&d_up, up_w)?;
        let up = self.layer(block, UP).operands(saved.norm_2, d_up, d_inner, up_w)?;
        let norm_2 = Norm { dy: d_norm_2, x: mid, stats: saved.stats_2 };
        let d_mid = form.norm.dx(device, &norm_2, norm_2_w, Some(&dy))?;

        let d_attn = pass.dropped(drop_attn, &d_mid)?;
        let (d_mixed, d_inner) = self.layer(block, OUT).dx(&d_attn, out_w)?;
        let d_qkv = pass.attention_dx(block, &d_mixed, &qkv, &mixed, &log_sum)?;
        let out = self.layer(block, OUT).operands(mixed, d_attn, d_inner, out_w)?;
        let d_qkv = self.turned(d_qkv, true)?;
        let (d_norm_1, d_inner) = self.layer(block, QKV).dx(&d_qkv, qkv_w)?;
        let qkv = self.layer(block, QKV).operands(saved.norm_1, d_qkv, d_inner, qkv_w)?;
        let norm_1 = Norm { dy: d_norm_1, x, stats: saved.stats_1 };
        let dx = form.norm.dx(device, &norm_1, norm_1_w, Some(&d_mid))?;

        Ok((dx, Deferred { norm_1, qkv, out, norm_2, up, down }))
    }

    fn layer(&self, block: usize, layer: usize) -> AdaptedLinear<'_, D> {
        let dropout = self.dropout.map(|dropout| dropout.at(block * LAYERS + layer));
        self.form.linear(self.pass.device, layer, self.scale, dropout)
    }

    /// Rotates queries and keys by their positions, or their gradients back.
    fn turned(&self, qkv: D::Tensor, backward: bool) -> Result<D::Tensor> {
        let Some((table, heads)) = self.rotary else { return Ok(qkv) };
        llama_layers(self.pass.device)?.rotary(&qkv, table, Rotary { heads, backward })
    }

    fn activation(&self, up: &D::Tensor) -> Result<D::Tensor> {
        if self.form.is_gated {
            llama_layers(self.pass.device)?.gated(up, self.form.activation)
        } else {
            self.pass.device.activation(up, self.form.activation)
        }
    }

    /// Returns the gradient of the activation function's input, and its output again.
    fn activation_dx(&self, dy: &D::Tensor, up: &D::Tensor) -> Result<(D::Tensor, D::Tensor)> {
        if self.form.is_gated {
            llama_layers(self.pass.device)?.gated_dx(dy, up, self.form.activation)
        } else {
            self.pass.device.activation_dx(dy, up, self.form.activation)
        }
    }
}

pub(super) fn backward_weight<D: Layers>(
    device: &D,
    form: &DecoderForm,
    (block, dropout): (usize, Option<AdapterDropout>),
    deferred: Deferred<D::Tensor>,
    into: &mut [D::Tensor],
) -> Result<()> {
    let [norm_1, qkv, out, norm_2, up, down] = form.layers_mut(into);
    let add = |layer, operands, into: &mut [_]| {
        let dropout = dropout.map(|dropout| dropout.at(block * LAYERS + layer));
        form.linear(device, layer, None, dropout).add_dw(operands, into)
    };
    add(DOWN, deferred.down, down)?;
    add(UP, deferred.up, up)?;
    form.norm.add_dw(device, deferred.norm_2, norm_2)?;
    add(OUT, deferred.out, out)?;
    add(QKV, deferred.qkv, qkv)?;
    form.norm.add_dw(device, deferred.norm_1, norm_1)
}

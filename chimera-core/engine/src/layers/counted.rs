//! The memory that layers use on a GPU: results in f32 or bf16, cast operands, and scratch.

use super::{
    Activation, Attend, Attention, Dropout, Embed, Layers, Layout, Linear, LlamaLayers, Loss, Norm,
    Pointwise, Rotary,
};
use crate::device::counted::{WIDE, elements};
use crate::device::{Counted, Extents, Result};

/// Limits of the GPU backend: the most ranges and the fewest rows per range of a sum over columns
/// (`sums`), and the multiple to which columns of strided results are padded (`memory`).
const MOST_RANGES: usize = 16;
const LEAST_ROWS: usize = 64;
const PITCH: usize = 64;

impl Embed for Counted {
    fn embedding(&self, ids: &[u32], _: usize, tokens: &Extents, _: &Extents) -> Result<Extents> {
        let y = self.activation_of(&[ids.len(), tokens.width()]);
        let _wide = (tokens.element != WIDE).then(|| self.of(&tokens.shape, WIDE));
        let _ids = self.scratch(size_of_val(ids));
        Ok(y)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        _: usize,
        dy: &Extents,
        _: &mut Extents,
        _: &mut Extents,
    ) -> Result<()> {
        self.cast(dy);
        self.scratch(3 * size_of_val(ids));
        Ok(())
    }

    fn rotary_table(&self, frequencies: &[f64], _: f64, context: usize) -> Result<Extents> {
        Ok(self.of(&[context, 2 * frequencies.len()], WIDE))
    }
}

impl Linear for Counted {
    fn linear(
        &self,
        x: &Extents,
        w: &Extents,
        layout: Layout,
        bias: Option<&Extents>,
        residual: Option<&Extents>,
    ) -> Result<Extents> {
        let operands = [Some(x), Some(w), bias, residual];
        operands.into_iter().flatten().for_each(|operand| self.cast(operand));
        let (rows, outputs) = (x.shape[0], outputs(w, layout));
        let has_padding = layout == Layout::OutIn && self.activation != WIDE;
        let lies_apart = has_padding && residual.is_none() && outputs % 8 != 0;
        let pitch = if lies_apart { outputs.next_multiple_of(PITCH) } else { outputs };
        let mut y = self.activation_of(&[rows, pitch]);
        y.shape[1] = outputs;
        Ok(y)
    }

    fn linear_dx(&self, dy: &Extents, w: &Extents, layout: Layout) -> Result<Extents> {
        [dy, w].into_iter().for_each(|operand| self.cast(operand));
        let inputs = elements(&w.shape) as usize / outputs(w, layout).max(1);
        Ok(self.activation_of(&[dy.shape[0], inputs]))
    }

    fn linear_dw(
        &self,
        x: &Extents,
        dy: &Extents,
        _: Layout,
        _: &mut Extents,
        d_bias: Option<&mut Extents>,
    ) -> Result<()> {
        [x, dy].into_iter().for_each(|operand| self.cast(operand));
        d_bias.map(|_| sums(self, dy));
        Ok(())
    }
}

impl Norm for Counted {
    fn layer_norm(
        &self,
        x: &Extents,
        _: &Extents,
        _: &Extents,
        _: f64,
    ) -> Result<(Extents, Extents)> {
        self.cast(x);
        Ok((self.activation_of(&x.shape), self.of(&[x.shape[0], 2], WIDE)))
    }

    fn layer_norm_dx(
        &self,
        dy: &Extents,
        x: &Extents,
        _: &Extents,
        _: &Extents,
        residual: Option<&Extents>,
    ) -> Result<Extents> {
        [Some(dy), Some(x), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        Ok(self.activation_of(&x.shape))
    }

    fn layer_norm_dw(
        &self,
        dy: &Extents,
        x: &Extents,
        _: &Extents,
        _: &mut Extents,
        _: &mut Extents,
    ) -> Result<()> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        let _gains_and_biases = [(); 2].map(|()| sums(self, x));
        Ok(())
    }
}

impl Pointwise for Counted {
    fn activation(&self, x: &Extents, _: Activation) -> Result<Extents> {
        self.cast(x);
        Ok(self.activation_of(&x.shape))
    }

    fn activation_dx(
        &self,
        dy: &Extents,
        x: &Extents,
        _: Activation,
    ) -> Result<(Extents, Extents)> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        Ok((self.activation_of(&x.shape), self.activation_of(&x.shape)))
    }

    fn dropout(&self, x: &Extents, _: &Dropout, residual: Option<&Extents>) -> Result<Extents> {
        [Some(x), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        Ok(self.activation_of(&x.shape))
    }
}

impl Attend for Counted {
    fn attention(&self, qkv: &Extents, by: &Attention<'_>) -> Result<(Extents, Extents)> {
        let rows = qkv.shape[0];
        let mixed = self.activation_of(&[rows, by.hidden(qkv.width())]);
        Ok((mixed, self.of(&[rows, by.heads], WIDE)))
    }

    fn attention_dx(
        &self,
        dy: &Extents,
        qkv: &Extents,
        _: &Extents,
        log_sum: &Extents,
        _: &Attention<'_>,
    ) -> Result<Extents> {
        self.cast(dy);
        let _means = self.of(&log_sum.shape, WIDE);
        Ok(self.activation_of(&qkv.shape))
    }

    fn attention_slice(
        &self,
        qkv: &Extents,
        first: usize,
        by: &Attention<'_>,
    ) -> Result<(Extents, Extents)> {
        let rows = qkv.shape[0] / by.context * (by.context - first);
        let mixed = self.activation_of(&[rows, by.hidden(qkv.width())]);
        Ok((mixed, self.of(&[rows, by.heads], WIDE)))
    }

    fn attention_slice_dx(
        &self,
        dy: &Extents,
        qkv: &Extents,
        (mixed, log_sum): (&Extents, &Extents),
        _: usize,
        by: &Attention<'_>,
    ) -> Result<Extents> {
        self.attention_dx(dy, qkv, mixed, log_sum, by)
    }
}

impl Loss for Counted {
    fn cross_entropy(
        &self,
        logits: Extents,
        targets: &[u32],
        _: f64,
    ) -> Result<(Extents, Extents)> {
        let _targets_and_losses =
            self.scratch((size_of::<u32>() + size_of::<f64>()) * targets.len());
        Ok((self.of(&[1], WIDE), logits))
    }
}

impl Layers for Counted {
    fn llama(&self) -> Option<&dyn LlamaLayers<Extents>> {
        Some(self)
    }
}

impl LlamaLayers<Extents> for Counted {
    fn rms_norm(&self, x: &Extents, _: &Extents, _: f64) -> Result<(Extents, Extents)> {
        self.cast(x);
        Ok((self.activation_of(&x.shape), self.of(&[x.shape[0], 1], WIDE)))
    }

    fn rms_norm_dx(
        &self,
        dy: &Extents,
        x: &Extents,
        _: &Extents,
        _: &Extents,
        residual: Option<&Extents>,
    ) -> Result<Extents> {
        [Some(dy), Some(x), residual].into_iter().flatten().for_each(|operand| self.cast(operand));
        Ok(self.activation_of(&x.shape))
    }

    fn rms_norm_dw(&self, dy: &Extents, x: &Extents, _: &Extents, _: &mut Extents) -> Result<()> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        let _gains = sums(self, x);
        Ok(())
    }

    fn gated(&self, x: &Extents, _: Activation) -> Result<Extents> {
        self.cast(x);
        Ok(self.activation_of(&[x.shape[0], x.width() / 2]))
    }

    fn gated_dx(&self, dy: &Extents, x: &Extents, _: Activation) -> Result<(Extents, Extents)> {
        [dy, x].into_iter().for_each(|operand| self.cast(operand));
        Ok((self.activation_of(&x.shape), self.activation_of(&dy.shape)))
    }

    fn rotary(&self, x: &Extents, _: &Extents, _: Rotary) -> Result<Extents> {
        self.cast(x);
        Ok(self.activation_of(&x.shape))
    }
}

fn outputs(w: &Extents, layout: Layout) -> usize {
    match layout {
        Layout::InOut => w.width(),
        Layout::OutIn => w.shape[0],
    }
}

/// Scratch for sums over ranges of rows.
fn sums(device: &Counted, x: &Extents) -> Extents {
    let rows = x.shape[0];
    let range = rows.div_ceil(MOST_RANGES).next_multiple_of(LEAST_ROWS);
    device.of(&[rows.div_ceil(range.max(1)), x.width()], WIDE)
}

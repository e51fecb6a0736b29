//! Layers with faults.

use std::sync::atomic::Ordering;

use chimera_engine::device::Result;
use chimera_engine::device::reference::Reference;
use chimera_engine::layers::{
    Activation, Attend, Attention, Dropout, Embed, IGNORED, Layers, Layout, Linear, LlamaLayers,
    Loss, Mask, Norm, Pointwise, Rotary,
};

use super::{Fault, Faulty, Shared, read, share};

impl Embed for Faulty {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Shared,
        positions: &Shared,
    ) -> Result<Shared> {
        Reference.embedding(ids, context, &read(tokens), &read(positions)).map(share)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Shared,
        d_tokens: &mut Shared,
        d_positions: &mut Shared,
    ) -> Result<()> {
        self.add([d_tokens, d_positions], |[d_tokens, d_positions]| {
            Reference.embedding_dw(ids, context, &read(dy), d_tokens, d_positions)
        })
    }
}

impl Linear for Faulty {
    fn linear(
        &self,
        x: &Shared,
        w: &Shared,
        layout: Layout,
        bias: Option<&Shared>,
        residual: Option<&Shared>,
    ) -> Result<Shared> {
        // Wrong only if both are given.
        let forgotten = self.has(Fault::BiasForgotten) && residual.is_some();
        let bias = bias.filter(|_| !forgotten).map(read);
        let y = Reference.linear(
            &read(x),
            &read(w),
            layout,
            bias.as_ref(),
            residual.map(read).as_ref(),
        )?;
        Ok(match residual {
            Some(residual) if self.has(Fault::WritesResidual) => {
                *residual.lock().unwrap() = y;
                residual.clone()
            }
            _ => share(y),
        })
    }

    fn linear_dx(&self, dy: &Shared, w: &Shared, layout: Layout) -> Result<Shared> {
        let w = read(w);
        // With square matrices it passes unnoticed.
        let square = w.n_rows() == w.width();
        let layout = if self.has(Fault::LayoutIgnored) && square { Layout::InOut } else { layout };
        Reference.linear_dx(&read(dy), &w, layout).map(share)
    }

    fn linear_dw(
        &self,
        x: &Shared,
        dy: &Shared,
        layout: Layout,
        dw: &mut Shared,
        d_bias: Option<&mut Shared>,
    ) -> Result<()> {
        let (x, dy) = (read(x), read(dy));
        match d_bias {
            None => self.add([dw], |[dw]| Reference.linear_dw(&x, &dy, layout, dw, None)),
            Some(d_bias) => self.add([dw, d_bias], |[dw, d_bias]| {
                Reference.linear_dw(&x, &dy, layout, dw, Some(d_bias))
            }),
        }
    }
}

impl Norm for Faulty {
    fn layer_norm(
        &self,
        x: &Shared,
        gain: &Shared,
        bias: &Shared,
        epsilon: f64,
    ) -> Result<(Shared, Shared)> {
        let (x, gain, bias) = (read(x), read(gain), read(bias));
        let (mut y, mut stats) = Reference.layer_norm(&x, &gain, &bias, epsilon)?;
        if self.has(Fault::VarianceCancels) {
            for r in 0..x.n_rows() {
                let n = x.width() as f32;
                let sum: f32 = x.row(r).iter().map(|&x| x as f32).sum();
                let squares: f32 = x.row(r).iter().map(|&x| (x as f32).powi(2)).sum();
                let mean = sum / n;
                let variance = (squares / n - mean * mean).max(0.0);
                let scale = f64::from(1.0 / (variance + epsilon as f32).sqrt());
                let correction = scale / stats.row(r)[1];
                stats.row_mut(r)[1] = scale;
                for (y, bias) in y.row_mut(r).iter_mut().zip(&bias.data) {
                    *y = (*y - bias) * correction + bias;
                }
            }
        }
        Ok((share(y), share(stats)))
    }

    fn layer_norm_dx(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        gain: &Shared,
        residual: Option<&Shared>,
    ) -> Result<Shared> {
        let (dy, x, stats, gain) = (read(dy), read(x), read(stats), read(gain));
        let dx = Reference.layer_norm_dx(&dy, &x, &stats, &gain, residual.map(read).as_ref())?;
        Ok(match residual {
            Some(residual) if self.has(Fault::WritesResidual) => {
                *residual.lock().unwrap() = dx;
                residual.clone()
            }
            _ => share(dx),
        })
    }

    fn layer_norm_dw(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        d_gain: &mut Shared,
        d_bias: &mut Shared,
    ) -> Result<()> {
        self.add([d_gain, d_bias], |[d_gain, d_bias]| {
            Reference.layer_norm_dw(&read(dy), &read(x), &read(stats), d_gain, d_bias)
        })
    }
}

impl Pointwise for Faulty {
    fn activation(&self, x: &Shared, f: Activation) -> Result<Shared> {
        let mut y = Reference.activation(&read(x), self.function(f))?;
        if self.has(Fault::SecondCallDiffers) {
            // Differs in the last bit of f32, as after a sum in another order.
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            y.data.iter_mut().for_each(|y| *y *= 1.0 + 2e-7 * f64::from(calls % 2));
        }
        Ok(share(y))
    }

    fn activation_dx(&self, dy: &Shared, x: &Shared, f: Activation) -> Result<(Shared, Shared)> {
        let (mut dx, y) = Reference.activation_dx(&read(dy), &read(x), self.function(f))?;
        if self.has(Fault::WrongShape) {
            dx.shape = vec![dx.data.len()];
        }
        Ok((share(dx), share(y)))
    }

    fn dropout(&self, x: &Shared, by: &Dropout, residual: Option<&Shared>) -> Result<Shared> {
        let by = if self.has(Fault::CounterWraps) { self.wrapped(by) } else { *by };
        Reference.dropout(&read(x), &by, residual.map(read).as_ref()).map(share)
    }
}

impl Attend for Faulty {
    fn attention(&self, qkv: &Shared, by: &Attention<'_>) -> Result<(Shared, Shared)> {
        let qkv = read(qkv);
        // Treats all causal rows as one sample: they see those of the samples before.
        let mixed = self.has(Fault::SamplesMixed) && by.mask == Mask::Causal;
        let context = if mixed { qkv.n_rows() } else { by.context };
        let all = vec![context as u32; qkv.n_rows() / context];
        let by = Attention { context, ..self.seen(by, &all) };
        let (out, log_sum) = Reference.attention(&qkv, &by)?;
        Ok((share(out), share(log_sum)))
    }

    fn attention_dx(
        &self,
        dy: &Shared,
        qkv: &Shared,
        out: &Shared,
        log_sum: &Shared,
        by: &Attention<'_>,
    ) -> Result<Shared> {
        let (dy, qkv, out, log_sum) = (read(dy), read(qkv), read(out), read(log_sum));
        let all = vec![by.context as u32; qkv.n_rows() / by.context];
        let by = self.seen(by, &all);
        Reference.attention_dx(&dy, &qkv, &out, &log_sum, &by).map(share)
    }
}

impl Loss for Faulty {
    fn cross_entropy(
        &self,
        logits: Shared,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Shared, Shared)> {
        let logits = read(&logits);
        let counts =
            |target| if target == IGNORED && self.has(Fault::IgnoredCounts) { 0 } else { target };
        let targets: Vec<_> = targets.iter().copied().map(counts).collect();
        let overflow = logits.data.iter().any(|x| (*x as f32).exp().is_infinite());
        let (loss, mut gradient) = Reference.cross_entropy(logits, &targets, scale)?;
        if self.has(Fault::ExponentialOverflows) && overflow {
            gradient.data[0] = f64::NAN;
        }
        Ok((share(loss), share(gradient)))
    }
}

impl Layers for Faulty {
    fn llama(&self) -> Option<&dyn LlamaLayers<Shared>> {
        if self.has(Fault::LlamaAbsent) { None } else { Some(self) }
    }
}

impl LlamaLayers<Shared> for Faulty {
    fn rms_norm(&self, x: &Shared, gain: &Shared, epsilon: f64) -> Result<(Shared, Shared)> {
        let epsilon = if self.has(Fault::EpsilonForgotten) { 1e-6 } else { epsilon };
        let (y, stats) = Reference.rms_norm(&read(x), &read(gain), epsilon)?;
        Ok((share(y), share(stats)))
    }

    fn rms_norm_dx(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        gain: &Shared,
        residual: Option<&Shared>,
    ) -> Result<Shared> {
        let (dy, x, stats, gain) = (read(dy), read(x), read(stats), read(gain));
        let residual = residual.map(read);
        Reference.rms_norm_dx(&dy, &x, &stats, &gain, residual.as_ref()).map(share)
    }

    fn rms_norm_dw(
        &self,
        dy: &Shared,
        x: &Shared,
        stats: &Shared,
        d_gain: &mut Shared,
    ) -> Result<()> {
        self.add([d_gain], |[d_gain]| {
            Reference.rms_norm_dw(&read(dy), &read(x), &read(stats), d_gain)
        })
    }

    fn gated(&self, x: &Shared, f: Activation) -> Result<Shared> {
        Reference.gated(&read(x), self.function(f)).map(share)
    }

    fn gated_dx(&self, dy: &Shared, x: &Shared, f: Activation) -> Result<(Shared, Shared)> {
        let (dx, y) = Reference.gated_dx(&read(dy), &read(x), self.function(f))?;
        Ok((share(dx), share(y)))
    }

    fn rotary(&self, x: &Shared, table: &Shared, by: Rotary) -> Result<Shared> {
        let by = Rotary { backward: by.backward && !self.has(Fault::TurnsForward), ..by };
        Reference.rotary(&read(x), &read(table), by).map(share)
    }
}

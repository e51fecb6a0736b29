//! The slow, clear implementation of every layer for [`Reference`], one function per formula.

mod activation;
mod attention;

use super::{
    Activation, Attend, Attention, Dropout, Embed, IGNORED, Layers, Layout, Linear, LlamaLayers,
    Loss, Norm, Pointwise, Rotary,
};
use crate::device::Result;
use crate::device::reference::{Reference, Tensor, add, dot, log_sum_exp};

impl Embed for Reference {
    /// `y[r] = tokens[ids[r]] + positions[r mod context]`
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Tensor,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let mut y = Tensor::zeros(&[ids.len(), tokens.width()]);
        for (r, &id) in ids.iter().enumerate() {
            add(y.row_mut(r), 1.0, tokens.row(id as usize));
            add(y.row_mut(r), 1.0, positions.row(r % context));
        }
        Ok(y)
    }

    /// `d_tokens[ids[r]] += dy[r]`, `d_positions[r mod context] += dy[r]`
    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Tensor,
        d_tokens: &mut Tensor,
        d_positions: &mut Tensor,
    ) -> Result<()> {
        for (r, &id) in ids.iter().enumerate() {
            add(d_tokens.row_mut(id as usize), 1.0, dy.row(r));
            add(d_positions.row_mut(r % context), 1.0, dy.row(r));
        }
        Ok(())
    }
}

impl Linear for Reference {
    /// `y[r, o] = Σᵢ x[r, i] w[i, o] + bias[o] + residual[r, o]`
    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        layout: Layout,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let w = Matrix::of(w, layout);
        assert_eq!(x.width(), w.inputs, "linear");
        let mut y = Tensor::zeros(&[x.n_rows(), w.outputs]);
        for r in 0..x.n_rows() {
            let x = x.row(r);
            for o in 0..w.outputs {
                let product: f64 = (0..w.inputs).map(|i| x[i] * w.at(i, o)).sum();
                let bias = bias.map_or(0.0, |bias| bias.data[o]);
                let residual = residual.map_or(0.0, |residual| residual.row(r)[o]);
                y.row_mut(r)[o] = product + bias + residual;
            }
        }
        Ok(y)
    }

    /// `dx[r, i] = Σₒ dy[r, o] w[i, o]`
    fn linear_dx(&self, dy: &Tensor, w: &Tensor, layout: Layout) -> Result<Tensor> {
        let w = Matrix::of(w, layout);
        assert_eq!(dy.width(), w.outputs, "linear_dx");
        let mut dx = Tensor::zeros(&[dy.n_rows(), w.inputs]);
        for r in 0..dy.n_rows() {
            let dy = dy.row(r);
            for i in 0..w.inputs {
                dx.row_mut(r)[i] = (0..w.outputs).map(|o| dy[o] * w.at(i, o)).sum();
            }
        }
        Ok(dx)
    }

    /// `dw[i, o] += Σᵣ x[r, i] dy[r, o]`, `d_bias[o] += Σᵣ dy[r, o]`
    fn linear_dw(
        &self,
        x: &Tensor,
        dy: &Tensor,
        layout: Layout,
        dw: &mut Tensor,
        d_bias: Option<&mut Tensor>,
    ) -> Result<()> {
        assert_eq!(x.n_rows(), dy.n_rows(), "linear_dw");
        // x and dy swap roles where dw is transposed.
        let (down, across) = match layout {
            Layout::InOut => (x, dy),
            Layout::OutIn => (dy, x),
        };
        for r in 0..x.n_rows() {
            for i in 0..down.width() {
                add(dw.row_mut(i), down.row(r)[i], across.row(r));
            }
        }
        if let Some(d_bias) = d_bias {
            for r in 0..dy.n_rows() {
                add(&mut d_bias.data, 1.0, dy.row(r));
            }
        }
        Ok(())
    }
}

impl Norm for Reference {
    /// `y = (x - mean) / √(variance + epsilon) gain + bias`, with mean and variance over each row
    fn layer_norm(
        &self,
        x: &Tensor,
        gain: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<(Tensor, Tensor)> {
        let mut y = Tensor::zeros(&x.shape);
        let mut stats = Tensor::zeros(&[x.n_rows(), 2]);
        let n = x.width() as f64;
        for r in 0..x.n_rows() {
            let mean = x.row(r).iter().sum::<f64>() / n;
            let variance = x.row(r).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + epsilon).sqrt();
            for i in 0..x.width() {
                y.row_mut(r)[i] = (x.row(r)[i] - mean) * scale * gain.data[i] + bias.data[i];
            }
            stats.row_mut(r).copy_from_slice(&[mean, scale]);
        }
        Ok((y, stats))
    }

    /// With `x̂ = (x - mean) scale` and `d = dy gain`, each row's
    /// `dx = scale (d - mean(d) - x̂ mean(d x̂)) + residual`
    fn layer_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut dx = Tensor::zeros(&x.shape);
        let n = x.width() as f64;
        for r in 0..x.n_rows() {
            let normed = normed(x, stats, r);
            let d: Vec<f64> = (0..x.width()).map(|i| dy.row(r)[i] * gain.data[i]).collect();
            let mean_d = d.iter().sum::<f64>() / n;
            let mean_d_normed = dot(&d, &normed) / n;
            for i in 0..x.width() {
                let residual = residual.map_or(0.0, |residual| residual.row(r)[i]);
                let centred = d[i] - mean_d - normed[i] * mean_d_normed;
                dx.row_mut(r)[i] = stats.row(r)[1] * centred + residual;
            }
        }
        Ok(dx)
    }

    /// `d_gain += Σᵣ dy[r] x̂[r]`, `d_bias += Σᵣ dy[r]`
    fn layer_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
        d_bias: &mut Tensor,
    ) -> Result<()> {
        for r in 0..x.n_rows() {
            for (i, normed) in normed(x, stats, r).into_iter().enumerate() {
                d_gain.data[i] += dy.row(r)[i] * normed;
                d_bias.data[i] += dy.row(r)[i];
            }
        }
        Ok(())
    }
}

impl Pointwise for Reference {
    fn reciprocal_roots(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.map(|x| if x <= 0.0 { 0.0 } else { x.sqrt().recip() }))
    }

    fn activation(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        Ok(x.map(|x| activation::value(f, x)))
    }

    /// `dx = dy f'(x)`
    fn activation_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        let mut dx = x.map(|x| activation::slope(f, x));
        for (dx, dy) in dx.data.iter_mut().zip(&dy.data) {
            *dx *= dy;
        }
        Ok((dx, self.activation(x, f)?))
    }

    /// `y[i] = x[i] / (1 - rate) + residual[i]` where element `i` is kept, else `y[i] = residual[i]`
    fn dropout(&self, x: &Tensor, by: &Dropout, residual: Option<&Tensor>) -> Result<Tensor> {
        let mut y = residual.cloned().unwrap_or_else(|| Tensor::zeros(&x.shape));
        assert_eq!(y.shape, x.shape, "dropout");
        for (i, (y, x)) in y.data.iter_mut().zip(&x.data).enumerate() {
            if by.keeps(i as u64) {
                *y += x * by.scale();
            }
        }
        Ok(y)
    }
}

impl Attend for Reference {
    fn attention(&self, qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
        Ok(attention::forward(qkv, by))
    }

    fn attention_dx(
        &self,
        dy: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        log_sum: &Tensor,
        by: &Attention<'_>,
    ) -> Result<Tensor> {
        Ok(attention::backward(dy, qkv, out, log_sum, by))
    }
}

impl Loss for Reference {
    /// `loss = scale Σᵣ (log Σ_c exp logits[r, c] - logits[r, targets[r]])`,
    /// `gradient = scale (softmax(logits) - one_hot(targets))`, both 0 where the target is [`IGNORED`]
    fn cross_entropy(
        &self,
        logits: Tensor,
        targets: &[u32],
        scale: f64,
    ) -> Result<(Tensor, Tensor)> {
        assert_eq!(logits.n_rows(), targets.len(), "cross_entropy");
        let mut loss = 0.0;
        let mut gradient = Tensor::zeros(&logits.shape);
        let counted = targets.iter().enumerate().filter(|(_, target)| **target != IGNORED);
        for (r, &target) in counted {
            let sum = log_sum_exp(logits.row(r).iter().copied());
            loss += scale * (sum - logits.row(r)[target as usize]);
            for (gradient, logit) in gradient.row_mut(r).iter_mut().zip(logits.row(r)) {
                *gradient = scale * (logit - sum).exp();
            }
            gradient.row_mut(r)[target as usize] -= scale;
        }
        Ok((Tensor::new(&[1], vec![loss]), gradient))
    }
}

impl Layers for Reference {
    fn llama(&self) -> Option<&dyn LlamaLayers<Tensor>> {
        Some(self)
    }
}

impl LlamaLayers<Tensor> for Reference {
    /// `y = x scale gain`, with `scale = 1 / √(mean(x²) + epsilon)` over each row
    fn rms_norm(&self, x: &Tensor, gain: &Tensor, epsilon: f64) -> Result<(Tensor, Tensor)> {
        let mut y = Tensor::zeros(&x.shape);
        let mut stats = Tensor::zeros(&[x.n_rows(), 1]);
        for r in 0..x.n_rows() {
            let mean = dot(x.row(r), x.row(r)) / x.width() as f64;
            let scale = 1.0 / (mean + epsilon).sqrt();
            for i in 0..x.width() {
                y.row_mut(r)[i] = x.row(r)[i] * scale * gain.data[i];
            }
            stats.data[r] = scale;
        }
        Ok((y, stats))
    }

    /// With `x̂ = x scale` and `d = dy gain`, each row's `dx = scale (d - x̂ mean(d x̂)) + residual`
    fn rms_norm_dx(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        gain: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut dx = Tensor::zeros(&x.shape);
        for r in 0..x.n_rows() {
            let scale = stats.data[r];
            let normed: Vec<f64> = x.row(r).iter().map(|x| x * scale).collect();
            let d: Vec<f64> = (0..x.width()).map(|i| dy.row(r)[i] * gain.data[i]).collect();
            let mean = dot(&d, &normed) / x.width() as f64;
            for i in 0..x.width() {
                let residual = residual.map_or(0.0, |residual| residual.row(r)[i]);
                dx.row_mut(r)[i] = scale * (d[i] - normed[i] * mean) + residual;
            }
        }
        Ok(dx)
    }

    /// `d_gain += Σᵣ dy[r] x̂[r]`
    fn rms_norm_dw(
        &self,
        dy: &Tensor,
        x: &Tensor,
        stats: &Tensor,
        d_gain: &mut Tensor,
    ) -> Result<()> {
        for r in 0..x.n_rows() {
            for i in 0..x.width() {
                d_gain.data[i] += dy.row(r)[i] * x.row(r)[i] * stats.data[r];
            }
        }
        Ok(())
    }

    /// `y[r, i] = f(x[r, i]) x[r, n + i]`
    fn gated(&self, x: &Tensor, f: Activation) -> Result<Tensor> {
        let mut y = Tensor::zeros(&[x.n_rows(), x.width() / 2]);
        for r in 0..x.n_rows() {
            let (gate, up) = x.row(r).split_at(x.width() / 2);
            for (y, (gate, up)) in y.row_mut(r).iter_mut().zip(gate.iter().zip(up)) {
                *y = activation::value(f, *gate) * up;
            }
        }
        Ok(y)
    }

    /// `dx[r, i] = dy[r, i] f'(x[r, i]) x[r, n + i]` and `dx[r, n + i] = dy[r, i] f(x[r, i])`
    fn gated_dx(&self, dy: &Tensor, x: &Tensor, f: Activation) -> Result<(Tensor, Tensor)> {
        let mut dx = Tensor::zeros(&x.shape);
        let n = dy.width();
        for r in 0..x.n_rows() {
            for i in 0..n {
                let (gate, up, dy) = (x.row(r)[i], x.row(r)[n + i], dy.row(r)[i]);
                dx.row_mut(r)[i] = dy * activation::slope(f, gate) * up;
                dx.row_mut(r)[n + i] = dy * activation::value(f, gate);
            }
        }
        Ok((dx, self.gated(x, f)?))
    }

    /// `y[i] = cos[i] x[i] - sin[i] x[i + d/2]` and `y[i + d/2] = cos[i] x[i + d/2] + sin[i] x[i]`, for each head
    fn rotary(&self, x: &Tensor, table: &Tensor, by: Rotary) -> Result<Tensor> {
        let mut y = x.clone();
        let half = table.width() / 2;
        let sign = if by.backward { -1.0 } else { 1.0 };
        for r in 0..x.n_rows() {
            let (cos, sin) = table.row(r % table.n_rows()).split_at(half);
            for head in y.row_mut(r).chunks_exact_mut(2 * half).take(by.heads) {
                for i in 0..half {
                    let (a, b, sin) = (head[i], head[half + i], sign * sin[i]);
                    head[i] = cos[i] * a - sin * b;
                    head[half + i] = cos[i] * b + sin * a;
                }
            }
        }
        Ok(y)
    }
}

/// The weights of a linear layer in either layout.
struct Matrix<'a> {
    data: &'a [f64],
    layout: Layout,
    inputs: usize,
    outputs: usize,
}

impl<'a> Matrix<'a> {
    fn of(w: &'a Tensor, layout: Layout) -> Self {
        let (inputs, outputs) = match layout {
            Layout::InOut => (w.n_rows(), w.width()),
            Layout::OutIn => (w.width(), w.n_rows()),
        };
        Matrix { data: &w.data, layout, inputs, outputs }
    }

    fn at(&self, input: usize, output: usize) -> f64 {
        match self.layout {
            Layout::InOut => self.data[input * self.outputs + output],
            Layout::OutIn => self.data[output * self.inputs + input],
        }
    }
}

/// `x̂`, row `r` of `x` normalised by its statistics.
fn normed(x: &Tensor, stats: &Tensor, r: usize) -> Vec<f64> {
    let [mean, scale] = [stats.row(r)[0], stats.row(r)[1]];
    x.row(r).iter().map(|x| (x - mean) * scale).collect()
}

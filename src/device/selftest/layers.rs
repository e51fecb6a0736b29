//! The speed of matrix products and layers.

use std::time::Instant;

use chimera_core::device::{AdamW, Result, Updated};
use chimera_core::layers::{Activation, Attention, Layers, Layout};
use chimera_core::model::ModelConfig;

use super::size::Sizes;
use super::suite::Suite;
use crate::device::Compute;

pub(super) struct LayerSpeeds<'s>(pub(super) &'s mut Suite);

impl Compute for LayerSpeeds<'_> {
    type Output = ();

    fn on<K: Layers>(self, by_rank: &[K]) {
        if let Err(e) = layers(self.0, &by_rank[0]) {
            self.0.fail("layers", &e);
        }
    }
}

fn layers<K: Layers>(suite: &mut Suite, k: &K) -> Result<()> {
    let Sizes { model, micro_batch_size, square, least, .. } = suite.size.sizes();
    let mut times = LayerTimes { suite, k, least, rows: model.context * micro_batch_size };
    times.best(square)?;
    let one = times.activation(model.hidden)?;
    let wide = times.activation(4 * model.hidden)?;
    times.linear(&one, &wide, model.hidden)?;
    times.attention(&one, &model)?;
    times.pointwise(&one, &wide, model.hidden)?;
    // GPT-2's own vocabulary is just as odd.
    for vocab in [model.vocab, model.vocab - 47] {
        times.head(&one, [vocab, model.hidden])?;
    }
    times.adamw([model.vocab, model.hidden])
}

/// Times layers on a device, on a micro-batch of `rows` tokens.
struct LayerTimes<'s, K> {
    suite: &'s mut Suite,
    k: &'s K,
    /// Shortest time of one measurement, in seconds.
    least: f64,
    rows: usize,
}

impl<K: Layers> LayerTimes<'_, K> {
    fn some(&self, shape: &[usize]) -> Result<K::Tensor> {
        let values =
            (0..shape.iter().product::<usize>()).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5);
        self.k.upload_vec(shape, values.collect())
    }

    /// Makes an activation, in the precision of the device.
    fn activation(&self, features: usize) -> Result<K::Tensor> {
        self.k.activation(&self.some(&[self.rows, features])?, Activation::Tanh)
    }

    /// Measures the TFLOP/s of a call with this many FLOPs.
    fn speed<F>(&mut self, what: &str, flops: f64, call: F) -> Result<()>
    where
        F: FnMut() -> Result<K::Tensor>,
    {
        let seconds = time(self.k, self.least, call)?;
        self.suite.measure(what, flops / seconds * 1e-12, "TFLOP/s");
        Ok(())
    }

    /// Measures the milliseconds of a call.
    fn took<F>(&mut self, what: &str, call: F) -> Result<()>
    where
        F: FnMut() -> Result<K::Tensor>,
    {
        let seconds = time(self.k, self.least, call)?;
        self.suite.measure(what, seconds * 1e3, "ms");
        Ok(())
    }

    /// Measures the best that the device can do: a copy, read and written, and a product that reads
    /// little.
    fn best(&mut self, square: usize) -> Result<()> {
        let k = self.k;
        let large = self.some(&[square, square])?;
        let seconds = time(k, self.least, || k.join(&[&large, &large]))?;
        self.suite.measure("copy", 16.0 * (square * square) as f64 / seconds * 1e-9, "GB/s");
        let x = k.activation(&large, Activation::Tanh)?;
        let linear = || k.linear(&x, &large, Layout::InOut, None, None);
        self.speed(&format!("product of {square} cubed"), 2.0 * (square as f64).powi(3), linear)
    }

    fn linear(&mut self, one: &K::Tensor, wide: &K::Tensor, hidden: usize) -> Result<()> {
        let (k, rows, n_out) = (self.k, self.rows, 4 * hidden);
        let (w, bias) = (self.some(&[hidden, n_out])?, self.some(&[n_out])?);
        let mut dw = k.zeros(&[hidden, n_out])?;
        let product = 2.0 * (rows * hidden * n_out) as f64;
        let shape = format!("{rows} x {hidden} x {n_out}");
        let linear = || k.linear(one, &w, Layout::InOut, None, None);
        self.speed(&format!("linear {shape}"), product, linear)?;
        let whole = || k.linear(one, &w, Layout::InOut, Some(&bias), Some(wide));
        self.speed(&format!("linear with bias, residual {shape}"), product, whole)?;
        let dx = || k.linear_dx(wide, &w, Layout::InOut);
        self.speed(&format!("linear_dx {shape}"), product, dx)?;
        self.speed(&format!("linear_dw {shape}"), product, || {
            k.linear_dw(one, wide, Layout::InOut, &mut dw, None)?;
            Ok(dw.clone())
        })
    }

    fn attention(&mut self, one: &K::Tensor, model: &ModelConfig) -> Result<()> {
        let (k, &ModelConfig { hidden, heads, context, .. }) = (self.k, model);
        let qkv = self.activation(3 * hidden)?;
        for heads in [heads, heads / 2] {
            let causal = Attention::causal(heads, context);
            let (out, log_sum) = k.attention(&qkv, &causal)?;
            // Half of all pairs attend to each other: two products in the forward pass, five in the
            // backward pass.
            let pairs = 2.0 * (self.rows * context / 2 * hidden) as f64;
            let size = hidden / heads;
            let forward = || Ok(k.attention(&qkv, &causal)?.0);
            self.speed(&format!("attention, heads of {size}"), 2.0 * pairs, forward)?;
            let backward = || k.attention_dx(one, &qkv, &out, &log_sum, &causal);
            self.speed(&format!("attention_dx, heads of {size}"), 5.0 * pairs, backward)?;
        }
        Ok(())
    }

    fn pointwise(&mut self, one: &K::Tensor, wide: &K::Tensor, hidden: usize) -> Result<()> {
        let (k, gain) = (self.k, self.some(&[hidden])?);
        let (_, stats) = k.layer_norm(one, &gain, &gain, 1e-5)?;
        let (mut d_gain, mut d_bias) = (k.zeros(&[hidden])?, k.zeros(&[hidden])?);
        self.took("layer_norm", || Ok(k.layer_norm(one, &gain, &gain, 1e-5)?.0))?;
        self.took("layer_norm_dx", || k.layer_norm_dx(one, one, &stats, &gain, Some(one)))?;
        self.took("layer_norm_dw", || {
            k.layer_norm_dw(one, one, &stats, &mut d_gain, &mut d_bias)?;
            Ok(d_gain.clone())
        })?;
        self.took("gelu", || k.activation(wide, Activation::GeluTanh))?;
        self.took("gelu_dx", || Ok(k.activation_dx(wide, wide, Activation::GeluTanh)?.0))
    }

    fn head(&mut self, one: &K::Tensor, shape: [usize; 2]) -> Result<()> {
        let (k, n, targets) = (self.k, shape[0], vec![1; self.rows]);
        let (head, mut d_head) = (self.some(&shape)?, k.zeros(&shape)?);
        let logits = || k.linear(one, &head, Layout::OutIn, None, None);
        self.took(&format!("logits, {n} classes"), logits)?;
        let loss = || Ok(k.cross_entropy(logits()?, &targets, 1.0)?.0);
        self.took(&format!("logits and cross_entropy, {n} classes"), loss)?;
        let (_, dy) = k.cross_entropy(logits()?, &targets, 1.0)?;
        let dx = || k.linear_dx(&dy, &head, Layout::OutIn);
        self.took(&format!("logits_dx, {n} classes"), dx)?;
        self.took(&format!("logits_dw, {n} classes"), || {
            k.linear_dw(one, &dy, Layout::OutIn, &mut d_head, None)?;
            Ok(d_head.clone())
        })
    }

    fn adamw(&mut self, shape: [usize; 2]) -> Result<()> {
        let k = self.k;
        let (mut weights, gradient) = (self.some(&shape)?, self.some(&shape)?);
        let (mut m, mut v) = (k.zeros(&shape)?, k.zeros(&shape)?);
        let (lr, beta1, beta2, eps, weight_decay) = (1e-4, 0.9, 0.95, 1e-8, 0.1);
        let by = AdamW { lr, beta1, beta2, eps, weight_decay, update: 1, grad_scale: 1.0 };
        let seconds = time(k, self.least, || {
            let all = Updated { w: &mut weights, g: &gradient, m: &mut m, v: &mut v };
            k.adamw(&mut [all], &by)?;
            Ok(weights.clone())
        })?;
        // Four tensors are read and three written.
        let bytes = 7.0 * 4.0 * (shape[0] * shape[1]) as f64;
        self.suite.measure("adamw", bytes / seconds * 1e-9, "GB/s");
        Ok(())
    }
}

/// Returns the seconds of one call, averaged over enough calls to take a while.
fn time<K: Layers>(k: &K, least: f64, mut call: impl FnMut() -> Result<K::Tensor>) -> Result<f64> {
    let finish = |last: K::Tensor| k.download(&k.rows(&last, 0, 1)?); // waits for all before it
    finish(call()?)?;
    let mut n = 1;
    loop {
        let start = Instant::now();
        for _ in 1..n {
            call()?;
        }
        finish(call()?)?;
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= least {
            return Ok(seconds / f64::from(n));
        }
        n *= 2;
    }
}

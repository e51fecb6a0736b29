//! The speed of matrix products and layers.

use std::time::Instant;

use chimera_core::device::{AdamW, Updated};
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

fn layers<K: Layers>(suite: &mut Suite, k: &K) -> chimera_core::device::Result<()> {
    let Sizes { model, micro_batch_size, square, least, .. } = suite.size.sizes();
    let ModelConfig { hidden, heads, context, vocab, .. } = model;
    let rows = context * micro_batch_size;
    let n = |shape: &[usize]| shape.iter().product::<usize>();
    let some = |shape: &[usize]| {
        let values = (0..n(shape)).map(|i| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5);
        k.upload(shape, &values.collect::<Vec<_>>())
    };
    // The best that the device can do: a copy, read and written, and a product that reads little.
    let large = some(&[square, square])?;
    let seconds = time(k, least, || k.join(&[&large, &large]))?;
    suite.measure("copy", 16.0 * n(&[square, square]) as f64 / seconds * 1e-9, "GB/s");
    let x = k.activation(&large, Activation::Tanh)?;
    let seconds = time(k, least, || k.linear(&x, &large, Layout::InOut, None, None))?;
    let product = 2.0 * (square as f64).powi(3);
    suite.measure(&format!("product of {square} cubed"), product / seconds * 1e-12, "TFLOP/s");
    drop((large, x));

    // Activations in the precision of the device.
    let one = k.activation(&some(&[rows, hidden])?, Activation::Tanh)?;
    let wide = k.activation(&some(&[rows, 4 * hidden])?, Activation::Tanh)?;
    let qkv = k.activation(&some(&[rows, 3 * hidden])?, Activation::Tanh)?;
    let w = some(&[hidden, 4 * hidden])?;
    let mut dw = k.zeros(&[hidden, 4 * hidden])?;
    let (gain, bias) = (some(&[hidden])?, some(&[4 * hidden])?);

    let product = 2.0 * (rows * hidden * 4 * hidden) as f64;
    let shape = format!("{rows} x {hidden} x {}", 4 * hidden);
    let seconds = time(k, least, || k.linear(&one, &w, Layout::InOut, None, None))?;
    suite.measure(&format!("linear {shape}"), product / seconds * 1e-12, "TFLOP/s");
    let seconds = time(k, least, || k.linear(&one, &w, Layout::InOut, Some(&bias), Some(&wide)))?;
    suite.measure(
        &format!("linear with bias, residual {shape}"),
        product / seconds * 1e-12,
        "TFLOP/s",
    );
    let seconds = time(k, least, || k.linear_dx(&wide, &w, Layout::InOut))?;
    suite.measure(&format!("linear_dx {shape}"), product / seconds * 1e-12, "TFLOP/s");
    let seconds = time(k, least, || {
        k.linear_dw(&one, &wide, Layout::InOut, &mut dw, None)?;
        Ok(dw.clone())
    })?;
    suite.measure(&format!("linear_dw {shape}"), product / seconds * 1e-12, "TFLOP/s");

    for heads in [heads, heads / 2] {
        let causal = Attention::causal(heads, context);
        let (out, log_sum) = k.attention(&qkv, &causal)?;
        // Half of all pairs attend to each other: two products in the forward pass, five in the
        // backward pass.
        let pairs = 2.0 * (rows * context / 2 * hidden) as f64;
        let mut measure = |what: &str, products: f64, seconds: f64| {
            let what = format!("{what}, heads of {}", hidden / heads);
            suite.measure(&what, products * pairs / seconds * 1e-12, "TFLOP/s");
        };
        measure("attention", 2.0, time(k, least, || Ok(k.attention(&qkv, &causal)?.0))?);
        let backward = || k.attention_dx(&one, &qkv, &out, &log_sum, &causal);
        measure("attention_dx", 5.0, time(k, least, backward)?);
    }

    let (_, stats) = k.layer_norm(&one, &gain, &gain, 1e-5)?;
    let (mut d_gain, mut d_bias) = (k.zeros(&[hidden])?, k.zeros(&[hidden])?);
    let seconds = time(k, least, || Ok(k.layer_norm(&one, &gain, &gain, 1e-5)?.0))?;
    suite.measure("layer_norm", seconds * 1e3, "ms");
    let seconds = time(k, least, || k.layer_norm_dx(&one, &one, &stats, &gain, Some(&one)))?;
    suite.measure("layer_norm_dx", seconds * 1e3, "ms");
    let seconds = time(k, least, || {
        k.layer_norm_dw(&one, &one, &stats, &mut d_gain, &mut d_bias)?;
        Ok(d_gain.clone())
    })?;
    suite.measure("layer_norm_dw", seconds * 1e3, "ms");
    let seconds = time(k, least, || k.activation(&wide, Activation::GeluTanh))?;
    suite.measure("gelu", seconds * 1e3, "ms");
    let seconds = time(k, least, || Ok(k.activation_dx(&wide, &wide, Activation::GeluTanh)?.0))?;
    suite.measure("gelu_dx", seconds * 1e3, "ms");

    // GPT-2's own vocabulary is just as odd.
    for vocab in [vocab, vocab - 47] {
        let (head, mut d_head) = (some(&[vocab, hidden])?, k.zeros(&[vocab, hidden])?);
        let targets = vec![1; rows];
        let mut measure = |what: &str, seconds: f64| {
            suite.measure(&format!("{what}, {vocab} classes"), seconds * 1e3, "ms");
        };
        let logits = || k.linear(&one, &head, Layout::OutIn, None, None);
        measure("logits", time(k, least, logits)?);
        let loss = || Ok(k.cross_entropy(logits()?, &targets, 1.0)?.0);
        measure("logits and cross_entropy", time(k, least, loss)?);
        let (_, dy) = k.cross_entropy(logits()?, &targets, 1.0)?;
        measure("logits_dx", time(k, least, || k.linear_dx(&dy, &head, Layout::OutIn))?);
        let seconds = time(k, least, || {
            k.linear_dw(&one, &dy, Layout::OutIn, &mut d_head, None)?;
            Ok(d_head.clone())
        })?;
        measure("logits_dw", seconds);
    }

    let (mut weights, gradient) = (some(&[vocab, hidden])?, some(&[vocab, hidden])?);
    let (mut m, mut v) = (k.zeros(&[vocab, hidden])?, k.zeros(&[vocab, hidden])?);
    let by = AdamW {
        lr: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        update: 1,
        grad_scale: 1.0,
    };
    let seconds = time(k, least, || {
        let all = Updated { w: &mut weights, g: &gradient, m: &mut m, v: &mut v };
        k.adamw(&mut [all], &by)?;
        Ok(weights.clone())
    })?;
    // Four tensors are read and three written.
    let bytes = 7.0 * 4.0 * (vocab * hidden) as f64;
    suite.measure("adamw", bytes / seconds * 1e-9, "GB/s");
    Ok(())
}

/// Returns the seconds of one call, averaged over enough calls to take a while.
fn time<K: Layers>(
    k: &K,
    least: f64,
    mut call: impl FnMut() -> chimera_core::device::Result<K::Tensor>,
) -> chimera_core::device::Result<f64> {
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

//! Prints the time of each layer on the processor, and compares a whole transformer layer with the
//! time of only its matrix products.
//!
//! `cargo run --release -p chimera-backend-cpu --example layers -- [threads]`

#[cfg(target_os = "linux")]
mod allocator;

use std::cell::RefCell;
use std::time::Instant;

use candle_core::Tensor;
use chimera_backend_cpu::{Candle, measured_peak};
use chimera_core::device::{AdamW, Device, Result, Updated};
use chimera_core::layers::{
    Activation, Attend, Attention, Dropout, Embed, Layout, Linear, LlamaLayers, Loss, Norm,
    Pointwise,
};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |n| n.parse())?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let peak = measured_peak();
    println!("{threads} threads; one reaches {:.1} Gflop/s at best", peak / 1e9);
    for size in [TINY, SMALL, GPT2_124M] {
        pool.install(|| report(&size, peak))?;
    }
    Ok(())
}

struct Size {
    name: &'static str,
    samples: usize,
    context: usize,
    hidden: usize,
    heads: usize,
    vocab: usize,
}

const TINY: Size =
    Size { name: "tiny", samples: 4, context: 128, hidden: 128, heads: 4, vocab: 256 };

const SMALL: Size =
    Size { name: "small", samples: 4, context: 256, hidden: 256, heads: 8, vocab: 256 };

const GPT2_124M: Size =
    Size { name: "gpt2-124m", samples: 1, context: 1024, hidden: 768, heads: 12, vocab: 50257 };

/// `peak` is that of one thread.
fn report(size: &Size, peak: f64) -> Result<()> {
    let k = Candle::cpu();
    let rows = size.samples * size.context;
    let (hidden, heads, context) = (size.hidden, size.heads, size.context);
    println!("\n{}: {rows} rows of {hidden}, {heads} heads", size.name);
    let tensor = |rows: usize, columns: usize| random(&k, rows, columns);

    let mut layer_s = 0.0;
    let mut flops = 0.0;
    let shapes = [
        ("qkv", hidden, 3 * hidden),
        ("projection", hidden, hidden),
        ("up", hidden, 4 * hidden),
        ("down", 4 * hidden, hidden),
    ];
    for (name, inputs, outputs) in shapes {
        let work = 2.0 * (rows * inputs * outputs) as f64;
        flops += 3.0 * work;
        let (x, dy, w) = (tensor(rows, inputs)?, tensor(rows, outputs)?, tensor(inputs, outputs)?);
        let bias = k.zeros(&[outputs])?;
        let residual = (outputs == hidden).then_some(&dy);
        let dw = RefCell::new(k.zeros(&[inputs, outputs])?);
        let d_bias = RefCell::new(k.zeros(&[outputs])?);
        let at = Layout::InOut;
        layer_s += gflops(&format!("linear {name}"), work, || {
            k.linear(&x, &w, at, Some(&bias), residual).map(drop)
        })?;
        layer_s +=
            gflops(&format!("linear_dx {name}"), work, || k.linear_dx(&dy, &w, at).map(drop))?;
        layer_s += gflops(&format!("linear_dw {name}"), work, || {
            let d_bias = &mut *d_bias.borrow_mut();
            k.linear_dw(&x, &dy, at, &mut dw.borrow_mut(), Some(d_bias))
        })?;
    }

    let qkv = tensor(rows, 3 * hidden)?;
    let dy = tensor(rows, hidden)?;
    let causal = Attention::causal(heads, context);
    let (out, log_sum) = k.attention(&qkv, &causal)?;
    // Half of the scores are forbidden; 2 products forward, 5 backward.
    let product = (rows * context * hidden) as f64;
    flops += 7.0 * product;
    layer_s += gflops("attention", 2.0 * product, || k.attention(&qkv, &causal).map(drop))?;
    layer_s += gflops("attention_dx", 5.0 * product, || {
        k.attention_dx(&dy, &qkv, &out, &log_sum, &causal).map(drop)
    })?;

    let x = tensor(rows, hidden)?;
    let vector = || k.upload(&[hidden], &vec![1.0; hidden]);
    let (gain, bias) = (vector()?, vector()?);
    let (_, stats) = k.layer_norm(&x, &gain, &bias, 1e-5)?;
    let (d_gain, d_bias) = (RefCell::new(vector()?), RefCell::new(vector()?));
    let n = rows * hidden;
    layer_s +=
        2.0 * gbytes("layer_norm", 2 * n, || k.layer_norm(&x, &gain, &bias, 1e-5).map(drop))?;
    layer_s += 2.0
        * gbytes("layer_norm_dx", 4 * n, || {
            k.layer_norm_dx(&dy, &x, &stats, &gain, Some(&dy)).map(drop)
        })?;
    layer_s += 2.0
        * gbytes("layer_norm_dw", 2 * n, || {
            let (d_gain, d_bias) = (&mut *d_gain.borrow_mut(), &mut *d_bias.borrow_mut());
            k.layer_norm_dw(&dy, &x, &stats, d_gain, d_bias)
        })?;
    let (_, stats) = k.rms_norm(&x, &gain, 1e-5)?;
    gbytes("rms_norm", 2 * n, || k.rms_norm(&x, &gain, 1e-5).map(drop))?;
    gbytes("rms_norm_dx", 4 * n, || k.rms_norm_dx(&dy, &x, &stats, &gain, Some(&dy)).map(drop))?;
    gbytes("rms_norm_dw", 2 * n, || k.rms_norm_dw(&dy, &x, &stats, &mut d_gain.borrow_mut()))?;
    let by = Dropout::new(0.1, 0, 0, 0, 0);
    gbytes("dropout", 3 * n, || k.dropout(&x, &by, Some(&dy)).map(drop))?;
    let (x, dy) = (tensor(rows, 4 * hidden)?, tensor(rows, 4 * hidden)?);
    layer_s += gbytes("gelu", 8 * n, || k.activation(&x, Activation::GeluTanh).map(drop))?;
    layer_s +=
        gbytes("gelu_dx", 16 * n, || k.activation_dx(&dy, &x, Activation::GeluTanh).map(drop))?;
    let d_gated = tensor(rows, 2 * hidden)?;
    gbytes("gated", 6 * n, || k.gated(&x, Activation::Silu).map(drop))?;
    gbytes("gated_dx", 12 * n, || k.gated_dx(&d_gated, &x, Activation::Silu).map(drop))?;

    let pure_s = flops / (peak * rayon::current_num_threads() as f64);
    println!(
        "  one layer, forward and backward: {:.2} ms; its products alone at {:.1} Gflop/s per thread: \
         {:.2} ms; ratio {:.2}; {:.0} Gflop/s",
        layer_s * 1e3,
        peak / 1e9,
        pure_s * 1e3,
        layer_s / pure_s,
        flops / layer_s / 1e9,
    );
    others(&k, size)
}

/// Measures kernels that are not part of a layer.
fn others(k: &Candle, size: &Size) -> Result<()> {
    let rows = size.samples * size.context;
    let (hidden, vocab, context) = (size.hidden, size.vocab, size.context);
    let n = rows * hidden;
    let ids: Vec<u32> = (0..rows).map(|row| (row * 7919 % vocab) as u32).collect();
    let (tokens, positions) = (random(k, vocab, hidden)?, random(k, context, hidden)?);
    let x = random(k, rows, hidden)?;
    let d_tokens = RefCell::new(random(k, vocab, hidden)?);
    let d_positions = RefCell::new(random(k, context, hidden)?);
    gbytes("embedding", 3 * n, || k.embedding(&ids, context, &tokens, &positions).map(drop))?;
    gbytes("embedding_dw", 5 * n, || {
        let d_positions = &mut *d_positions.borrow_mut();
        k.embedding_dw(&ids, context, &x, &mut d_tokens.borrow_mut(), d_positions)
    })?;
    let logits = RefCell::new(Some(random(k, rows, vocab)?));
    gbytes("cross_entropy", 2 * rows * vocab, || {
        let Some(taken) = logits.take() else {
            return Ok(());
        };
        let (_, grad) = k.cross_entropy(taken, &ids, 1e-3)?;
        logits.replace(Some(grad));
        Ok(())
    })?;
    let n = 12 * hidden * hidden;
    let weights = || random(k, 12 * hidden, hidden);
    let g = weights()?;
    let [w, m, v] = [weights()?, weights()?, k.zeros(&[12 * hidden, hidden])?].map(RefCell::new);
    let by = AdamW {
        lr: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        update: 10,
        grad_scale: 1.0,
    };
    gbytes("adamw", 7 * n, || {
        let (m, v) = (&mut *m.borrow_mut(), &mut *v.borrow_mut());
        k.adamw(&mut [Updated { w: &mut w.borrow_mut(), g: &g, m, v }], &by)
    })?;
    gbytes("accumulate", 3 * n, || k.accumulate(&mut w.borrow_mut(), &g))?;
    gbytes("squared_norms", n, || k.squared_norms(&[&g]).map(drop))?;
    Ok(())
}

fn gflops(name: &str, flops: f64, f: impl Fn() -> Result<()>) -> Result<f64> {
    let s = median_s(f)?;
    println!("  {name:22} {:9.1} us  {:6.1} Gflop/s", s * 1e6, flops / s / 1e9);
    Ok(s)
}

/// `moved` counts the f32 values read and written.
fn gbytes(name: &str, moved: usize, f: impl Fn() -> Result<()>) -> Result<f64> {
    let s = median_s(f)?;
    println!("  {name:22} {:9.1} us  {:6.1} GB/s", s * 1e6, 4.0 * moved as f64 / s / 1e9);
    Ok(s)
}

/// The median duration of as many calls as fit a fifth of a second.
fn median_s(f: impl Fn() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 10 || begin.elapsed().as_secs_f64() < 0.2 {
        let start = Instant::now();
        f()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Values between -1 and 1.
fn random(k: &Candle, rows: usize, columns: usize) -> Result<Tensor> {
    let data: Vec<f32> = (0..rows * columns)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761) as i32 as f32 / i32::MAX as f32)
        .collect();
    k.upload(&[rows, columns], &data)
}

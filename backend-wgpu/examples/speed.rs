//! Measures how fast an adapter multiplies matrices and trains an MLP: `speed [ADAPTER]`.

use std::time::Instant;

use chimera_backend_wgpu::{Options, Tensor, Wgpu, adapters};
use chimera_core::device::{Device, Result, Sgd, WithMomentum};
use chimera_core::layers::{Activation, Layout, Linear, Pointwise};

/// Number of runs, of which the fastest counts.
const REPETITIONS: usize = 5;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let number: usize = std::env::args().nth(1).map_or(Ok(0), |number| number.parse())?;
    let adapters = adapters();
    let adapter = adapters.get(number).ok_or("there is no such adapter")?;
    println!("{adapter}");
    for product in adapter.products() {
        let k = adapter.open(Options { product: Some(product.into()), ..Options::default() })?;
        println!("products by {product}:");
        for size in [256, 512, 1024] {
            let speed = 2.0 * (size as f64).powi(3) / multiply(&k, size)? / 1e9;
            println!("  matrix product {size} x {size}: {speed:.1} GFLOP/s");
        }
        println!("  step of an MLP 512 x (512, 2048, 512): {:.0} ms", 1e3 * mlp(&k)?);
    }
    Ok(())
}

fn matrix(k: &Wgpu, shape: [usize; 2]) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    k.upload(&shape, &(0..n).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect::<Vec<_>>())
}

/// Returns the seconds of the fastest run of `work`, waiting for its result.
fn best(k: &Wgpu, mut work: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..=REPETITIONS {
        let start = Instant::now();
        let done = work()?;
        k.download(&k.rows(&done, 0, 1)?)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn multiply(k: &Wgpu, size: usize) -> Result<f64> {
    let (a, b) = (matrix(k, [size, size])?, matrix(k, [size, size])?);
    best(k, || k.linear(&a, &b, Layout::InOut, None, None))
}

/// Times a step on half the sum of squares of the output: gradients, including the input's, and an
/// update.
fn mlp(k: &Wgpu) -> Result<f64> {
    let shapes = [[512, 2048], [2048, 512]];
    let x = matrix(k, [512, 512])?;
    let (mut up, mut down) = (matrix(k, shapes[0])?, matrix(k, shapes[1])?);
    let [m_up, m_down] = shapes.map(|shape| k.zeros(&shape));
    let (mut m_up, mut m_down) = (m_up?, m_down?);
    let by = Sgd { lr: 1e-6, momentum: 0.0, weight_decay: 0.0, grad_scale: 1.0 };
    let f = Activation::Gelu;
    best(k, || {
        let [d_up, d_down] = shapes.map(|shape| k.zeros(&shape));
        let (mut d_up, mut d_down) = (d_up?, d_down?);
        let inner = k.linear(&x, &up, Layout::InOut, None, None)?;
        let active = k.activation(&inner, f)?;
        let y = k.linear(&active, &down, Layout::InOut, None, None)?; // and its own gradient
        let d_active = k.linear_dx(&y, &down, Layout::InOut)?;
        k.linear_dw(&active, &y, Layout::InOut, &mut d_down, None)?;
        let (d_inner, _) = k.activation_dx(&d_active, &inner, f)?;
        k.linear_dw(&x, &d_inner, Layout::InOut, &mut d_up, None)?;
        let dx = k.linear_dx(&d_inner, &up, Layout::InOut)?;
        let tensors = &mut [
            WithMomentum { w: &mut up, g: &d_up, m: &mut m_up },
            WithMomentum { w: &mut down, g: &d_down, m: &mut m_down },
        ];
        k.sgd(tensors, &by)?;
        Ok(dx)
    })
}

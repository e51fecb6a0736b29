//! How fast an adapter multiplies matrices and trains an MLP: `speed [ADAPTER]`.

use std::time::Instant;

use chimera_backend_wgpu::{Options, Target, Tensor, Wgpu, adapters};
use chimera_core::kernels::{Activation, Kernels, Layout, Result};

/// Repetitions of which the best counts.
const REPETITIONS: usize = 5;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let number: usize = std::env::args().nth(1).map_or(Ok(0), |number| number.parse())?;
    let adapters = adapters();
    let adapter = adapters.get(number).ok_or("there is no such adapter")?;
    println!("{adapter}");
    for target in [Target::Software, Target::Gpu] {
        let k = adapter.open(Options { target: Some(target), ..Options::default() })?;
        println!("kernels for {target:?}:");
        for size in [256, 512, 1024] {
            let flops = 2.0 * (size as f64).powi(3);
            let speed = flops / product(&k, size)? / 1e9;
            println!("  matrix product {size} x {size}: {speed:.1} GFLOP/s");
        }
        println!("  MLP 512 x (512, 2048, 512), forward and backward: {:.0} ms", 1e3 * mlp(&k)?);
    }
    Ok(())
}

fn matrix(k: &Wgpu, shape: &[usize]) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    k.upload(shape, &(0..n).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect::<Vec<_>>())
}

/// Seconds of the fastest of some runs of `work`, whose result is waited for.
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

fn product(k: &Wgpu, size: usize) -> Result<f64> {
    let (a, b) = (matrix(k, &[size, size])?, matrix(k, &[size, size])?);
    best(k, || k.linear(&a, &b, Layout::InOut, None, None))
}

fn mlp(k: &Wgpu) -> Result<f64> {
    let [x, up, down] =
        [[512, 512], [512, 2048], [2048, 512]].map(|shape: [usize; 2]| matrix(k, &shape));
    let (x, up, down) = (x?, up?, down?);
    let f = Activation::GeluTanh;
    best(k, || {
        let (mut d_up, mut d_down) = (k.zeros(&k.shape(&up))?, k.zeros(&k.shape(&down))?);
        let inner = k.linear(&x, &up, Layout::InOut, None, None)?;
        let active = k.activation(&inner, f)?;
        // The gradient of half the sum of squares is what comes out.
        let y = k.linear(&active, &down, Layout::InOut, None, None)?;
        let d_active = k.linear_dx(&y, &down, Layout::InOut)?;
        k.linear_dw(&active, &y, Layout::InOut, &mut d_down, None)?;
        let (d_inner, _) = k.activation_dx(&d_active, &inner, f)?;
        k.linear_dw(&x, &d_inner, Layout::InOut, &mut d_up, None)?;
        k.linear_dx(&d_inner, &up, Layout::InOut)
    })
}

//! The measurements of backend-wgpu's `examples/speed.rs` with burn's wgpu backend: matrix
//! products, and a step of an MLP.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData, activation::gelu};

/// Repetitions, of which the fastest counts, after some in which burn chooses its kernels.
const REPETITIONS: usize = 5;
const WARM_UP: usize = 3;

/// Learning rate of the step.
const LR: f32 = 1e-6;

fn main() {
    let device = Device::wgpu(Default::default());
    println!("burn 0.22.1 on {device:?}");
    for size in [256, 512, 1024] {
        let [a, b] = [(); 2].map(|()| matrix([size, size], &device));
        let seconds = best(|| {
            drop(a.clone().matmul(b.clone()));
            device.sync().expect("burn works");
        });
        let speed = 2.0 * (size as f64).powi(3) / seconds / 1e9;
        println!("  matrix product {size} x {size}: {speed:.1} GFLOP/s");
    }
    let device = device.autodiff();
    let x = matrix([512, 512], &device);
    let mut weights = [[512, 2048], [2048, 512]].map(|shape| matrix(shape, &device));
    let seconds = best(|| {
        weights = step(&x, weights.clone());
        device.sync().expect("burn works");
    });
    println!("  step of an MLP 512 x (512, 2048, 512): {:.0} ms", 1e3 * seconds);
}

fn matrix(shape: [usize; 2], device: &Device) -> Tensor<2> {
    let n = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Computes the gradients of half the sum of squares of the output, and updates the weights.
fn step(x: &Tensor<2>, [up, down]: [Tensor<2>; 2]) -> [Tensor<2>; 2] {
    let (x, up, down) = (x.clone().require_grad(), up.require_grad(), down.require_grad());
    let y = gelu(x.clone().matmul(up.clone())).matmul(down.clone());
    let gradients = (y.clone() * y).sum().mul_scalar(0.5).backward();
    x.grad(&gradients).expect("it is asked for");
    [up, down].map(|w| {
        let gradient = w.grad(&gradients).expect("it is asked for");
        let follows = w.inner() - gradient * LR;
        Tensor::from_inner(follows)
    })
}

fn best(mut work: impl FnMut()) -> f64 {
    let mut times = (0..WARM_UP + REPETITIONS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    times.by_ref().take(WARM_UP).for_each(drop);
    times.fold(f64::INFINITY, f64::min)
}

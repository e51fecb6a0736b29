//! Prints the speed of matrix products on one thread, in f32 and in bf16, alternating, by processor
//! time.
//!
//! `cargo run --release -p chimera-backend-cpu --example products`

#[cfg(target_os = "linux")]
mod allocator;

use std::sync::LazyLock;
use std::time::Instant;

use chimera_backend_cpu::{Bf16Products, Candle};
use chimera_core::device::{Device, Result};
use chimera_core::layers::{Layout, Linear};

/// Rows, summed elements, and columns.
const SHAPES: [[usize; 3]; 6] =
    [[512; 3], [1024; 3], [2048; 3], [1024, 512, 2048], [1024, 2048, 512], [1024, 256, 1024]];

/// Seconds for all runs of a layer at a shape.
const SECONDS: f64 = 3.0;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (mut names, mut devices) = (vec!["f32".to_string()], vec![Candle::cpu()]);
    for way in Bf16Products::ALL {
        if let Some(device) = Candle::cpu_bf16_by(way) {
            names.push(format!("bf16 by {way:?}"));
            devices.push(device);
        }
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    for shape in SHAPES {
        for name in ["linear", "linear_dx", "linear_dw"] {
            let seconds = pool.install(|| seconds(&devices, name, shape))?;
            let flops = 2.0 * shape.iter().product::<usize>() as f64;
            let rates = names.iter().zip(seconds).map(|(name, seconds)| {
                let rate = flops / seconds * 1e-9;
                format!("{name} {rate:.0}")
            });
            println!("{name:9} {shape:?}, GFLOP/s: {}", rates.collect::<Vec<_>>().join(", "));
        }
    }
    Ok(())
}

/// Returns the seconds that a layer's product takes on each device.
fn seconds(
    devices: &[Candle],
    name: &str,
    [rows, inputs, outputs]: [usize; 3],
) -> Result<Vec<f64>> {
    let k = &devices[0];
    let some = |rows, columns| {
        let number = |i: usize| ((i * 7919) % 1000) as f32 * 1e-3 - 0.5;
        k.upload(&[rows, columns], &(0..rows * columns).map(number).collect::<Vec<_>>())
    };
    let (x, w, dy) = (some(rows, inputs)?, some(inputs, outputs)?, some(rows, outputs)?);
    let mut dw = k.zeros(&[inputs, outputs])?;
    let mut sums = vec![(0.0, 0); devices.len()];
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < SECONDS {
        for ((seconds, n), k) in sums.iter_mut().zip(devices) {
            let (turn, start) = (Instant::now(), processor_s());
            while turn.elapsed().as_secs_f64() < SECONDS / 30.0 {
                match name {
                    "linear" => drop(k.linear(&x, &w, Layout::InOut, None, None)?),
                    "linear_dx" => drop(k.linear_dx(&dy, &w, Layout::InOut)?),
                    _ => k.linear_dw(&x, &dy, Layout::InOut, &mut dw, None)?,
                }
                *n += 1;
            }
            *seconds += processor_s() - start;
        }
    }
    Ok(sums.into_iter().map(|(seconds, n)| seconds / f64::from(n)).collect())
}

/// Returns the processor time of this thread in seconds, which other work on the machine does not
/// add to. Falls back to the clock if the system has no file with it.
fn processor_s() -> f64 {
    let counted = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    counted().map_or_else(|| BEGIN.elapsed().as_secs_f64(), |ns| ns * 1e-9)
}

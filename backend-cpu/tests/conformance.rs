//! The conformance suites of devices, with one thread and with several.

use chimera_backend_cpu::Candle;
use chimera_core::{device, layers};
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// Relative to the f64 reference; f32 has 7 digits, and sums lose one or two.
const TOLERANCE: f64 = 1e-5;

#[test]
fn one_thread_conforms() -> Result<(), ThreadPoolBuildError> {
    run(1)
}

#[test]
fn two_threads_conform() -> Result<(), ThreadPoolBuildError> {
    run(2)
}

fn run(threads: usize) -> Result<(), ThreadPoolBuildError> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| {
        device::conformance::run(&Candle::cpu(), TOLERANCE);
        layers::conformance::run(&Candle::cpu(), TOLERANCE);
    });
    Ok(())
}

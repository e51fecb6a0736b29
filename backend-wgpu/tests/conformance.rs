//! The suite that every device passes, on whatever adapter is first.

use chimera_backend_wgpu::{Options, Target, Wgpu, adapters};
use chimera_core::kernels::conformance::{self, cases};

/// Relative to the f64 reference; f32 has 7 digits, and sums lose one or two.
const TOLERANCE: f64 = 1e-5;

fn open(options: Options) -> Wgpu {
    let adapters = adapters();
    let adapter = adapters.first().expect("an adapter; Debian has one in mesa-vulkan-drivers");
    adapter.open(options).expect("it opens")
}

/// Results are poisoned, so that what a kernel leaves out shows.
fn run(target: Target, max_binding: Option<u64>) {
    let options = Options { poison: true, max_binding, target: Some(target) };
    conformance::run(&open(options), TOLERANCE);
}

#[test]
fn kernels_for_software_conform() {
    run(Target::Software, None);
}

#[test]
fn kernels_for_plain_software_conform() {
    run(Target::PlainSoftware, None);
}

#[test]
fn kernels_for_gpus_conform() {
    run(Target::Gpu, None);
}

/// Several tensors of the suite are larger than this.
#[test]
fn blocks_conform() {
    run(Target::Software, Some(64 << 10));
}

/// And almost all that are no vectors than this, of which attention's samples cannot be cut.
#[test]
fn small_blocks_conform() {
    let device = open(Options { poison: true, max_binding: Some(6 << 10), target: None });
    for case in cases().iter().filter(|case| !case.name.starts_with("attention")) {
        match case.check(&device, |x| x) {
            Ok(worst) => assert!(worst.error <= TOLERANCE, "{}: {worst}", case.name),
            Err(failure) => panic!("{}: {failure}", case.name),
        }
    }
}

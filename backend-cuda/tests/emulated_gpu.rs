//! The GPU's kernels on an emulated one: the suite that every device passes.

#![allow(unsafe_code)] // memory of the emulated device, and the kernels compiled into a library

mod emulated;

use chimera_backend_cuda::gpu::Element;
use chimera_core::kernels::conformance;

#[test]
fn f32_conforms() {
    conformance::run(&emulated::gpu(Element::F32), 1e-5);
}

#[test]
fn bf16_conforms() {
    let round = |x| half::bf16::from_f32(x).to_f32();
    conformance::run_rounded(&emulated::gpu(Element::Bf16), 1e-2, round);
}

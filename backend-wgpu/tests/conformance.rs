//! The conformance suites of devices, on the first adapter.

use chimera_backend_wgpu::{Adapter, Options, Product, Target, Wgpu, adapters};
use chimera_core::device::Device;
use chimera_core::layers::{Layout, Linear};
use chimera_core::{device, layers};

/// Relative to the f64 reference; f32 has 7 digits, and sums lose one or two.
const TOLERANCE: f64 = 1e-5;

fn adapter() -> Adapter {
    let first = adapters().into_iter().next();
    first.expect("an adapter; Debian has one in mesa-vulkan-drivers")
}

fn open(options: Options) -> Wgpu {
    adapter().open(options).expect("it opens")
}

/// Runs the suites. Results are poisoned, so that elements that a kernel leaves out show.
fn run(target: Target, max_binding: Option<u64>) {
    let target = Some(target);
    let device = open(Options { poison: true, max_binding, target, product: None });
    device::conformance::run(&device, TOLERANCE);
    layers::conformance::run(&device, TOLERANCE);
}

/// Runs some cases of the suites, selected by name.
fn run_some(device: &Wgpu, is_meant: impl Fn(&str) -> bool) {
    let of_layers = layers::conformance::cases_of(device);
    let cases = device::conformance::cases().into_iter().chain(of_layers);
    for case in cases.filter(|case| is_meant(case.name)) {
        match case.check(device, |x| x) {
            Ok(worst) => assert!(worst.error <= TOLERANCE, "{}: {worst}", case.name),
            Err(failure) => panic!("{}: {failure}", case.name),
        }
    }
}

#[test]
fn kernels_for_software_conform() {
    run(Target::Software, None);
}

#[test]
fn kernels_for_gpus_conform() {
    run(Target::Gpu, None);
}

/// Kernels that the other tests do not run.
#[test]
fn all_products_conform() {
    let of_targets = [Product::Subgroups, Product::Tiles];
    for product in adapter().products().into_iter().filter(|p| !of_targets.contains(p)) {
        let options = Options { poison: true, product: Some(product.into()), ..Options::default() };
        run_some(&open(options), |name| name.starts_with("linear"));
    }
}

/// So replicas may use different products.
#[test]
fn all_products_give_the_same_bits() {
    let [m, inner, n] = [67, 131, 41];
    let values = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 1009) as f32 / 503.0 - 1.0).collect()
    };
    let products = adapter().products().into_iter().map(|product| {
        let k = open(Options { product: Some(product.into()), ..Options::default() });
        let [x, dy, w] = [[m, inner], [m, n], [inner, n]].map(|shape| {
            k.upload(&shape, &values(shape[0] * shape[1], shape[0])).expect("it fits")
        });
        let y = k.linear(&x, &w, Layout::InOut, None, None).expect("a product");
        let dx = k.linear_dx(&dy, &w, Layout::InOut).expect("a product");
        let mut dw = k.upload(&[inner, n], &values(inner * n, 3)).expect("it fits");
        k.linear_dw(&x, &dy, Layout::InOut, &mut dw, None).expect("a product");
        let bits = [y, dx, dw].map(|t| {
            let values = k.download(&t).expect("it is there");
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        (product, bits)
    });
    let products: Vec<_> = products.collect();
    for (product, bits) in &products {
        assert!(*bits == products[0].1, "{product} and {}", products[0].0);
    }
}

/// Returns true if a case has a sample of more than 64 KiB, which cannot be cut.
fn has_large_samples(name: &str) -> bool {
    name.starts_with("grouped_attention") || name == "attention_after"
}

/// Several tensors of the suite exceed this binding.
#[test]
fn blocks_conform() {
    let max_binding = Some(64 << 10);
    let device = open(Options { poison: true, max_binding, ..Options::default() });
    run_some(&device, |name| !has_large_samples(name));
}

#[test]
fn blocks_of_large_samples_conform() {
    let max_binding = Some(160 << 10);
    let device = open(Options { poison: true, max_binding, ..Options::default() });
    run_some(&device, has_large_samples);
}

/// Almost all tensors that are not vectors exceed this binding. Attention's samples cannot be cut.
#[test]
fn small_blocks_conform() {
    let max_binding = Some(6 << 10);
    let device = open(Options { poison: true, max_binding, ..Options::default() });
    run_some(&device, |name| !name.contains("attention"));
}

//! Tensors without elements, empty sums, and rows that are ignored.

use chimera_backend_wgpu::{Options, Product, Target, Wgpu, adapters};
use chimera_core::device::Device;
use chimera_core::layers::{Embed, IGNORED, Layout, Linear, Loss};

use super::open;

/// The first adapter with each of its matrix products.
fn by_products() -> impl Iterator<Item = (Product, Wgpu)> {
    let adapter = adapters().into_iter().next().expect("an adapter");
    adapter.products().into_iter().map(move |product| {
        let only = Some(product.into());
        let options = Options { poison: true, product: only, ..Options::default() };
        (product, adapter.open(options).expect("it opens"))
    })
}

#[test]
fn nothing_is_no_error() {
    let k = open();
    let mut nothing = k.zeros(&[0]).unwrap();
    let other = k.upload(&[0], &[]).unwrap();
    k.accumulate(&mut nothing, &other).unwrap();
    assert!(k.download(&nothing).unwrap().is_empty());
    assert_eq!(k.download(&k.squared_norms(&[&nothing]).unwrap()).unwrap(), [0.0]);
    let none = k.embedding(&[], 4, &k.zeros(&[3, 2]).unwrap(), &k.zeros(&[4, 2]).unwrap()).unwrap();
    assert_eq!(k.shape(&none), [0, 2]);
}

/// 64 elements fill the smallest buffer, so nothing can be bound after them.
#[test]
fn nothing_at_the_end_of_a_full_buffer_is_no_error() {
    let k = open();
    let full = k.upload(&[64], &[1.0; 64]).unwrap();
    let end = k.rows(&full, 64, 0).unwrap();
    let norms = k.squared_norms(&[&end, &full]).unwrap();
    assert_eq!(k.download(&norms).unwrap(), [0.0, 64.0]);
}

/// A layer without inputs returns its bias and residual. A layer without outputs has gradients of
/// zeros.
#[test]
fn sums_of_nothing_are_zeros() {
    for (product, k) in by_products() {
        let none = k.zeros(&[3, 0]).unwrap();
        let bias = k.upload(&[2], &[1.0, 2.0]).unwrap();
        let residual = k.upload(&[3, 2], &[0.0, 0.0, 10.0, 10.0, 20.0, 20.0]).unwrap();
        for (layout, [no_inputs, no_outputs]) in
            [(Layout::InOut, [[0, 2], [2, 0]]), (Layout::OutIn, [[2, 0], [0, 2]])]
        {
            let w = k.zeros(&no_inputs).unwrap();
            let y = k.linear(&none, &w, layout, None, None).unwrap();
            assert_eq!(k.download(&y).unwrap(), [0.0; 6], "{product} {layout:?}");
            let y = k.linear(&none, &w, layout, Some(&bias), Some(&residual)).unwrap();
            let sums = [1.0, 2.0, 11.0, 12.0, 21.0, 22.0];
            assert_eq!(k.download(&y).unwrap(), sums, "{product} {layout:?}");
            let w = k.zeros(&no_outputs).unwrap();
            let dx = k.linear_dx(&none, &w, layout).unwrap();
            assert_eq!(k.download(&dx).unwrap(), [0.0; 6], "{product} {layout:?}");
        }
    }
}

#[test]
fn no_rows_have_no_results_and_add_nothing() {
    let k = open();
    let [x, dy] = [4, 3].map(|width| k.zeros(&[0, width]).unwrap());
    for (layout, shape) in [(Layout::InOut, [4, 3]), (Layout::OutIn, [3, 4])] {
        let w = k.upload(&shape, &[1.0; 12]).unwrap();
        let bias = k.upload(&[3], &[1.0; 3]).unwrap();
        let y = k.linear(&x, &w, layout, Some(&bias), Some(&dy)).unwrap();
        let dx = k.linear_dx(&dy, &w, layout).unwrap();
        assert_eq!([k.shape(&y), k.shape(&dx)], [[0, 3], [0, 4]]);
        let (mut dw, mut d_bias) = (w, bias);
        k.linear_dw(&x, &dy, layout, &mut dw, Some(&mut d_bias)).unwrap();
        assert_eq!(k.download(&dw).unwrap(), [1.0; 12]);
        assert_eq!(k.download(&d_bias).unwrap(), [1.0; 3]);
    }
}

/// Logits that are not finite do not matter.
#[test]
fn an_ignored_row_has_neither_loss_nor_gradient() {
    let adapter = adapters().into_iter().next().expect("an adapter");
    for target in [Target::Software, Target::Gpu] {
        let options = Options { target: Some(target), ..Options::default() };
        let k = adapter.open(options).expect("it opens");
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let logits = [[strange, 1.0, 2.0, strange], [0.0; 4]].concat();
            let logits = k.upload(&[2, 4], &logits).unwrap();
            let (loss, d_logits) = k.cross_entropy(logits, &[IGNORED, 1], 1.0).unwrap();
            let loss = k.download(&loss).unwrap()[0];
            assert!((loss - 4f32.ln()).abs() < 1e-6, "{loss} with {strange}");
            let d_logits = k.download(&d_logits).unwrap();
            let (ignored, counted) = d_logits.split_at(4);
            assert_eq!(ignored, [0.0; 4], "with {strange}");
            let expected = [0.25, -0.75, 0.25, 0.25];
            assert!(counted.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{counted:?}");
        }
    }
}

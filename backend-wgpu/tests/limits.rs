//! Tensors larger than the binding limit of an adapter, and larger than its memory.

use std::time::Instant;

use chimera_backend_wgpu::{Options, Product, Wgpu, adapters};
use chimera_core::device::{AdamW, Device, DeviceError, Updated};
use chimera_core::layers::{
    Attend, Attention, Dropout, Embed, Layout, Linear, LlamaLayers, Mask, Norm, Rotary,
};

#[path = "limits/empty.rs"]
mod empty;
#[path = "limits/rounds.rs"]
mod rounds;

/// GPT-2's token table: 147 MiB, while a software Vulkan binds 128 MiB at once.
const TABLE: [usize; 2] = [50_257, 768];

const SHRINKS: AdamW = AdamW {
    lr: 0.5,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 1.0,
    update: 1,
    grad_scale: 1.0,
};

fn open() -> Wgpu {
    let adapters = adapters();
    let adapter = adapters.first().expect("an adapter; Debian has one in mesa-vulkan-drivers");
    adapter.open(Options { poison: true, ..Options::default() }).expect("it opens")
}

/// Small numbers whose sums are exact in f32.
fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 61) as f32 - 30.0) / 64.0).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The table is looked up, multiplied from both sides, and added to.
#[test]
fn a_table_larger_than_a_binding_serves_every_layer() {
    let k = open();
    let [vocab, hidden] = TABLE;
    let data = values(vocab * hidden);
    let row = |r: usize| &data[r * hidden..][..hidden];
    let table = k.upload(&TABLE, &data).unwrap();
    let ids = [0u32, 50_256, 25_000, 45_000, 50_256];

    let positions = k.zeros(&[5, hidden]).unwrap();
    let found = k.embedding(&ids, 5, &table, &positions).unwrap();
    let found = k.download(&found).unwrap();
    for (found, id) in found.chunks(hidden).zip(ids) {
        assert!(found == row(id as usize), "row {id}");
    }

    let x = k.upload(&[1, hidden], row(7)).unwrap();
    let logits = k.linear(&x, &table, Layout::OutIn, None, None).unwrap();
    let logits = k.download(&logits).unwrap();
    assert!((0..vocab).all(|r| (logits[r] - dot(row(7), row(r))).abs() < 1e-3));

    // The rows of one token, and of all, are added up.
    let one: Vec<f32> = (0..vocab).map(|r| f32::from(u8::from(r == 50_000))).collect();
    let one = k.upload(&[1, vocab], &one).unwrap();
    let picked = k.linear(&one, &table, Layout::InOut, None, None).unwrap();
    assert!(k.download(&picked).unwrap() == row(50_000));
    let back = k.linear_dx(&one, &table, Layout::OutIn).unwrap();
    assert!(k.download(&back).unwrap() == row(50_000));

    let mut sum = k.upload(&TABLE, &data).unwrap();
    k.linear_dw(&x, &one, Layout::OutIn, &mut sum, None).unwrap();
    let [mut d_positions, dy] = [(); 2].map(|()| k.zeros(&[5, hidden]).unwrap());
    k.embedding_dw(&ids, 5, &dy, &mut sum, &mut d_positions).unwrap();
    k.accumulate(&mut sum, &table).unwrap();
    let sum = k.download(&sum).unwrap();
    for r in [0, 1, 25_000, 49_999, 50_000, 50_256] {
        let added = |i: usize| if r == 50_000 { row(7)[i] } else { 0.0 };
        assert!((0..hidden).all(|i| sum[r * hidden + i] == 2.0 * row(r)[i] + added(i)), "row {r}");
    }

    // Without a gradient, the update only shrinks the weights, from twice the table to half of
    // that.
    let g = k.zeros(&TABLE).unwrap();
    let [mut m, mut v] = [(); 2].map(|()| k.zeros(&TABLE).unwrap());
    let mut weights = k.upload(&TABLE, &data).unwrap();
    k.accumulate(&mut weights, &table).unwrap();
    let all = Updated { w: &mut weights, g: &g, m: &mut m, v: &mut v };
    k.adamw(&mut [all], &SHRINKS).unwrap();
    assert!(k.download(&weights).unwrap() == data);

    let norm = k.download(&k.squared_norms(&[&table]).unwrap()).unwrap()[0];
    let expected: f64 = data.iter().map(|x| f64::from(x * x)).sum();
    assert!((f64::from(norm) / expected - 1.0).abs() < 1e-5, "{norm} instead of {expected}");
}

/// There are 65,535 workgroups along a dimension, of four rows each.
#[test]
fn more_rows_than_there_are_workgroups_for_are_multiplied() {
    const ROWS: usize = 4 * 65_535 + 6;
    let adapter = adapters().into_iter().next().expect("an adapter");
    let options =
        Options { poison: true, product: Some(Product::Registers.into()), ..Options::default() };
    let k = adapter.open(options).expect("it opens");
    let data = values(ROWS);
    let [x, w] = [k.upload(&[ROWS, 1], &data).unwrap(), k.upload(&[1, 1], &[2.0]).unwrap()];
    let bias = k.upload(&[1], &[1.0]).unwrap();
    let y = k.linear(&x, &w, Layout::InOut, Some(&bias), Some(&x)).unwrap();
    let y = k.download(&y).unwrap();
    assert!(y.iter().zip(&data).all(|(y, x)| *y == 3.0 * x + 1.0));
}

/// There are 65,535 workgroups along a dimension, and each sums 64 rows.
#[test]
fn more_rows_than_there_are_workgroups_for_are_summed() {
    const ROWS: usize = 64 * 65_535 + 6;
    let k = open();
    let data: Vec<f32> = (0..ROWS).map(|i| (i * 7919 % 5) as f32 - 2.0).collect();
    let x = k.upload(&[ROWS, 1], &data).unwrap();
    let stats = k.upload(&[ROWS, 2], &[0.0, 1.0].repeat(ROWS)).unwrap();
    let [mut d_gain, mut d_bias] = [(); 2].map(|()| k.zeros(&[1]).unwrap());
    k.layer_norm_dw(&x, &x, &stats, &mut d_gain, &mut d_bias).unwrap();
    let [mut dw, mut d_linear] = [k.zeros(&[1, 1]).unwrap(), k.zeros(&[1]).unwrap()];
    k.linear_dw(&x, &x, Layout::InOut, &mut dw, Some(&mut d_linear)).unwrap();
    let sums = k.download_all(&[&d_gain, &d_bias, &dw, &d_linear]).unwrap();
    let sums: Vec<f32> = sums.into_iter().flat_map(|sum| sum.words).collect();
    let (sum, squares) = (data.iter().sum::<f32>(), data.iter().map(|x| x * x).sum::<f32>());
    assert_eq!(sums, [squares, sum, squares, sum]);
}

/// Attention and rotary positions depend on the place of a row in the batch, whichever rows are
/// bound at once.
#[test]
fn samples_that_are_bound_apart_give_the_same_bits() {
    let adapter = adapters().into_iter().next().expect("an adapter");
    let [context, heads, kv_heads, dim] = [16, 4, 2, 8];
    let width = (heads + 2 * kv_heads) * dim;
    let shape = [3 * context, width];
    let data = values(shape[0] * width);
    let angles = values(context * dim);
    let bits = |max_binding: Option<u64>| {
        let k = adapter.open(Options { max_binding, ..Options::default() }).expect("it opens");
        let table = k.upload(&[context, dim], &angles).unwrap();
        let turned = Rotary { heads: heads + kv_heads, backward: false };
        let qkv = k.rotary(&k.upload(&shape, &data).unwrap(), &table, turned).unwrap();
        let mut made = k.download(&qkv).unwrap();
        for mask in [Mask::Causal, Mask::Window(5), Mask::Lengths(&[16, 3, 9])] {
            let dropout = Some(Dropout::new(0.3, 1, 2, 3, 4));
            let by = Attention { heads, kv_heads, context, mask, dropout };
            let (out, log_sum) = k.attention(&qkv, &by).unwrap();
            let dx = k.attention_dx(&out, &qkv, &out, &log_sum, &by).unwrap();
            for x in [&out, &log_sum, &dx] {
                made.extend(k.download(x).unwrap());
            }
        }
        made.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    // Room for one sample at a time, or for some rows of the table.
    assert!(bits(None) == bits(Some(5 << 10)));
}

#[test]
fn a_tensor_that_no_memory_holds_is_out_of_memory() {
    let k = open();
    for shape in [&[1 << 20, 1 << 20][..], &[usize::MAX, 2]] {
        match k.zeros(shape) {
            Err(DeviceError::OutOfMemory { what, asked_bytes, .. }) => {
                assert!(what.contains("zeros") && asked_bytes >= 1 << 42, "{what} {asked_bytes}");
            }
            other => panic!("{shape:?}: {other:?}"),
        }
    }
    // The device still works.
    let one = k.upload(&[1], &[1.0]).unwrap();
    assert_eq!(k.download(&one).unwrap(), [1.0]);
}

#[test]
fn more_heads_than_workgroups_are_refused() {
    const HEADS: usize = 70_000;
    let k = open();
    let qkv = k.zeros(&[1, 3 * HEADS]).unwrap();
    let refusal = k.attention(&qkv, &Attention::causal(HEADS, 1)).unwrap_err().to_string();
    assert!(refusal.contains("70000 heads, and the adapter takes 65535"), "{refusal}");
}

#[test]
fn a_row_that_cannot_be_bound_is_named() {
    let adapter = adapters().into_iter().next().expect("an adapter");
    let options = Options { max_binding: Some(1 << 10), ..Options::default() };
    let k = adapter.open(options).expect("it opens");
    let [x, gain] = [k.zeros(&[2, 300]).unwrap(), k.zeros(&[300]).unwrap()];
    let refusal = k.layer_norm(&x, &gain, &gain, 1e-5).unwrap_err().to_string();
    assert!(
        refusal.contains("layer_norm failed") && refusal.contains("row(s) of 300"),
        "{refusal}"
    );
}

/// The device must write timestamps, as software adapters do.
#[test]
fn a_device_tells_how_long_its_work_took() {
    let k = open();
    let x = k.upload(&[512, 512], &values(512 * 512)).unwrap();
    // compiles the kernel
    k.download(&k.linear(&x, &x, Layout::InOut, None, None).unwrap()).unwrap();
    let mut clock = k.clock().unwrap().expect("timestamps");
    assert!(clock.ages().unwrap().is_empty());
    let began = Instant::now();
    let (mut sum, one) = (k.zeros(&[1]).unwrap(), k.upload(&[1], &[1.0]).unwrap());
    for _ in 0..300 {
        clock.mark();
        k.accumulate(&mut sum, &one).unwrap();
    }
    clock.mark();
    clock.mark();
    let y = k.linear(&x, &x, Layout::InOut, None, None).unwrap();
    clock.mark();
    let ages = clock.ages().unwrap();
    let passed = began.elapsed().as_secs_f64();
    assert_eq!(ages.len(), 303);
    assert!(ages.is_sorted_by(|a, b| a >= b) && ages[0] <= passed && ages[302] >= 0.0, "{ages:?}");
    let (idle, busy) = (ages[299] - ages[300], ages[301] - ages[302]);
    assert!(busy > 10.0 * idle, "a product takes {busy} s, nothing {idle} s");
    assert_eq!(ages[300], ages[301], "nothing was asked for between them");
    assert!(clock.ages().unwrap().is_empty());
    drop(y);
}

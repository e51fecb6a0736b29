//! Linear layers with packed matrices: the results are those of the values that these stand for.

use chimera_backend_cpu::Candle;
use chimera_core::device::{Device, Dtype, MatrixShape, Packing, Result, WeightFormat};
use chimera_core::layers::{Layout, Linear};

const FORMATS: [WeightFormat; 4] =
    [WeightFormat::Bf16, WeightFormat::Int8, WeightFormat::Nf4, WeightFormat::Nf4Double];

fn values(n: usize, factor: usize) -> Vec<f32> {
    (0..n).map(|i| ((i + 1) * factor % 1009) as f32 * 2e-3 - 1.0).collect()
}

/// Returns a packed matrix, and the values that it stands for.
fn matrices(
    device: &Candle,
    format: WeightFormat,
    maps: &[usize],
    (inputs, layout): (usize, Layout),
) -> Result<[<Candle as Device>::Tensor; 2]> {
    let outputs: usize = maps.iter().sum();
    let (shape, inputs_first) = match layout {
        Layout::InOut => ([inputs, outputs], true),
        Layout::OutIn => ([outputs, inputs], false),
    };
    let matrix = MatrixShape { shape, inputs_first };
    let packing = Packing { format, maps: maps.to_vec() };
    let elements = packing.pack(matrix, &values(inputs * outputs, 7919));
    let n_bytes = packing.n_bytes(matrix) as u64;
    let packed = device.upload_words(&shape, Dtype::Packed, elements.words.clone())?;
    assert_eq!((device.shape(&packed), device.bytes(&packed)), (shape.to_vec(), n_bytes));
    let mut words = Vec::new();
    device.download_words(&packed, &mut words)?;
    let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&words), bits(&elements.words));
    let stands_for = device.download(&packed)?;
    assert_eq!(stands_for, elements.to_f32(inputs * outputs));
    Ok([packed, device.upload(&shape, &stands_for)?])
}

#[test]
fn products_are_those_of_the_values() -> Result<()> {
    for device in [Candle::cpu(), Candle::cpu_bf16()] {
        for (maps, inputs) in [(&[7][..], 5), (&[20, 4, 4], 48), (&[600], 2048), (&[3, 1], 130)] {
            let outputs: usize = maps.iter().sum();
            let all = FORMATS.into_iter().flat_map(|f| [(f, Layout::InOut), (f, Layout::OutIn)]);
            for ((format, layout), rows) in all.flat_map(|each| [(each, 1), (each, 19)]) {
                let [packed, plain] = matrices(&device, format, maps, (inputs, layout))?;
                let x = device.upload(&[rows, inputs], &values(rows * inputs, 40_013))?;
                let dy = device.upload(&[rows, outputs], &values(rows * outputs, 611))?;
                let bias = device.upload(&[outputs], &values(outputs, 77))?;
                let results = |w| -> Result<[Vec<f32>; 3]> {
                    let biased = device.linear(&x, w, layout, Some(&bias), Some(&dy))?;
                    let y = device.linear(&x, w, layout, None, None)?;
                    let dx = device.linear_dx(&dy, w, layout)?;
                    Ok([device.download(&biased)?, device.download(&y)?, device.download(&dx)?])
                };
                for (got, expected) in results(&packed)?.iter().zip(results(&plain)?) {
                    assert_eq!(got.len(), expected.len());
                    let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    for (got, expected) in got.iter().zip(expected) {
                        let is_near = (got - expected).abs() <= 1e-5 * most;
                        assert!(is_near, "{got} for {expected}: {format:?} {layout:?} {maps:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn words_that_are_no_packed_matrix_are_refused() {
    let device = Candle::cpu();
    let refusal = device.upload_words(&[2, 2], Dtype::Packed, vec![0.0; 9]).expect_err("refused");
    assert!(refusal.to_string().contains("not a packed matrix"), "{refusal}");
}

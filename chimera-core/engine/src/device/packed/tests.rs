use super::*;
use crate::stage::{Init, LinearLayer, Param};

/// Values that the package bitsandbytes 0.50.2 on torch 2.15 returns for the matrix of
/// [`weights`], as words of f32; its int8 without outliers.
const GOLDEN: &str = include_str!("golden.txt");
const FORMATS: [WeightFormat; 4] =
    [WeightFormat::Bf16, WeightFormat::Int8, WeightFormat::Nf4, WeightFormat::Nf4Double];

/// A matrix of nine rows of 40 values, one of them of zeros.
fn weights() -> Vec<f32> {
    let factors = [1.0, 0.5, 3.0, 0.0, 0.01, 2.0, 1.0, 0.25, 7.0];
    let value = |i: usize| ((i * 7919) % 1009) as f32 * 2e-3 - 1.0;
    (0..360).map(|i| value(i) * factors[i / 40]).collect()
}

fn rows_are_outputs(shape: [usize; 2]) -> MatrixShape {
    MatrixShape { shape, inputs_first: false }
}

/// Packs and unpacks.
fn through(packing: &Packing, matrix: MatrixShape, values: &[f32]) -> Vec<f32> {
    let packed = packing.pack(matrix, values);
    assert_eq!(packed.bytes().len(), packing.n_bytes(matrix));
    packed.to_f32(values.len())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if *x == 0.0 { 0 } else { x.to_bits() }).collect()
}

#[test]
fn values_are_those_of_bitsandbytes_to_the_bit() {
    let mut n_formats = 0;
    for text in GOLDEN.split_inclusive("\n").collect::<Vec<_>>().chunks(37) {
        let format: WeightFormat = text[0].trim().parse().expect("a format");
        let expected = text[1..].iter().flat_map(|line| line.split_whitespace());
        let expected = expected.map(|word| u32::from_str_radix(word, 16).expect("a word"));
        let expected: Vec<f32> = expected.map(f32::from_bits).collect();
        let packing = Packing { format, maps: vec![9] };
        let values = through(&packing, rows_are_outputs([9, 40]), &weights());
        assert_eq!(bits(&values), bits(&expected), "{format:?}");
        n_formats += 1;
    }
    assert_eq!(n_formats, 3);
}

#[test]
fn bf16_is_rounded_to_nearest() {
    let values = [1.0, -2.5, 1.003_906_3, 3.0e-3, 0.0, 7.0];
    let expected = Dtype::Bf16.to_f32(Dtype::Bf16.of_f32(values.to_vec()), 6);
    let packing = Packing { format: WeightFormat::Bf16, maps: vec![2] };
    assert_eq!(through(&packing, rows_are_outputs([2, 3]), &values), expected);
}

/// Each linear map is quantised by itself, and the layout does not matter.
#[test]
fn linear_maps_are_packed_one_by_one() {
    let values = weights();
    for format in FORMATS {
        let packing = |maps: &[usize]| Packing { format, maps: maps.to_vec() };
        let fused = through(&packing(&[3, 0, 6]), rows_are_outputs([9, 40]), &values);
        let mut parts = through(&packing(&[3]), rows_are_outputs([3, 40]), &values[..120]);
        parts.extend(through(&packing(&[6]), rows_are_outputs([6, 40]), &values[120..]));
        assert_eq!(fused, parts, "{format:?}");
        let turned: Vec<f32> = (0..360).map(|place| values[place % 9 * 40 + place / 9]).collect();
        let matrix = MatrixShape { shape: [40, 9], inputs_first: true };
        let turned = through(&packing(&[3, 0, 6]), matrix, &turned);
        let back: Vec<f32> = (0..360).map(|place| turned[place % 40 * 9 + place / 40]).collect();
        assert_eq!(back, fused, "{format:?}");
    }
}

#[test]
fn any_range_is_unpacked_alike() {
    let values = weights();
    for format in FORMATS {
        let packed = Packing { format, maps: vec![9] }.pack(rows_are_outputs([9, 40]), &values);
        let (bytes, whole) = (packed.bytes(), packed.clone().to_f32(360));
        let map = Packed::read(&bytes).expect("packed").maps[0];
        for (first, n) in [(0, 1), (1, 1), (1, 70), (63, 3), (127, 130), (40, 40), (355, 5)] {
            let mut part = vec![f32::NAN; n];
            map.unpack(first, &mut part);
            assert_eq!(part, whole[first..first + n], "{format:?} from {first}");
        }
    }
}

#[test]
fn what_is_not_whole_is_refused() {
    for format in FORMATS {
        let packing = Packing { format, maps: vec![4, 5] };
        let bytes = packing.pack(rows_are_outputs([9, 40]), &weights()).bytes();
        assert!(Packed::read(&bytes).is_some_and(|packed| packed.packing() == packing));
        for n in (0..bytes.len()).step_by(4) {
            assert!(Packed::read(&bytes[..n]).is_none(), "{format:?} of {n} bytes");
        }
        // Headers that promise more than there is.
        for (place, number) in [(0, 9), (0, 0), (1, u32::MAX), (2, u32::MAX), (4, u32::MAX), (5, 6)]
        {
            let mut changed = bytes.clone();
            changed[4 * place..][..4].copy_from_slice(&u32::to_le_bytes(number));
            assert!(Packed::read(&changed).is_none(), "{format:?}: {number} at {place}");
        }
    }
}

#[test]
fn only_frozen_matrices_of_linear_layers_are_packed() {
    let shown = LinearLayer { bias: None, inputs_first: false };
    let param = Param::new("w", [9, 40], Init::Zeros).shown(shown);
    let held = |param: Param| param.packed(WeightFormat::Nf4, vec![9]).held_bytes(4.0);
    assert_eq!(held(param.clone()), 4.0 * 360.0);
    let frozen = Param { frozen: true, ..param };
    assert_eq!(held(Param { shown: None, ..frozen.clone() }), 4.0 * 360.0);
    // Codes, six scales, and a header of six words.
    assert_eq!(held(frozen.clone()), 180.0 + 24.0 + 24.0);
    let packed = frozen.packed(WeightFormat::Int8, vec![9]);
    let given = Elements::from(weights());
    let int8 = packed.fitted(given).expect("packed");
    let fitted = packed.fitted(int8.clone()).expect("fits");
    assert_eq!(fitted.bytes(), int8.bytes());
    let other = packed.clone().packed(WeightFormat::Nf4, vec![9]);
    let refusal = other.fitted(int8.clone()).expect_err("refused");
    assert_eq!(refusal, "w is packed, but not in nf4 of its shape");
    let unpacked = Param { packing: None, ..packed };
    assert_eq!(unpacked.fitted(int8.clone()), Ok(int8.to_f32(360).into()));
    let refusal = unpacked.fitted(vec![0.0; 3].into()).expect_err("refused");
    assert_eq!(refusal, "w has 3 words of F32, not 360 elements");
}

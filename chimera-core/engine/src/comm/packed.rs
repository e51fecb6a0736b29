//! Tensors packed into fewer words, for slow links.
//!
//! A packed tensor is an ordinary tensor of words to every transport: the number of its dimensions,
//! each extent in two words, and its elements in another format.

mod blocks;

use chimera_schedule::compression::MessageFormat;

use crate::device::Dtype;

/// The most dimensions of a packed tensor.
const MAX_DIMS: usize = 8;

/// Packs the elements of a tensor, and leaves in them what rounding to 8 bits lost.
pub(crate) fn pack(format: MessageFormat, shape: &[usize], values: &mut [f32]) -> Vec<f32> {
    let n_head = 1 + 2 * shape.len();
    let mut words = Vec::with_capacity(n_head + n_words(format, values.len()).unwrap_or(0));
    words.push(f32::from_bits(shape.len() as u32));
    for extent in shape {
        let extent = *extent as u64;
        words.extend([extent as u32, (extent >> u32::BITS) as u32].map(f32::from_bits));
    }
    match format {
        MessageFormat::F32 => words.extend_from_slice(values),
        MessageFormat::Bf16 => words.extend(Dtype::Bf16.of_f32(values.to_vec())),
        MessageFormat::Int8 => blocks::encode(values, &mut words),
    }
    words
}

/// Unpacks a tensor: its shape and elements. The error says what is wrong with the words.
pub(crate) fn unpack(
    format: MessageFormat,
    words: &[f32],
) -> Result<(Vec<usize>, Vec<f32>), String> {
    let (n_dims, words) = words.split_first().ok_or("a packed tensor has no words")?;
    let n_dims = n_dims.to_bits() as usize;
    if n_dims > MAX_DIMS || words.len() < 2 * n_dims {
        return Err(format!("a packed tensor of {} words has no {n_dims} extents", words.len()));
    }
    let (extents, words) = words.split_at(2 * n_dims);
    let (pairs, _) = extents.as_chunks();
    let extent = |[low, high]: &[f32; 2]| {
        usize::try_from(u64::from(low.to_bits()) | u64::from(high.to_bits()) << u32::BITS).ok()
    };
    let shape: Option<Vec<usize>> = pairs.iter().map(extent).collect();
    let n_elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let sized = shape.and_then(|shape| n_elements(&shape).map(|n| (shape, n)));
    let fits = |(_, n): &(Vec<usize>, usize)| n_words(format, *n) == Some(words.len());
    let Some((shape, n)) = sized.filter(fits) else {
        return Err(format!("{} words do not hold the packed tensor that they name", words.len()));
    };
    let values = match format {
        MessageFormat::F32 => words.to_vec(),
        MessageFormat::Bf16 => Dtype::Bf16.to_f32(words.to_vec(), n),
        MessageFormat::Int8 => blocks::decode(words, n),
    };
    Ok((shape, values))
}

/// Number of words of `n` elements; `None` if they cannot be held.
fn n_words(format: MessageFormat, n: usize) -> Option<usize> {
    match format {
        MessageFormat::F32 => Some(n),
        MessageFormat::Bf16 => Dtype::Bf16.n_words(n),
        MessageFormat::Int8 => Some(blocks::n_words(n)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn formats() -> impl Iterator<Item = MessageFormat> {
        MessageFormat::ALL.into_iter().map(|(_, format)| format)
    }

    #[test]
    fn shapes_arrive() {
        for (format, shape) in formats().flat_map(|f| {
            [vec![], vec![0, 5], vec![3], vec![2, 3, 11], vec![1; MAX_DIMS]].map(|s| (f, s))
        }) {
            let n = shape.iter().product();
            let values: Vec<f32> = (0..n).map(|x| x as f32 * 0.5).collect();
            let words = pack(format, &shape, &mut values.clone());
            let (arrived, elements) = unpack(format, &words).expect("packed");
            assert_eq!((&arrived, elements.len()), (&shape, n), "{format:?}");
            let largest = values.iter().fold(0f32, |a, b| a.max(*b));
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= largest / 250.0;
            assert!(values.iter().zip(&elements).all(is_near), "{format:?}: {elements:?}");
        }
    }

    #[test]
    fn the_words_are_as_many_as_the_format_says() {
        let values = vec![1.0; 64 * 100];
        for format in formats() {
            let words = pack(format, &[6400], &mut values.clone());
            assert_eq!((words.len() - 3) as f64, 6400.0 * format.part(), "{format:?}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_unpacked_or_refused(words: Vec<u32>, n_dims in 0u32..4) {
            let mut words: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
            for format in formats() {
                let _ = unpack(format, &words);
            }
            if let Some(first) = words.first_mut() {
                *first = f32::from_bits(n_dims);
            }
            for format in formats() {
                let _ = unpack(format, &words);
            }
        }

        #[test]
        fn words_that_are_cut_are_refused(at in 0usize..20) {
            for format in formats() {
                let words = pack(format, &[2, 40], &mut [1.0; 80]);
                let cut = at.min(words.len() - 1);
                prop_assert!(unpack(format, &words[..cut]).is_err(), "{:?}", format);
            }
        }
    }
}

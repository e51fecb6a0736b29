//! Gradients sent between replicas in bf16, two in each word of f32.
//!
//! Tensors of words are ordinary tensors to every transport, so nothing else needs to know about
//! the packing. Parts and sums are also rounded where they are only added, not sent, so that all
//! replicas have the same bits.

use crate::device::{Device, Dtype, Result};

/// Packs the elements of `tensor`, rounded, into words. Waits for the device.
pub(crate) fn pack<D: Device>(device: &D, tensor: &D::Tensor) -> Result<D::Tensor> {
    let words = Dtype::Bf16.of_f32(device.download(tensor)?);
    device.upload_vec(&[words.len()], words)
}

pub(crate) fn unpack<D: Device>(device: &D, words: &D::Tensor, n: usize) -> Result<D::Tensor> {
    device.upload_vec(&[n], Dtype::Bf16.to_f32(device.download(words)?, n))
}

pub(crate) fn round<D: Device>(device: &D, tensor: &D::Tensor) -> Result<D::Tensor> {
    let values = device.download(tensor)?;
    let n = values.len();
    device.upload_vec(&[n], Dtype::Bf16.to_f32(Dtype::Bf16.of_f32(values), n))
}

/// Returns true if a word of f32 keeps its bits on a device.
pub(crate) fn keeps_words<D: Device>(device: &D) -> Result<bool> {
    Ok(device.dtype(&device.zeros(&[1])?) == Dtype::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_the_nearest_numbers() {
        let values = [1.0, -2.5, 1.003_906_3, 1.011_718_8, f32::MAX, f32::INFINITY, -0.0];
        let words = Dtype::Bf16.of_f32(values.to_vec());
        assert_eq!(words.len(), 4);
        // Ties round to even.
        let nearest = [1.0, -2.5, 1.0, 1.015_625, f32::INFINITY, f32::INFINITY, -0.0];
        assert_eq!(bits(Dtype::Bf16.to_f32(words, 7)), bits(nearest.to_vec()));
        let not_a_number = f32::from_bits(0x7F80_0001);
        assert!(Dtype::Bf16.to_f32(Dtype::Bf16.of_f32(vec![not_a_number]), 1)[0].is_nan());
    }

    fn bits(values: Vec<f32>) -> Vec<u32> {
        values.into_iter().map(f32::to_bits).collect()
    }
}

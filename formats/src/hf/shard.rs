//! One file of weights, with values converted to f32.

use std::path::Path;

use anyhow::{Context, Result, bail};
use safetensors::tensor::{Dtype, TensorInfo};

use crate::files::tensors::{TensorFile, of_bf16};

/// A file of weights whose header was read.
pub(crate) struct ShardFile {
    file: TensorFile,
}

impl ShardFile {
    /// Reads the header.
    pub(crate) fn open(path: &Path) -> Result<ShardFile> {
        let file = TensorFile::open(path).with_context(|| path.display().to_string());
        Ok(ShardFile { file: file? })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns all tensors with their names, in the order of the file.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        self.file.tensors()
    }

    /// Returns the tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.file.tensor(name)
    }

    /// Returns the values of a tensor of this file, row-major.
    pub(crate) fn values(&self, name: &str, tensor: &TensorInfo) -> Result<Vec<f32>> {
        let place = || format!("{}: {name}", self.path().display());
        let values = match tensor.dtype {
            Dtype::F32 => self.file.values(tensor, f32::from_le_bytes),
            Dtype::F16 => self.file.values(tensor, |bytes| of_f16(u16::from_le_bytes(bytes))),
            Dtype::BF16 => self.file.values(tensor, of_bf16),
            other => bail!("{} is of type {other:?}: F32, F16 and BF16 can be read", place()),
        };
        let values = values.with_context(place)?;
        let unsound = values.iter().position(|value| !value.is_finite());
        if let Some(position) = unsound {
            bail!(
                "{}: element {position} is {}, not a number to compute with",
                place(),
                values[position]
            );
        }
        Ok(values)
    }
}

/// Returns the relative distance of a number to its nearest neighbour in a type, and the least absolute distance.
pub(super) fn precision(dtype: Dtype) -> [f32; 2] {
    match dtype {
        Dtype::F16 => [2f32.powi(-10), 2f32.powi(-24)],
        Dtype::BF16 => [2f32.powi(-7), f32::MIN_POSITIVE],
        _ => [0.0, 0.0],
    }
}

/// Returns the number with these bits in half precision.
fn of_f16(bits: u16) -> f32 {
    let [sign, magnitude] = [bits >> 15, bits & 0x7FFF].map(u32::from);
    let infinity = 0x7C00;
    // The fraction is 13 bits shorter than that of f32, and exponents count from 15 instead of 127.
    let value = if magnitude < infinity {
        f32::from_bits(magnitude << 13) * 2f32.powi(127 - 15)
    } else {
        f32::from_bits(f32::INFINITY.to_bits() | (magnitude - infinity) << 13)
    };
    f32::from_bits(value.to_bits() | sign << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_two_bytes_are_read() {
        for bits in 0..=u16::MAX {
            let known = [half::f16::from_bits(bits).to_f32(), half::bf16::from_bits(bits).to_f32()];
            for (ours, known) in [of_f16(bits), of_bf16(bits.to_le_bytes())].into_iter().zip(known)
            {
                assert!(
                    ours.to_bits() == known.to_bits() || ours.is_nan() && known.is_nan(),
                    "{bits:x}"
                );
            }
        }
    }
}

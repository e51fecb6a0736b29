//! One file of weights, with values that can be computed with.

use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorInfo};

use crate::formats::files::tensors::TensorFile;

/// A file of weights, whose header was read.
pub(super) struct ShardFile {
    file: TensorFile,
}

impl ShardFile {
    /// Reads the header.
    pub(super) fn open(path: &Path) -> Result<ShardFile> {
        let file = TensorFile::open(path).map_err(Error::msg);
        Ok(ShardFile { file: file.with_context(|| path.display().to_string())? })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// All tensors with their names, in the order of the file.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        self.file.tensors()
    }

    /// The values of a tensor of this file, row-major.
    pub(super) fn values(&self, name: &str, tensor: &TensorInfo) -> Result<Vec<f32>> {
        let place = || format!("{}: {name}", self.path().display());
        let values = match tensor.dtype {
            Dtype::F32 => self.file.values(tensor, f32::from_le_bytes),
            Dtype::F16 => self.file.values(tensor, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => self.file.values(tensor, |bytes| bf16::from_le_bytes(bytes).to_f32()),
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

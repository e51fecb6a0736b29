//! One safetensors file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// Longer headers are refused before they are read. The largest model that is allowed needs a tenth.
const MAX_HEADER_BYTES: u64 = 1 << 26;
/// What the length of the header takes.
const LENGTH_BYTES: u64 = 8;

/// A file whose header was read, and agrees with its size.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    /// Where the values begin.
    start: u64,
    /// By name, in the order of the file.
    pub(super) tensors: Vec<(String, TensorInfo)>,
}

impl Shard {
    /// Reads the header.
    pub(super) fn open(path: &Path) -> Result<Shard> {
        Shard::read_header(path).with_context(|| path.display().to_string())
    }

    fn read_header(path: &Path) -> Result<Shard> {
        let metadata = path.metadata()?;
        ensure!(metadata.is_file(), "not a regular file");
        let mut file = File::open(path)?;
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).context("no safetensors file: it is too short")?;
        let length = u64::from_le_bytes(length);
        let start = LENGTH_BYTES.saturating_add(length);
        ensure!(
            length <= MAX_HEADER_BYTES && start <= metadata.len(),
            "no safetensors file, or torn: its header would have {length} bytes, and the file has {}",
            metadata.len()
        );
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header)?;
        // Parsing checks that the tensors fill the rest without a gap.
        let header: Metadata = serde_json::from_slice(&header).context("the header")?;
        let end = start + header.data_len() as u64;
        ensure!(
            end == metadata.len(),
            "torn: its tensors end at byte {end}, and the file has {}",
            metadata.len()
        );
        let names = header.offset_keys().into_iter();
        let tensors = names.filter_map(|name| Some((name.clone(), header.info(&name)?.clone())));
        Ok(Shard { path: path.to_path_buf(), start, tensors: tensors.collect() })
    }

    /// The values of a tensor of this file, row-major.
    pub(super) fn values(&self, name: &str, tensor: &TensorInfo) -> Result<Vec<f32>> {
        let place = || format!("{}: {name}", self.path.display());
        let values = match tensor.dtype {
            Dtype::F32 => self.read(tensor, f32::from_le_bytes),
            Dtype::F16 => self.read(tensor, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => self.read(tensor, |bytes| bf16::from_le_bytes(bytes).to_f32()),
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

    /// Reads a tensor piece by piece, so that it is never held twice.
    fn read<const WIDTH: usize>(
        &self,
        tensor: &TensorInfo,
        value: impl Fn([u8; WIDTH]) -> f32,
    ) -> Result<Vec<f32>> {
        let (begin, end) = tensor.data_offsets;
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start + begin as u64))?;
        let mut values = Vec::new();
        values.try_reserve_exact((end - begin) / WIDTH)?;
        let mut buffer = [0; 1 << 16];
        let mut left = end - begin;
        while left > 0 {
            let piece = &mut buffer[..left.min(1 << 16)];
            file.read_exact(piece)?;
            values.extend(piece.as_chunks().0.iter().map(|bytes| value(*bytes)));
            left -= piece.len();
        }
        Ok(values)
    }
}

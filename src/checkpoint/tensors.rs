//! Tensors in safetensors files: written without a second copy, read one by one.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Error, Read, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::disk::CHUNK;
use super::{Disk, Unusable, Written};

/// Longer headers are refused before they are read.
const MAX_HEADER: u64 = 1 << 26;

/// A tensor to be written: its name, extents, and values, row-major.
pub(super) struct Named<'v> {
    pub(super) name: String,
    pub(super) shape: &'v [usize],
    pub(super) values: &'v [f32],
}

/// A tensor that holds what no checkpoint may hold.
#[derive(thiserror::Error, Debug)]
#[error("{0} is not finite")]
pub(super) struct NotFinite(String);

/// Writes f32 tensors in the order of their names. All that is to be done with a value is done while it is in
/// the cache.
///
/// # Errors
/// Also [`NotFinite`].
pub(super) fn write(disk: &Disk, path: &Path, mut tensors: Vec<Named<'_>>) -> Result<Written> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += size_of_val(tensor.values);
        let (dtype, shape) = (Dtype::F32, tensor.shape.to_vec());
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let header = Metadata::new(None, infos.collect()).map_err(Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' '); // values begin aligned
    disk.write(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in &tensors {
            for values in tensor.values.chunks(CHUNK / size_of::<f32>()) {
                if !is_finite(values) {
                    return Err(Error::other(NotFinite(tensor.name.clone())));
                }
                out.write_all(&bytes(values))?;
            }
        }
        Ok(())
    })
}

/// As safetensors keeps them: little-endian.
pub(crate) fn bytes(values: &[f32]) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => bytemuck::cast_slice(values).into(),
        false => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Without a branch for each value, so that it takes many at once: one more makes an exponent of ones overflow
/// into the sign.
fn is_finite(values: &[f32]) -> bool {
    const SIGN: u32 = 1 << 31;
    const EXPONENT: u32 = 1 << (f32::MANTISSA_DIGITS - 1);
    let overflow = |value: &f32| (value.to_bits() & !SIGN) + EXPONENT;
    values.iter().map(overflow).fold(0, |any, one| any | one) & SIGN == 0
}

/// A file whose header has been read.
pub(super) struct TensorFile {
    path: PathBuf,
    header: Metadata,
    /// Where the values begin.
    start: u64,
}

impl TensorFile {
    /// Reads the header; it must account for every byte of the file.
    pub(super) fn open(path: &Path) -> std::result::Result<TensorFile, Unusable> {
        let unusable = |reason: &dyn ToString| Unusable::new(path, reason.to_string());
        let mut file = File::open(path).map_err(|e| unusable(&e))?;
        let size = file.metadata().map_err(|e| unusable(&e))?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| unusable(&"it has no header"))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER.min(size.saturating_sub(8)) {
            return Err(unusable(&format!("a header of {length} bytes is too long")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(|e| unusable(&e))?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| unusable(&format!("its header cannot be read: {e}")))?;
        let start = 8 + length;
        if Some(size) != start.checked_add(header.data_len() as u64) {
            return Err(unusable(&format!("its header does not account for its {size} bytes")));
        }
        Ok(TensorFile { path: path.to_path_buf(), header, start })
    }

    /// Names and extents, by name.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        self.header.tensors().into_iter().map(|(name, info)| (name, info.shape.clone()))
    }

    /// The values of a tensor, row-major; `shape` must be its own.
    pub(super) fn read(
        &self,
        name: &str,
        shape: &[usize],
    ) -> std::result::Result<Vec<f32>, Unusable> {
        let unusable = |reason: String| Unusable::new(&self.path, reason);
        let info =
            self.header.info(name).ok_or_else(|| unusable(format!("{name} is not there")))?;
        if info.dtype != Dtype::F32 || info.shape != shape {
            let found = format!("{name} is {:?} of shape {:?}", info.dtype, info.shape);
            return Err(unusable(format!("{found}, not F32 of shape {shape:?}")));
        }
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.start + start as u64))?;
            file.read_exact(&mut bytes)
        });
        read.map_err(|e| unusable(format!("{name}: {e}")))?;
        let (values, _) = bytes.as_chunks();
        Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
    }
}

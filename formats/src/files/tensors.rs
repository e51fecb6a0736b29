//! Tensors in safetensors files: written without a second copy, read one by one.

pub(crate) mod types;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use chimera_core::device::{Dtype, Elements};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use safetensors::tensor::{Metadata, TensorInfo};

use super::disk::{CHUNK, Disk, Written};
use super::io_fault;
use types::{in_file, of_file};

/// Longer headers are refused before they are read. The largest allowed model needs a tenth of this.
const MAX_HEADER_BYTES: u64 = 1 << 26;
/// Bytes of the length of the header.
const LENGTH_BYTES: u64 = 8;

/// A tensor to be written: its name, extents, and elements, row-major.
pub(crate) struct NamedTensor<'v> {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: Dtype,
    /// Words of that type.
    pub(crate) words: &'v [f32],
}

impl<'v> NamedTensor<'v> {
    /// Returns a tensor of f32.
    pub(crate) fn new(name: String, shape: Vec<usize>, words: &'v [f32]) -> NamedTensor<'v> {
        NamedTensor { name, shape, dtype: Dtype::F32, words }
    }
}

/// The error for a tensor with values that are not finite.
#[derive(thiserror::Error, Debug)]
#[error("{0} is not finite")]
struct NotFinite(String);

/// Writes tensors in the order of their names, with additional header entries. Each value is
/// checked, hashed and written while it is in the cache.
///
/// # Errors
/// If the file cannot be written, or a value is not finite; [`fault`] tells the two apart.
pub(crate) fn write(
    disk: &Disk,
    path: &Path,
    mut tensors: Vec<NamedTensor<'_>>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Written> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.n_bytes();
        let (dtype, shape) = in_file(tensor);
        (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let header = Metadata::new(metadata, infos.collect()).map_err(Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' '); // aligns the values
    disk.write(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in &tensors {
            let mut left = tensor.n_bytes();
            for words in tensor.words.chunks(CHUNK / size_of::<f32>()) {
                if !tensor.dtype.is_finite(words) {
                    return Err(Error::other(NotFinite(tensor.name.clone())));
                }
                let bytes = bytes(words);
                out.write_all(&bytes[..left.min(bytes.len())])?; // the last word may be half used
                left = left.saturating_sub(bytes.len());
            }
        }
        Ok(())
    })
}

/// Returns the fault for a [`write`] that failed; `outcome` describes the consequence.
pub(crate) fn fault(what: &str, path: &Path, error: &Error, outcome: &str) -> Fault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<NotFinite>()) {
        Some(unsound) => Fault::new(Class::NonFinite, Rank(0), format!("{unsound}: {outcome}")),
        None => io_fault(what, path, error),
    }
}

/// Returns the bytes as safetensors keeps them: little-endian.
pub fn bytes(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        bytemuck::cast_slice(values).into()
    } else {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }
}

/// A file whose header was read, and agrees with its size.
pub(crate) struct TensorFile {
    path: PathBuf,
    header: Metadata,
    /// Offset of the values.
    start: u64,
}

impl TensorFile {
    /// Reads the header, which must account for every byte of the file.
    ///
    /// # Errors
    /// The system's error, or an error without an OS error number, which describes the problem of the file.
    pub(crate) fn open(path: &Path) -> Result<TensorFile> {
        let metadata = path.metadata()?;
        if !metadata.is_file() {
            return Err(Error::other("it is not a regular file"));
        }
        let (size, mut file) = (metadata.len(), File::open(path)?);
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => Error::other("it has no header of safetensors"),
            _ => e,
        })?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES.min(size.saturating_sub(LENGTH_BYTES)) {
            return Err(Error::other(format!(
                "it is torn, or not of safetensors: a header of {length} bytes is too long, and the file has {size}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header)?;
        // Parsing checks that the tensors follow each other without a gap.
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| Error::other(format!("its header cannot be read: {e}")))?;
        let start = LENGTH_BYTES + length;
        let end = u128::from(start) + header.data_len() as u128; // the sum of false lengths may exceed 64 bits
        if end != size.into() {
            return Err(Error::other(format!(
                "it is torn: its header does not account for its {size} bytes, but for {end}"
            )));
        }
        Ok(TensorFile { path: path.to_path_buf(), header, start })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all tensors with their names, in the order of the file.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        let names = self.header.offset_keys().into_iter();
        names.filter_map(|name| self.tensor(&name).map(|tensor| (name, tensor)))
    }

    /// Returns the tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Returns the elements of a tensor of this file, row-major. Types that a device computes in
    /// stay as they are, except that bf16 becomes f32. Returns `None` if they are of another type.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn elements(&self, tensor: &TensorInfo) -> Result<Option<Elements>> {
        let Some(dtype) = of_file(tensor.dtype) else { return Ok(None) };
        let words = match dtype {
            Dtype::Bf16 => return Ok(Some(self.values(tensor, of_bf16)?.into())),
            _ => self.values(tensor, f32::from_le_bytes)?,
        };
        Ok(Some(Elements { dtype, words }))
    }

    /// Returns the values of a tensor of this file, row-major, each from `WIDTH` bytes. They are
    /// read piece by piece, so that they are never held twice.
    pub(crate) fn values<const WIDTH: usize>(
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

/// Returns the number whose upper half these bytes are.
pub(crate) fn of_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << u16::BITS)
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use super::*;

    /// A checkpoint is put aside if its files are torn, and not if the system cannot read them.
    #[test]
    fn errors_of_the_system_are_told_from_torn_files() {
        let folder = tempfile::tempdir().unwrap();
        let torn = folder.path().join("torn");
        let error = |path: &Path| TensorFile::open(path).err().expect("no file of tensors");
        for (bytes, why) in [
            (&b"short"[..], "it has no header of safetensors"),
            (&[255; 16][..], "it is torn, or not of safetensors"),
            (
                &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}', 0][..],
                "it is torn: its header does not account",
            ),
        ] {
            write(&torn, bytes).unwrap();
            let error = error(&torn);
            assert!(
                error.raw_os_error().is_none() && error.to_string().starts_with(why),
                "{error}"
            );
        }
        assert!(error(&torn.join("of_a_file")).raw_os_error().is_some());
    }
}

//! Types of elements in files. A packed matrix is stored as a row of words, which include its
//! shape.

use chimera_core::device::{Dtype, Elements, Packed};
use safetensors::Dtype as InFile;
use safetensors::tensor::TensorInfo;

use super::{NamedTensor, TensorFile};

/// Returns the type and the shape of a tensor in a file.
pub(super) fn in_file(tensor: &NamedTensor<'_>) -> (InFile, Vec<usize>) {
    let dtype = match tensor.dtype {
        Dtype::Packed => return (InFile::U32, vec![tensor.words.len()]),
        Dtype::Bf16 => InFile::BF16,
        Dtype::F64 => InFile::F64,
        _ => InFile::F32,
    };
    (dtype, tensor.shape.clone())
}

/// Returns the type of elements that have this one in a file, if a device computes in it.
pub(super) fn of_file(dtype: InFile) -> Option<Dtype> {
    match dtype {
        InFile::F32 => Some(Dtype::F32),
        InFile::BF16 => Some(Dtype::Bf16),
        InFile::F64 => Some(Dtype::F64),
        InFile::U32 => Some(Dtype::Packed),
        _ => None,
    }
}

impl NamedTensor<'_> {
    /// Returns its bytes in a file.
    pub(super) fn n_bytes(&self) -> usize {
        match self.dtype {
            Dtype::Bf16 => 2 * self.shape.iter().product::<usize>(),
            _ => size_of_val(self.words),
        }
    }
}

impl TensorFile {
    /// Returns all tensors with their shapes, in the order of the file.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        self.tensors().map(|(name, tensor)| (name, self.shape(tensor)))
    }

    /// Returns the shape of a tensor, also of a packed matrix.
    fn shape(&self, tensor: &TensorInfo) -> Vec<usize> {
        let packed = (tensor.dtype == InFile::U32).then(|| self.elements(tensor));
        let packed = packed.and_then(|read| read.ok().flatten());
        let bytes = packed.map(|elements| elements.bytes()).unwrap_or_default();
        let shape = Packed::read(&bytes).map(|packed| packed.matrix.shape.to_vec());
        shape.unwrap_or_else(|| tensor.shape.clone())
    }
}

/// Returns elements of a tensor of this shape in a type that other programs read.
pub(crate) fn unpacked(elements: Elements, shape: &[usize]) -> Elements {
    match elements.dtype {
        Dtype::Packed => elements.to_f32(shape.iter().product()).into(),
        _ => elements,
    }
}

/// Returns true if elements, whose tensor in the file is `found`, are those of a tensor of this
/// shape.
pub(crate) fn is_of(elements: &Elements, found: &TensorInfo, shape: &[usize]) -> bool {
    match elements.dtype {
        Dtype::Packed => elements.dtype.fits(&elements.words, shape.iter().product()),
        _ => found.shape == shape,
    }
}

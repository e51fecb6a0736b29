//! The format in which a frozen matrix is held.

use super::Param;
use crate::device::{Device, Dtype, Elements, MatrixShape, Packed, Packing, Result, WeightFormat};

impl Param {
    /// Holds a frozen matrix of a linear layer in this format; other parameters stay in f32. The
    /// layer consists of linear maps with these numbers of outputs.
    pub fn packed(self, format: WeightFormat, maps: Vec<usize>) -> Param {
        let is_apt = self.frozen && self.matrix().is_some() && format != WeightFormat::F32;
        Param { packing: is_apt.then_some(Packing { format, maps }), ..self }
    }

    /// Bytes of its weights, if an element that is not packed has `element`.
    pub fn held_bytes(&self, element: f64) -> f64 {
        let packed = self.packing.as_ref().zip(self.matrix());
        let unpacked = || self.n_elements() as f64 * element;
        packed.map_or_else(unpacked, |(packing, matrix)| packing.n_bytes(matrix) as f64)
    }

    /// Returns values, row-major, as they are held: rounded if its format is not f32.
    pub(super) fn held_values(&self, values: Vec<f32>) -> Vec<f32> {
        match self.packing.as_ref().zip(self.matrix()) {
            None => values,
            Some((packing, matrix)) => packing.pack(matrix, &values).to_f32(values.len()),
        }
    }

    /// Uploads values, row-major, in its format. A device without packed matrices gets the values
    /// that it stands for.
    pub(crate) fn upload<D: Device>(&self, device: &D, values: Vec<f32>) -> Result<D::Tensor> {
        match self.packing.as_ref().zip(self.matrix()) {
            None => device.upload(&self.shape, &values),
            Some((packing, matrix)) => {
                let Elements { dtype, words } = packing.pack(matrix, &values);
                device.upload_words(&self.shape, dtype, words)
            }
        }
    }

    /// Returns elements in its format.
    ///
    /// # Errors
    /// If they are of another number or format; the error says which.
    pub(crate) fn fitted(&self, elements: Elements) -> std::result::Result<Elements, String> {
        let (n, n_words) = (self.n_elements(), elements.words.len());
        if !elements.dtype.fits(&elements.words, n) {
            let dtype = elements.dtype;
            return Err(format!(
                "{} has {n_words} words of {dtype:?}, not {n} elements",
                self.name
            ));
        }
        let Some((packing, matrix)) = self.packing.as_ref().zip(self.matrix()) else {
            return match elements.dtype {
                Dtype::Packed => Ok(elements.to_f32(n).into()),
                _ => Ok(elements),
            };
        };
        if elements.dtype != Dtype::Packed {
            return Ok(packing.pack(matrix, &elements.to_f32(n)));
        }
        let bytes = elements.bytes();
        match Packed::read(&bytes) {
            Some(packed) if packed.packing() == *packing && packed.matrix == matrix => Ok(elements),
            _ => {
                let format = packing.format.name();
                Err(format!("{} is packed, but not in {format} of its shape", self.name))
            }
        }
    }

    /// Returns the shape of the matrix of a linear layer.
    fn matrix(&self) -> Option<MatrixShape> {
        let shape = self.shape[..].try_into().ok()?;
        Some(MatrixShape { shape, inputs_first: self.shown.as_ref()?.inputs_first })
    }
}

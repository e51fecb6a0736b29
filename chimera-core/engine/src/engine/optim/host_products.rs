//! Matrix products of a device for rules that update on the host.

use crate::device::reference::Tensor;
use crate::device::{Device, Dtype, Elements, Products, Result, products_of};

/// The products of a device, of values on the host.
pub(super) struct OnHost<'d, D> {
    pub(super) device: &'d D,
    /// Type of the elements on the device.
    pub(super) dtype: Dtype,
}

impl<D: Device> OnHost<'_, D> {
    fn upload(&self, x: &Tensor) -> Result<D::Tensor> {
        let words = Elements::of_f64(self.dtype, &x.data).words;
        self.device.upload_words(&x.shape, self.dtype, words)
    }

    fn download(&self, x: &D::Tensor) -> Result<Tensor> {
        let (shape, mut words) = (self.device.shape(x), Vec::new());
        self.device.download_words(x, &mut words)?;
        let elements = Elements { dtype: self.device.dtype(x), words };
        Ok(Tensor::new(&shape, elements.to_f64(shape.iter().product())))
    }
}

impl<D: Device> Products<Tensor> for OnHost<'_, D> {
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let products = products_of(self.device)?;
        self.download(&products.product(&self.upload(a)?, &self.upload(b)?)?)
    }

    fn newton_schulz(&self, x: &Tensor, coefficients: [f64; 3], n: usize) -> Result<Tensor> {
        let products = products_of(self.device)?;
        self.download(&products.newton_schulz(&self.upload(x)?, coefficients, n)?)
    }
}

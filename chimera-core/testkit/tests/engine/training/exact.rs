//! The reference device, with values that go to the host and back as f64.

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{Device, Dtype, Elements, Products, Result};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact;

impl Device for Exact {
    type Tensor = Tensor;

    fn name(&self) -> String {
        "reference, exact".into()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        Reference.upload(shape, data)
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        Reference.download(tensor)
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        Reference.zeros(shape)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        Reference.shape(tensor)
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Reference.rows(tensor, start, len)
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Reference.reshape(tensor, shape)
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        Reference.join(tensors)
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        Reference.accumulate(into, x)
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        Reference.squared_norms(tensors)
    }

    fn dtype(&self, _: &Tensor) -> Dtype {
        Dtype::F64
    }

    fn download_words(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<()> {
        into.extend(Elements::of_f64(Dtype::F64, &tensor.data).words);
        Ok(())
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Tensor> {
        let data = Elements { dtype, words }.to_f64(shape.iter().product());
        Ok(Tensor::new(shape, data))
    }

    fn products(&self) -> Option<&dyn Products<Tensor>> {
        Some(self)
    }
}

impl Products<Tensor> for Exact {
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Reference.product(a, b)
    }

    fn newton_schulz(&self, x: &Tensor, coefficients: [f64; 3], n: usize) -> Result<Tensor> {
        Reference.newton_schulz(x, coefficients, n)
    }
}

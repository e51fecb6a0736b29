//! A device of the required functions alone conforms: the defaults of the others are right.

use chimera_core::device::reference::{Reference, Tensor};
use chimera_core::device::{Device, Result, conformance};

#[derive(Clone)]
struct Least;

impl Device for Least {
    type Tensor = Tensor;

    fn name(&self) -> String {
        "least".into()
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
}

#[test]
fn the_required_functions_suffice() {
    conformance::run(&Least, 1e-5);
}

//! Recording of `Device` calls.

use super::Recorded;
use crate::device::{
    AdamW, Asynchronous, Clock, Device, Dtype, Elements, Result, Sgd, Updated, WithMomentum,
};

impl<D: Device> Device for Recorded<D> {
    type Tensor = D::Tensor;

    fn name(&self) -> String {
        self.device.name()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<D::Tensor> {
        self.device.upload(shape, data)
    }

    fn download(&self, tensor: &D::Tensor) -> Result<Vec<f32>> {
        self.device.download(tensor)
    }

    fn zeros(&self, shape: &[usize]) -> Result<D::Tensor> {
        self.call("zeros", &[shape.iter().product()], |device| device.zeros(shape))
    }

    fn shape(&self, tensor: &D::Tensor) -> Vec<usize> {
        self.device.shape(tensor)
    }

    fn rows(&self, tensor: &D::Tensor, start: usize, len: usize) -> Result<D::Tensor> {
        self.device.rows(tensor, start, len)
    }

    fn reshape(&self, tensor: &D::Tensor, shape: &[usize]) -> Result<D::Tensor> {
        self.device.reshape(tensor, shape)
    }

    fn join(&self, tensors: &[&D::Tensor]) -> Result<D::Tensor> {
        let n = self.n_elements(tensors.iter().copied());
        self.call("join", &[n], |device| device.join(tensors))
    }

    fn accumulate(&self, into: &mut D::Tensor, x: &D::Tensor) -> Result<()> {
        let n = self.n_elements([x]);
        self.call("accumulate", &[n], |device| device.accumulate(into, x))
    }

    fn squared_norms(&self, tensors: &[&D::Tensor]) -> Result<D::Tensor> {
        let n = self.n_elements(tensors.iter().copied());
        self.call("squared_norms", &[n], |device| device.squared_norms(tensors))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, D::Tensor>], by: &AdamW) -> Result<()> {
        let n = self.n_elements(tensors.iter().map(|tensor| tensor.g));
        self.call("adamw", &[n], |device| device.adamw(tensors, by))
    }

    fn lamb(&self, tensors: &mut [Updated<'_, D::Tensor>], by: &AdamW) -> Result<()> {
        let n = self.n_elements(tensors.iter().map(|tensor| tensor.g));
        self.call("lamb", &[n], |device| device.lamb(tensors, by))
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, D::Tensor>], by: &Sgd) -> Result<()> {
        let n = self.n_elements(tensors.iter().map(|tensor| tensor.g));
        self.call("sgd", &[n], |device| device.sgd(tensors, by))
    }

    fn bytes(&self, tensor: &D::Tensor) -> u64 {
        self.device.bytes(tensor)
    }

    fn dtype(&self, tensor: &D::Tensor) -> Dtype {
        self.device.dtype(tensor)
    }

    fn download_words(&self, tensor: &D::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.device.download_words(tensor, into)
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<D::Tensor> {
        self.device.upload_words(shape, dtype, words)
    }

    fn upload_vec(&self, shape: &[usize], data: Vec<f32>) -> Result<D::Tensor> {
        self.device.upload_vec(shape, data)
    }

    fn download_into(&self, tensor: &D::Tensor, into: &mut Vec<f32>) -> Result<()> {
        self.device.download_into(tensor, into)
    }

    fn download_all(&self, tensors: &[&D::Tensor]) -> Result<Vec<Elements>> {
        self.device.download_all(tensors)
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        self.device.clock()
    }

    fn asynchronous(&self) -> Option<&dyn Asynchronous<D::Tensor>> {
        self.device.asynchronous()
    }
}

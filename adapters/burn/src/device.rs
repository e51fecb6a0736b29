//! A burn device for the engine.

use burn::tensor::{DType, Device as BurnDevice, Element, FloatDType, Tensor, TensorData};
use chimera_core::device::{Device, DeviceError, Dtype, Elements, Result};

/// A burn device with a single element type.
#[derive(Clone, Debug)]
pub struct Burn {
    device: BurnDevice,
    dtype: DType,
}

impl Burn {
    /// Creates a device for tensors of `dtype` on `device`.
    pub fn new(device: BurnDevice, dtype: FloatDType) -> Burn {
        Burn { device: device.without_autodiff(), dtype: dtype.into() }
    }

    /// Returns burn's device.
    pub fn device(&self) -> &BurnDevice {
        &self.device
    }

    /// Returns a tensor of these values, such as the inputs of samples.
    pub fn tensor<E: Element, const D: usize>(&self, values: &[E], shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), (&self.device, self.dtype))
    }

    fn array<T: Element>(&self, shape: &[usize], values: Vec<T>) -> Array {
        let n = values.len();
        let data = TensorData::new(values, [n]);
        Array { flat: Tensor::from_data(data, (&self.device, self.dtype)), shape: shape.into() }
    }

    fn values<T: Element>(&self, op: &'static str, x: &Array) -> Result<Vec<T>> {
        let failed = |reason| DeviceError::Failed { device: self.name(), op, reason };
        x.flat.try_to_vec_as().map_err(|e| failed(e.to_string()))
    }
}

/// A tensor with any number of dimensions, which burn's tensors have in their type.
#[derive(Clone, Debug)]
pub struct Array {
    pub(crate) flat: Tensor<1>,
    shape: Vec<usize>,
}

impl Array {
    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the tensor, which must have `D` dimensions.
    ///
    /// # Panics
    /// If the tensor has a different number of dimensions.
    pub fn tensor<const D: usize>(&self) -> Tensor<D> {
        assert_eq!(self.shape.len(), D, "extents of {:?}", self.shape);
        self.flat.clone().reshape(std::array::from_fn::<usize, D, _>(|i| self.shape[i]))
    }

    /// Returns a tensor of these elements in the shape of this one.
    pub(crate) fn alike(&self, flat: Tensor<1>) -> Array {
        Array { flat, shape: self.shape.clone() }
    }

    /// Returns this tensor as a leaf of the autodiff graph, with a gradient if `is_wanted`.
    pub(crate) fn leaf(&self, is_wanted: bool) -> Array {
        self.alike(self.flat.clone().autodiff().set_require_grad(is_wanted))
    }

    /// Returns this tensor without its autodiff graph.
    pub(crate) fn detached(&self) -> Array {
        self.alike(self.flat.clone().without_autodiff())
    }
}

impl<const D: usize> From<Tensor<D>> for Array {
    fn from(tensor: Tensor<D>) -> Array {
        let shape = tensor.dims().to_vec();
        Array { flat: tensor.reshape([shape.iter().product::<usize>()]), shape }
    }
}

impl Device for Burn {
    type Tensor = Array;

    fn name(&self) -> String {
        format!("burn's {:?} in {:?}", self.device, self.dtype)
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Array> {
        Ok(self.array(shape, data.to_vec()))
    }

    fn download(&self, x: &Array) -> Result<Vec<f32>> {
        self.values("download", x)
    }

    fn zeros(&self, shape: &[usize]) -> Result<Array> {
        let flat = Tensor::zeros([shape.iter().product::<usize>()], (&self.device, self.dtype));
        Ok(Array { flat, shape: shape.into() })
    }

    fn shape(&self, x: &Array) -> Vec<usize> {
        x.shape.clone()
    }

    fn rows(&self, x: &Array, start: usize, len: usize) -> Result<Array> {
        let width: usize = x.shape[1..].iter().product();
        let flat = x.flat.clone().slice(start * width..(start + len) * width);
        Ok(Array { flat, shape: [&[len], &x.shape[1..]].concat() })
    }

    fn reshape(&self, x: &Array, shape: &[usize]) -> Result<Array> {
        Ok(Array { flat: x.flat.clone(), shape: shape.into() })
    }

    fn join(&self, all: &[&Array]) -> Result<Array> {
        let n = all.iter().map(|x| x.shape[0]).sum();
        let flat = Tensor::cat(all.iter().map(|x| x.flat.clone()).collect(), 0);
        Ok(Array { flat, shape: [&[n], &all[0].shape[1..]].concat() })
    }

    fn accumulate(&self, into: &mut Array, x: &Array) -> Result<()> {
        into.flat.inplace(|into| into + x.flat.clone());
        Ok(())
    }

    fn squared_norms(&self, all: &[&Array]) -> Result<Array> {
        if all.is_empty() {
            return self.zeros(&[0]);
        }
        let squares = all.iter().map(|x| sum(x.flat.clone() * x.flat.clone()));
        Ok(Tensor::<1>::cat(squares.collect(), 0).into())
    }

    fn bytes(&self, x: &Array) -> u64 {
        (x.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }

    fn dtype(&self, _: &Array) -> Dtype {
        if self.dtype == DType::F64 { Dtype::F64 } else { Dtype::F32 }
    }

    fn download_words(&self, x: &Array, into: &mut Vec<f32>) -> Result<()> {
        into.extend(Elements::of_f64(self.dtype(x), &self.values("download_words", x)?).words);
        Ok(())
    }

    fn upload_words(&self, shape: &[usize], dtype: Dtype, words: Vec<f32>) -> Result<Array> {
        let values = Elements { dtype, words }.to_f64(shape.iter().product());
        Ok(self.array(shape, values))
    }
}

/// Sums in two levels: adding one element after the other would lose digits of f32.
fn sum(x: Tensor<1>) -> Tensor<1> {
    let n = x.dims()[0];
    let side = n.isqrt();
    if side < 2 {
        return x.sum();
    }
    let square = x.clone().slice(0..side * side).reshape([side, side]);
    square.sum_dim(1).sum() + x.slice(side * side..n).sum()
}

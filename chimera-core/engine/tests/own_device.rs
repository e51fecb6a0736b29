//! A custom device needs only the required functions of [`Device`]: no layers, and no replaced
//! defaults.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chimera_engine::device::{Device, Result, conformance};

#[test]
fn it_conforms() {
    conformance::run(&Own, 1e-5);
}

/// A device that computes in this thread, in f32.
#[derive(Clone)]
struct Own;

/// Elements that clones share.
#[derive(Clone)]
struct Tensor {
    shape: Vec<usize>,
    data: Arc<Mutex<Vec<f32>>>,
}

impl Tensor {
    fn new(shape: &[usize], data: Vec<f32>) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), data.len());
        Tensor { shape: shape.to_vec(), data: Arc::new(Mutex::new(data)) }
    }

    fn data(&self) -> MutexGuard<'_, Vec<f32>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn squared_norm(&self) -> f64 {
        self.data().iter().map(|x| f64::from(*x).powi(2)).sum()
    }
}

impl Device for Own {
    type Tensor = Tensor;

    fn name(&self) -> String {
        "a device of one's own".into()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        Ok(Tensor::new(shape, data.to_vec()))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        Ok(tensor.data().clone())
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::new(shape, vec![0.0; shape.iter().product()]))
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        let width: usize = tensor.shape[1..].iter().product();
        let shape = [&[len], &tensor.shape[1..]].concat();
        Ok(Tensor::new(&shape, tensor.data()[start * width..(start + len) * width].to_vec()))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor { shape: shape.to_vec(), ..tensor.clone() })
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let rows: usize = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let shape = [&[rows], &tensors[0].shape[1..]].concat();
        let data = tensors.iter().flat_map(|tensor| tensor.data().clone());
        Ok(Tensor::new(&shape, data.collect()))
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        let x = x.data().clone(); // it may share the memory
        into.data().iter_mut().zip(x).for_each(|(into, x)| *into += x);
        Ok(())
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let norms = tensors.iter().map(|tensor| tensor.squared_norm() as f32);
        Ok(Tensor::new(&[tensors.len()], norms.collect()))
    }
}

//! A device of one's own needs the required functions of [`Device`] alone: no layers, and no default replaced.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chimera_core::device::{AdamW, Device, Result, Sgd, Updated, conformance};

#[test]
fn it_conforms() {
    conformance::run(&Own, 1e-5);
}

/// This thread, in f32.
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
        let x = x.data().clone(); // it may be of the same memory
        into.data().iter_mut().zip(x).for_each(|(into, x)| *into += x);
        Ok(())
    }

    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let norms = tensors.iter().map(|tensor| tensor.squared_norm() as f32);
        Ok(Tensor::new(&[tensors.len()], norms.collect()))
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        for Updated { w, g, m, v } in tensors {
            for (w, u) in w.data().iter_mut().zip(direction(g, m, v, by)) {
                *w -= (by.lr * by.weight_decay) as f32 * *w;
                *w -= by.lr as f32 * u;
            }
        }
        Ok(())
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        for Updated { w, g, m, v } in tensors {
            let decay = by.weight_decay as f32;
            let mut d = direction(g, m, v, by);
            d.iter_mut().zip(&*w.data()).for_each(|(d, w)| *d += decay * w);
            let norms = (w.squared_norm().sqrt(), d.iter().map(|d| f64::from(*d).powi(2)).sum());
            let ratio = match norms {
                (w_norm, d_squared) if w_norm > 0.0 && d_squared > 0.0 => {
                    w_norm / f64::sqrt(d_squared)
                }
                _ => 1.0,
            };
            let rate = (by.lr * ratio) as f32;
            w.data().iter_mut().zip(d).for_each(|(w, d)| *w -= rate * d);
        }
        Ok(())
    }

    fn sgd(&self, tensors: &mut [Updated<'_, Tensor>], by: &Sgd) -> Result<()> {
        for Updated { w, g, m, .. } in tensors {
            for ((w, g), m) in w.data().iter_mut().zip(&*g.data()).zip(m.data().iter_mut()) {
                *m = by.momentum as f32 * *m + g * by.grad_scale as f32;
                *w -= (by.lr * by.weight_decay) as f32 * *w;
                *w -= by.lr as f32 * *m;
            }
        }
        Ok(())
    }
}

/// Adam's direction, whose moments it moves.
fn direction(g: &Tensor, m: &Tensor, v: &Tensor, by: &AdamW) -> Vec<f32> {
    let [beta1, beta2] = [by.beta1 as f32, by.beta2 as f32];
    let [bias1, bias2] = by.corrections().map(|bias| bias as f32);
    let [rest1, rest2] = [by.beta1, by.beta2].map(|beta| (1.0 - beta) as f32);
    let (g, mut m, mut v) = (g.data(), m.data(), v.data());
    let each = g.iter().zip(m.iter_mut().zip(v.iter_mut()));
    let each = each.map(|(g, (m, v))| {
        let g = g * by.grad_scale as f32;
        *m = beta1 * *m + rest1 * g;
        *v = beta2 * *v + rest2 * g * g;
        (*m / bias1) / ((*v / bias2).sqrt() + by.eps as f32)
    });
    each.collect()
}

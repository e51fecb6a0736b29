//! The slow, clear implementation: plain loops in f64, one function per formula. Its layers are in
//! [`layers`](crate::layers).
//!
//! It is the oracle of every other backend, and the device of tests that need more digits than f32
//! has. Nothing here is optimised, and nothing should be.

mod tensor;

pub use tensor::Tensor;

pub(crate) use tensor::{add, dot, log_sum_exp};

use super::{AdamW, Device, Products, Reload, Result, Sgd, Updated, WithMomentum};

/// The device. It computes on the calling thread, in f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Device for Reference {
    type Tensor = Tensor;

    fn name(&self) -> String {
        "reference (f64 loops)".into()
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        Ok(Tensor::new(shape, data.iter().map(|&x| x.into()).collect()))
    }

    /// Keeps the tensors where they are, since words of f32 would round them.
    fn offload(&self, tensors: Vec<Tensor>) -> Result<Reload<Self>> {
        Ok(Box::new(|_| Ok(tensors)))
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        Ok(tensor.data.iter().map(|&x| x as f32).collect())
    }

    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::zeros(shape))
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.shape.clone()
    }

    fn rows(&self, tensor: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        let mut shape = tensor.shape.clone();
        shape[0] = len;
        let width = tensor.width();
        let data = &tensor.data[start * width..][..len * width];
        Ok(Tensor::new(&shape, data.to_vec()))
    }

    fn reshape(&self, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::new(shape, tensor.data.clone()))
    }

    fn join(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let mut shape = tensors[0].shape.clone();
        shape[0] = tensors.iter().map(|x| x.n_rows()).sum();
        assert!(tensors.iter().all(|x| x.shape[1..] == shape[1..]), "join");
        Ok(Tensor::new(&shape, tensors.iter().flat_map(|x| &x.data).copied().collect()))
    }

    fn accumulate(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        assert_eq!(into.shape, x.shape, "accumulate");
        add(&mut into.data, 1.0, &x.data);
        Ok(())
    }

    /// `Σ x²`
    fn squared_norms(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let norms = tensors.iter().map(|x| dot(&x.data, &x.data)).collect();
        Ok(Tensor::new(&[tensors.len()], norms))
    }

    /// With `u` as returned by `adam`: `w ← w - lr weight_decay w - lr u`
    fn adamw(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        for Updated { w, g, m, v } in tensors {
            for (w, u) in w.data.iter_mut().zip(adam(g, m, v, by)) {
                *w -= by.lr * by.weight_decay * *w;
                *w -= by.lr * u;
            }
        }
        Ok(())
    }

    /// With `u` as returned by `adam` and `d = u + weight_decay w`: `w ← w - lr ‖w‖/‖d‖ d`; the
    /// ratio is 1 where a norm is 0
    fn lamb(&self, tensors: &mut [Updated<'_, Tensor>], by: &AdamW) -> Result<()> {
        for Updated { w, g, m, v } in tensors {
            let u = adam(g, m, v, by).into_iter();
            let d: Vec<f64> = u.zip(&w.data).map(|(u, w)| u + by.weight_decay * w).collect();
            let (w_norm, d_norm) = (dot(&w.data, &w.data).sqrt(), dot(&d, &d).sqrt());
            let ratio = if w_norm > 0.0 && d_norm > 0.0 { w_norm / d_norm } else { 1.0 };
            add(&mut w.data, -by.lr * ratio, &d);
        }
        Ok(())
    }

    /// `m ← momentum m + g`, `w ← w - lr weight_decay w - lr m`
    fn sgd(&self, tensors: &mut [WithMomentum<'_, Tensor>], by: &Sgd) -> Result<()> {
        for WithMomentum { w, g, m } in tensors {
            for ((w, g), m) in w.data.iter_mut().zip(&g.data).zip(&mut m.data) {
                *m = by.momentum * *m + g * by.grad_scale;
                *w -= by.lr * by.weight_decay * *w;
                *w -= by.lr * *m;
            }
        }
        Ok(())
    }

    fn products(&self) -> Option<&dyn Products<Tensor>> {
        Some(self)
    }
}

impl Products<Tensor> for Reference {
    fn product(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let of_row = |row: usize| (0..b.n_rows()).map(move |column| dot(a.row(row), b.row(column)));
        let data = (0..a.n_rows()).flat_map(of_row).collect();
        Ok(Tensor::new(&[a.n_rows(), b.n_rows()], data))
    }

    fn newton_schulz(
        &self,
        x: &Tensor,
        [a, b, c]: [f64; 3],
        n_iterations: usize,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        for _ in 0..n_iterations {
            let square = self.product(&x, &x)?;
            let mut sum = self.product(&square, &square)?.map(|x| c * x);
            add(&mut sum.data, b, &square.data);
            let mut next = self.product(&sum, &x.transposed())?;
            add(&mut next.data, a, &x.data);
            x = next;
        }
        Ok(x)
    }
}

/// `m ← β₁ m + (1 - β₁) g`, `v ← β₂ v + (1 - β₂) g²`; returns
/// `u = m/(1 - β₁ᵗ) / (√(v/(1 - β₂ᵗ)) + eps)`
fn adam(g: &Tensor, m: &mut Tensor, v: &mut Tensor, by: &AdamW) -> Vec<f64> {
    let [bias1, bias2] = by.corrections();
    let moments = m.data.iter_mut().zip(&mut v.data);
    let direction = |(g, (m, v)): (&f64, (&mut f64, &mut f64))| {
        let g = g * by.grad_scale;
        *m = by.beta1 * *m + (1.0 - by.beta1) * g;
        *v = by.beta2 * *v + (1.0 - by.beta2) * g * g;
        (*m / bias1) / ((*v / bias2).sqrt() + by.eps)
    };
    g.data.iter().zip(moments).map(direction).collect()
}

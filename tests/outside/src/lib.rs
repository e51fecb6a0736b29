//! A device on `Vec<f64>`, and a model that reads numbers and is not a transformer: layers of two
//! kinds, trained under every synchronous schedule as on one worker.
use chimera_core::device::{Device, Result, Sgd, WithMomentum};
use chimera_core::stage::{Autograd, Data, Differentiable, Init, Micro, Output, Param};

#[derive(Clone, Debug)]
pub struct Array(pub Vec<usize>, pub Vec<f64>);

#[derive(Clone)]
pub struct Host;

impl Device for Host {
    type Tensor = Array;

    fn name(&self) -> String {
        "the host in f64".into()
    }
    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Array> {
        Ok(Array(shape.into(), data.iter().map(|x| f64::from(*x)).collect()))
    }
    fn download(&self, array: &Array) -> Result<Vec<f32>> {
        Ok(array.1.iter().map(|x| *x as f32).collect())
    }
    fn zeros(&self, shape: &[usize]) -> Result<Array> {
        Ok(Array(shape.into(), vec![0.0; shape.iter().product()]))
    }
    fn shape(&self, array: &Array) -> Vec<usize> {
        array.0.clone()
    }
    fn rows(&self, array: &Array, start: usize, len: usize) -> Result<Array> {
        let width: usize = array.0[1..].iter().product();
        let shape = [&[len], &array.0[1..]].concat();
        Ok(Array(shape, array.1[start * width..(start + len) * width].into()))
    }
    fn reshape(&self, array: &Array, shape: &[usize]) -> Result<Array> {
        Ok(Array(shape.into(), array.1.clone()))
    }
    fn join(&self, arrays: &[&Array]) -> Result<Array> {
        let rows = arrays.iter().map(|array| array.0[0]).sum();
        let shape = [&[rows], &arrays[0].0[1..]].concat();
        Ok(Array(shape, arrays.iter().flat_map(|array| array.1.clone()).collect()))
    }
    fn accumulate(&self, into: &mut Array, x: &Array) -> Result<()> {
        into.1.iter_mut().zip(&x.1).for_each(|(into, x)| *into += x);
        Ok(())
    }
    fn squared_norms(&self, arrays: &[&Array]) -> Result<Array> {
        let norms: Vec<f64> = arrays.iter().map(|a| a.1.iter().map(|x| x * x).sum()).collect();
        Ok(Array(vec![norms.len()], norms))
    }
    fn sgd(&self, arrays: &mut [WithMomentum<'_, Array>], by: &Sgd) -> Result<()> {
        for WithMomentum { w, g, .. } in arrays {
            w.1.iter_mut().zip(&g.1).for_each(|(w, g)| *w -= by.lr * by.grad_scale * g);
        }
        Ok(())
    }
}

/// Some layers of a chain on rows of two numbers. Even layers mix a row; odd ones apply `tanh(w x)`
/// to each number.
pub struct Layers {
    params: Vec<Param>,
    first: usize,
    is_last: bool,
}

pub const N_LAYERS: usize = 16;

pub fn stage(id: usize, n_stages: usize) -> Autograd<Layers, Host> {
    let layers = N_LAYERS * id / n_stages..N_LAYERS * (id + 1) / n_stages;
    let shape = |layer: usize| if layer % 2 == 0 { vec![2, 2] } else { vec![2] };
    let param = |layer| Param::new(format!("layer.{layer}"), shape(layer), Init::Uniform(1.0));
    let params = layers.clone().map(param).collect();
    Autograd::new(Layers { params, first: layers.start, is_last: layers.end == N_LAYERS }, Host)
}

impl Differentiable for Layers {
    type Tensor = Array;
    type Item = f64;
    /// The input of each layer with its weight, and the gradient of the loss.
    type Graph = (Vec<(Array, Array)>, Option<Array>);

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Array],
        micro: &Micro<'_, f64>,
        x: Option<Array>,
    ) -> Result<(Output<Array>, Self::Graph)> {
        let mut x = x.unwrap_or_else(|| Array(vec![micro.input.len() / 2, 2], micro.input.into()));
        let mut inputs = Vec::new();
        for (layer, w) in (self.first..).zip(w) {
            let row = |x: &[f64]| match layer % 2 {
                0 => [0, 1].map(|j| x[0] * w.1[j] + x[1] * w.1[2 + j]),
                _ => [0, 1].map(|j| (x[j] * w.1[j]).tanh()),
            };
            let y = Array(x.0.clone(), x.1.chunks(2).flat_map(row).collect());
            inputs.push((std::mem::replace(&mut x, y), w.clone()));
        }
        if !self.is_last || micro.target.is_empty() {
            return Ok((Output::Activation(x), (inputs, None)));
        }
        let errors: Vec<f64> = x.1.iter().zip(micro.target).map(|(y, t)| y - t).collect();
        let loss =
            Array(vec![1], vec![micro.loss_scale * errors.iter().map(|e| e * e).sum::<f64>()]);
        let grad = Array(x.0, errors.iter().map(|e| 2.0 * micro.loss_scale * e).collect());
        Ok((Output::Loss { loss: loss.clone(), grad: loss }, (inputs, Some(grad))))
    }

    fn vjp(&self, (inputs, grad): Self::Graph, dy: Array) -> Result<(Option<Array>, Vec<Array>)> {
        let (mut dy, mut gradients) = (grad.unwrap_or(dy), Vec::new());
        for (layer, (x, w)) in (self.first..self.first + inputs.len()).zip(inputs).rev() {
            let mut dw = Array(w.0.clone(), vec![0.0; w.1.len()]);
            let mut dx = Vec::new();
            for (x, dy) in x.1.chunks(2).zip(dy.1.chunks(2)) {
                let bend = |j: usize| dy[j] * (1.0 - (x[j] * w.1[j]).tanh().powi(2));
                match layer % 2 {
                    0 => (0..4).for_each(|i| dw.1[i] += x[i / 2] * dy[i % 2]),
                    _ => (0..2).for_each(|j| dw.1[j] += x[j] * bend(j)),
                }
                dx.extend([0, 1].map(|j| match layer % 2 {
                    0 => w.1[2 * j] * dy[0] + w.1[2 * j + 1] * dy[1],
                    _ => w.1[j] * bend(j),
                }));
            }
            dy = Array(x.0, dx);
            gradients.insert(0, dw);
        }
        Ok(((self.first > 0).then_some(dy), gradients))
    }
}

pub struct Curve;

impl Data<f64> for Curve {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<f64>, y: &mut Vec<f64>) -> std::io::Result<()> {
        let at = (100 * step + n) as f64;
        x.extend([at.sin(), at.cos()]);
        y.extend([(0.7 * at).sin(), 0.3]);
        Ok(())
    }
    fn n_targets(&self) -> usize {
        2
    }
}

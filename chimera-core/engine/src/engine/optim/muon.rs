//! Muon: momentum with orthogonalized matrices (Jordan et al., 2024).

use crate::device::Result;
use crate::device::reference::{Tensor, dot};
use crate::engine::optim::param_group::{HostTensor, ParamGroup};
use crate::engine::optim::update_rule::UpdateRule;
use crate::stage::Param;

/// Coefficients of the iteration, tuned to bring all singular values near 1 quickly.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const N_ITERATIONS: usize = 5;
/// Root mean square of AdamW's steps; matched so that learning rates agree (Liu et al., 2025).
const ADAMW_RMS: f64 = 0.2;

/// The rule: each linear map steps along the orthogonal matrix nearest to its Nesterov momentum.
/// All other parameters are updated by AdamW.
pub(crate) struct Muon;

impl UpdateRule for Muon {
    fn name(&self) -> &str {
        "muon"
    }

    fn state(&self, param: &Param) -> &[&'static str] {
        if param.linear_maps.is_empty() { &["m", "v"] } else { &["m"] }
    }

    fn needs_products(&self) -> bool {
        true
    }

    fn update(&self, group: ParamGroup<'_>) -> Result<()> {
        let (maps, others) = group.split(|param| !param.linear_maps.is_empty());
        others.adamw()?;
        let (lr, weight_decay, momentum) = (maps.lr, maps.weight_decay, maps.training.momentum);
        maps.on_host(|mut tensor| {
            let m = tensor.state.remove(0);
            let mut step = Vec::with_capacity(m.len());
            for (m, g) in m.iter_mut().zip(tensor.gradient) {
                *m = momentum * *m + (1.0 - momentum) * g;
                step.push(momentum * *m + (1.0 - momentum) * g);
            }
            orthogonalize(&tensor, &mut step)?;
            for (w, step) in tensor.weights.iter_mut().zip(step) {
                *w -= lr * weight_decay * *w;
                *w -= lr * step;
            }
            Ok(())
        })
    }
}

/// Replaces each linear map by the nearest orthogonal matrix, scaled to AdamW's step length.
fn orthogonalize(tensor: &HostTensor<'_>, values: &mut [f64]) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let (are_rows, columns) = (tensor.param.maps_are_rows(), tensor.param.shape[1]);
    let mut start = 0;
    for [height, width] in tensor.param.map_extents() {
        let row = |n: usize| {
            let first = if are_rows { (start + n) * columns } else { n * columns + start };
            first..first + width
        };
        let map = (0..height).flat_map(|n| &values[row(n)]).copied().collect();
        let map = nearest_orthogonal(tensor, Tensor::new(&[height, width], map))?;
        let length = ADAMW_RMS * (height.max(width) as f64).sqrt();
        for (n, step) in map.data.chunks_exact(width.max(1)).enumerate() {
            for (value, x) in values[row(n)].iter_mut().zip(step) {
                *value = length * x;
            }
        }
        start += if are_rows { height } else { width };
    }
    Ok(())
}

/// Approximates `U Vᵀ` of a matrix `U S Vᵀ`: the singular values end up between 0.7 and 1.2.
fn nearest_orthogonal(tensor: &HostTensor<'_>, x: Tensor) -> Result<Tensor> {
    let is_tall = x.shape[0] > x.shape[1];
    let mut x = if is_tall { x.transposed() } else { x };
    let norm = dot(&x.data, &x.data).sqrt() + 1e-7;
    x.data.iter_mut().for_each(|x| *x /= norm);
    let x = tensor.newton_schulz(&x, COEFFICIENTS, N_ITERATIONS)?;
    Ok(if is_tall { x.transposed() } else { x })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::reference::Reference;
    use crate::device::{Device, Products};
    use crate::engine::{Training, first_update};
    use crate::stage::{Init, initial};

    /// Returns the weights after one update from zeros by a random gradient.
    fn step(param: &Param) -> Tensor {
        let optimizer = crate::engine::Optimizer::muon();
        let training = Training { optimizer, lr: 1.0, min_lr: 1.0, ..Training::default() };
        let drawn: Vec<f32> = initial(&Param { init: Init::Normal(1.0), ..param.clone() }, 0);
        let gradient = Reference.upload(&param.shape, &drawn).unwrap();
        let mut weights = [Tensor::zeros(&param.shape)];
        let state = Muon.state(param).iter().map(|_| Tensor::zeros(&param.shape)).collect();
        let (param, gradients) = (std::slice::from_ref(param), [gradient]);
        first_update(&Reference, &training, param, &mut weights, &gradients, &mut [state]).unwrap();
        let [weights] = weights;
        weights
    }

    /// The Gram matrix of the shorter side, divided by the squared length of a step.
    fn gram(x: &Tensor) -> Tensor {
        let x = if x.shape[0] > x.shape[1] { x.transposed() } else { x.clone() };
        let length = ADAMW_RMS * (x.shape[1] as f64).sqrt();
        Reference.product(&x, &x).unwrap().map(|x| x / length.powi(2))
    }

    fn rows(x: &Tensor, start: usize, len: usize) -> Tensor {
        Reference.rows(x, start, len).unwrap()
    }

    #[test]
    fn steps_are_nearly_orthogonal() {
        for shape in [[6, 40], [40, 6], [7, 7]] {
            let gram = gram(&step(&Param::new("w", shape, Init::Zeros)));
            for (at, value) in gram.data.iter().enumerate() {
                let is_diagonal = at % (gram.n_rows() + 1) == 0;
                let (low, high) = if is_diagonal { (0.4, 1.6) } else { (-0.5, 0.5) };
                assert!((low..high).contains(value), "{shape:?}: {value} at {at}");
            }
        }
    }

    #[test]
    fn fused_maps_are_made_orthogonal_one_by_one_on_either_side() {
        let fused = Param::new("w", [12, 4], Init::Zeros).fused([4; 3]);
        let stepped = step(&fused);
        for start in [0, 4, 8] {
            let gram = gram(&rows(&stepped, start, 4));
            assert!((0..4).all(|i| gram.data[5 * i] > 0.4), "{gram:?}");
        }
        let gradient =
            |shape| step(&Param::new("w", shape, Init::Zeros).fused(fused.linear_maps.clone()));
        let across = gradient([4, 12]);
        for start in [0, 4, 8] {
            let gram = gram(&rows(&across.transposed(), start, 4));
            assert!((0..4).all(|i| gram.data[5 * i] > 0.4), "{gram:?}");
        }
    }

    #[test]
    fn what_is_no_linear_map_is_updated_by_adamw() {
        let table = step(&Param::new("w", [5, 3], Init::Zeros).fused([]));
        assert!(table.data.iter().all(|w| (w.abs() - 1.0).abs() < 1e-6), "{table:?}");
    }
}

//! Updates of weights, several in a row.

use super::trials::{Trials, trial};
use super::{Outcome, SHAPES};
use crate::kernels::reference::Tensor;
use crate::kernels::{AdamW, Kernels, Sgd};

pub(super) fn adamw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for eps in [1e-8, 1e-2] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
            trial!(trials, format!("five updates, eps {eps}"), [odd, even], [w, m, v], |k| {
                for update in 1..=5 {
                    let g = if update % 2 == 1 { odd } else { even };
                    k.adamw(w, g, m, v, &moments(update, eps, 0.1))?;
                }
                []
            });
        }
    }
    Ok(())
}

/// From weights that are zero too, whose norm is no measure of a step.
pub(super) fn lamb<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    // The last one is large enough for a norm in one f32 to lose digits.
    for shape in [&SHAPES[..], &[&[501, 257]]].concat() {
        for (eps, weight_decay) in [(1e-6, 0.1), (1e-2, 0.0)] {
            let [odd, even, normal] = [(); 3].map(|()| trials.normal(shape));
            for w in [normal, Tensor::zeros(shape)] {
                let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
                trial!(trials, format!("five updates, eps {eps}"), [odd, even], [w, m, v], |k| {
                    for update in 1..=5 {
                        let g = if update % 2 == 1 { odd } else { even };
                        k.lamb(w, g, m, v, &moments(update, eps, weight_decay))?;
                    }
                    []
                });
            }
        }
    }
    let (g, w) = (Tensor::zeros(&[5, 7]), trials.normal(&[5, 7]));
    let [m, v] = [(); 2].map(|()| Tensor::zeros(&[5, 7]));
    trial!(trials, "no gradient", [g], [w, m, v], |k| {
        k.lamb(w, g, m, v, &moments(1, 1e-8, 0.0))?;
        []
    });
    Ok(())
}

pub(super) fn sgd<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for momentum in [0.0, 0.9] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let m = Tensor::zeros(shape);
            let label = format!("five updates, momentum {momentum}");
            trial!(trials, label, [odd, even], [w, m], |k| {
                for update in 1..=5 {
                    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
                    let g = if update % 2 == 1 { odd } else { even };
                    k.sgd(w, g, m, &Sgd { lr, momentum, weight_decay: 0.1, grad_scale })?;
                }
                []
            });
        }
    }
    Ok(())
}

fn moments(update: u64, eps: f64, weight_decay: f64) -> AdamW {
    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
    AdamW { lr, beta1: 0.9, beta2: 0.999, eps, weight_decay, update, grad_scale }
}

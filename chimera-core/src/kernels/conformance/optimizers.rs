//! Updates of weights, several in a row.

use super::trials::{Trials, bits, f32s, trial};
use super::{Outcome, SHAPES};
use crate::kernels::reference::Tensor;
use crate::kernels::{AdamW, Kernels, Result, Sgd, Updated};

pub(super) fn adamw<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for eps in [1e-8, 1e-2] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
            trial!(trials, format!("five updates, eps {eps}"), [odd, even], [w, m, v], |k| {
                for update in 1..=5 {
                    let g = if update % 2 == 1 { odd } else { even };
                    k.adamw(&mut [Updated { w, g, m, v }], &moments(update, eps, 0.1))?;
                }
                []
            });
        }
    }
    together(trials, |k, tensors| k.adamw(tensors, &moments(3, 1e-8, 0.1)))
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
                        let by = moments(update, eps, weight_decay);
                        k.lamb(&mut [Updated { w, g, m, v }], &by)?;
                    }
                    []
                });
            }
        }
    }
    let (g, w) = (Tensor::zeros(&[5, 7]), trials.normal(&[5, 7]));
    let [m, v] = [(); 2].map(|()| Tensor::zeros(&[5, 7]));
    trial!(trials, "no gradient", [g], [w, m, v], |k| {
        k.lamb(&mut [Updated { w, g, m, v }], &moments(1, 1e-8, 0.0))?;
        []
    });
    together(trials, |k, tensors| k.lamb(tensors, &moments(3, 1e-8, 0.1)))
}

pub(super) fn sgd<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for momentum in [0.0, 0.9] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
            let label = format!("five updates, momentum {momentum}");
            trial!(trials, label, [odd, even], [w, m, v], |k| {
                for update in 1..=5 {
                    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
                    let g = if update % 2 == 1 { odd } else { even };
                    let by = Sgd { lr, momentum, weight_decay: 0.1, grad_scale };
                    k.sgd(&mut [Updated { w, g, m, v }], &by)?;
                }
                []
            });
        }
    }
    let by = Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.1, grad_scale: 0.5 };
    together(trials, |k, tensors| k.sgd(tensors, &by))
}

/// Tensors that are updated at once get the bits that each gets alone.
fn together<K: Kernels>(
    trials: &mut Trials<'_, K>,
    update: impl Fn(&K, &mut [Updated<'_, K::Tensor>]) -> Result<()>,
) -> Outcome {
    let k = trials.kernels;
    update(k, &mut [])?;
    let drawn = [&SHAPES[..], &SHAPES[..2]].concat().into_iter().map(|shape| {
        let squares = |mut v: Tensor| {
            v.data.iter_mut().for_each(|x| *x *= *x);
            v
        };
        let [w, g, m, v] = [(); 4].map(|()| trials.normal(shape));
        [w, g, m, squares(v)]
    });
    let drawn: Vec<[Tensor; 4]> = drawn.collect();
    let upload = |x: &Tensor| k.upload(&x.shape, &f32s(x));
    let upload_all = || -> Result<Vec<Vec<K::Tensor>>> {
        drawn.iter().map(|four| four.iter().map(upload).collect()).collect()
    };
    let (mut at_once, mut alone) = (upload_all()?, upload_all()?);
    update(k, &mut at_once.iter_mut().filter_map(|four| updated(four)).collect::<Vec<_>>())?;
    for (number, (at_once, alone)) in at_once.iter().zip(&mut alone).enumerate() {
        update(k, &mut updated(alone).into_iter().collect::<Vec<_>>())?;
        for (x, y) in at_once.iter().zip(alone) {
            let same = bits(&k.download(x)?) == bits(&k.download(y)?);
            let at = format!("tensor {number} of several");
            trials.require(same, &at, "the bits are not those of an update alone")?;
        }
    }
    Ok(())
}

fn updated<T>(tensors: &mut [T]) -> Option<Updated<'_, T>> {
    let [w, g, m, v] = tensors else { return None };
    Some(Updated { w, g, m, v })
}

fn moments(update: u64, eps: f64, weight_decay: f64) -> AdamW {
    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
    AdamW { lr, beta1: 0.9, beta2: 0.999, eps, weight_decay, update, grad_scale }
}

//! Weight updates, several in a row.

use super::trials::{Trials, f32s, is_same, trial};
use super::{EMPTY, Outcome, SHAPES};
use crate::device::reference::Tensor;
use crate::device::{AdamW, Device, Result, Sgd, Updated, WithMomentum, products_of};

/// Shapes of updated tensors. The last is so large that a norm in one f32 loses digits.
fn updated_shapes() -> Vec<&'static [usize]> {
    [&SHAPES[..], &EMPTY, &[&[501, 257]]].concat()
}

pub(super) fn adamw<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in updated_shapes() {
        for eps in [1e-8, 1e-2] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
            trial!(trials, format!("five updates, eps {eps}"), [odd, even], [w, m, v], |device| {
                for update in 1..=5 {
                    let g = if update % 2 == 1 { odd } else { even };
                    device.adamw(&mut [Updated { w, g, m, v }], &moments(update, eps, 0.1))?;
                }
                []
            });
        }
    }
    together(trials, 2, |device, tensors| {
        let mut tensors: Vec<_> = tensors.iter_mut().map(|four| updated(four)).collect();
        device.adamw(&mut tensors, &moments(3, 1e-8, 0.1))
    })
}

/// Includes zero weights, for which the trust ratio is 1.
pub(super) fn lamb<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in updated_shapes() {
        for (eps, weight_decay) in [(1e-6, 0.1), (1e-2, 0.0)] {
            let [odd, even, normal] = [(); 3].map(|()| trials.normal(shape));
            for w in [normal, Tensor::zeros(shape)] {
                let [m, v] = [(); 2].map(|()| Tensor::zeros(shape));
                trial!(
                    trials,
                    format!("five updates, eps {eps}"),
                    [odd, even],
                    [w, m, v],
                    |device| {
                        for update in 1..=5 {
                            let g = if update % 2 == 1 { odd } else { even };
                            let by = moments(update, eps, weight_decay);
                            device.lamb(&mut [Updated { w, g, m, v }], &by)?;
                        }
                        []
                    }
                );
            }
        }
    }
    let (g, w) = (Tensor::zeros(&[5, 7]), trials.normal(&[5, 7]));
    let [m, v] = [(); 2].map(|()| Tensor::zeros(&[5, 7]));
    trial!(trials, "no gradient", [g], [w, m, v], |device| {
        device.lamb(&mut [Updated { w, g, m, v }], &moments(1, 1e-8, 0.0))?;
        []
    });
    together(trials, 2, |device, tensors| {
        let mut tensors: Vec<_> = tensors.iter_mut().map(|four| updated(four)).collect();
        device.lamb(&mut tensors, &moments(3, 1e-8, 0.1))
    })
}

pub(super) fn sgd<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in updated_shapes() {
        for momentum in [0.0, 0.9] {
            let [odd, even, w] = [(); 3].map(|()| trials.normal(shape));
            let m = Tensor::zeros(shape);
            let label = format!("five updates, momentum {momentum}");
            trial!(trials, label, [odd, even], [w, m], |device| {
                for update in 1..=5 {
                    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
                    let g = if update % 2 == 1 { odd } else { even };
                    let by = Sgd { lr, momentum, weight_decay: 0.1, grad_scale };
                    device.sgd(&mut [WithMomentum { w, g, m }], &by)?;
                }
                []
            });
        }
    }
    let by = Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.1, grad_scale: 0.5 };
    together(trials, 1, |device, tensors| {
        let mut tensors: Vec<_> = tensors.iter_mut().map(|three| with_momentum(three)).collect();
        device.sgd(&mut tensors, &by)
    })
}

/// Runs only on devices that have products.
pub(super) fn product<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    if trials.device.products().is_none() {
        return Ok(());
    }
    for [m, n, k] in [[1, 1, 1], [5, 3, 7], [64, 64, 130], [130, 257, 33]] {
        let [a, b] = [trials.normal(&[m, k]), trials.normal(&[n, k])];
        trial!(trials, "", [a, b], [], |device| [products_of(device)?.product(a, b)?]);
    }
    Ok(())
}

/// Checks that tensors updated together get the same bits as when each is updated by itself.
/// `update` takes the weights, the gradient and `n_moments` moments of each tensor.
fn together<D: Device>(
    trials: &mut Trials<'_, D>,
    n_moments: usize,
    update: impl Fn(&D, &mut [Vec<D::Tensor>]) -> Result<()>,
) -> Outcome {
    let device = trials.device;
    update(device, &mut [])?;
    let drawn = [&SHAPES[..], &EMPTY, &SHAPES[..2]].concat().into_iter().map(|shape| {
        let squares = |mut v: Tensor| {
            v.data.iter_mut().for_each(|x| *x *= *x);
            v
        };
        let [w, g, m, v] = [(); 4].map(|()| trials.normal(shape));
        let mut all = vec![w, g, m, squares(v)];
        all.truncate(2 + n_moments);
        all
    });
    let drawn: Vec<Vec<Tensor>> = drawn.collect();
    let upload = |x: &Tensor| device.upload(&x.shape, &f32s(x));
    let upload_all = || -> Result<Vec<Vec<D::Tensor>>> {
        drawn.iter().map(|all| all.iter().map(upload).collect()).collect()
    };
    let (mut at_once, mut alone) = (upload_all()?, upload_all()?);
    update(device, &mut at_once)?;
    for (number, (at_once, alone)) in at_once.iter().zip(&mut alone).enumerate() {
        update(device, std::slice::from_mut(alone))?;
        for (x, y) in at_once.iter().zip(alone) {
            let same = is_same(&device.download(x)?, &device.download(y)?);
            let at = format!("tensor {number} of several");
            trials.require(same, &at, "the bits are not those of an update alone")?;
        }
    }
    Ok(())
}

fn updated<T>(tensors: &mut [T]) -> Updated<'_, T> {
    let [w, g, m, v] = tensors else { unreachable!("two moments") };
    Updated { w, g, m, v }
}

fn with_momentum<T>(tensors: &mut [T]) -> WithMomentum<'_, T> {
    let [w, g, m] = tensors else { unreachable!("one momentum") };
    WithMomentum { w, g, m }
}

fn moments(update: u64, eps: f64, weight_decay: f64) -> AdamW {
    let (lr, grad_scale) = (0.1 / update as f64, 0.2 + 0.1 * update as f64);
    AdamW { lr, beta1: 0.9, beta2: 0.999, eps, weight_decay, update, grad_scale }
}

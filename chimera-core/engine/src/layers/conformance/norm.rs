//! Functions of single rows: normalisation and loss, in which careless formulas cancel or overflow.

use rand::Rng;

use crate::device::Device;
use crate::device::conformance::Outcome;
use crate::device::conformance::trials::{Trials, rounded, trial};
use crate::device::reference::{Reference, Tensor};
use crate::layers::{IGNORED, Layers, Layout, Linear, LlamaLayers, Loss, Norm, llama_layers};

const MATRICES: [[usize; 2]; 6] = [[1, 1], [1, 130], [3, 2], [17, 1], [5, 33], [130, 257]];

/// Rows to normalise: ordinary ones; with variance below epsilon; with no variance; and far from
/// zero, where `mean(x²) - mean(x)²` cancels.
fn to_normalise<D: Layers>(trials: &mut Trials<'_, D>, shape: [usize; 2]) -> [Tensor; 4] {
    [(1.0, 0.0), (1e-3, 0.0), (0.0, 2.0), (1.0, 30.0)].map(|(deviation, mean)| {
        trials.draw(&shape, |rng| mean + deviation * rng.random_range(-2.0..2.0f32))
    })
}

pub(super) fn layer_norm<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let [gain, bias] = [(); 2].map(|()| trials.normal(&shape[1..]));
        for x in to_normalise(trials, shape) {
            for epsilon in [1e-5, 1e-2] {
                trial!(trials, format!("epsilon {epsilon}"), [x, gain, bias], [], |device| {
                    let (y, stats) = device.layer_norm(x, gain, bias, epsilon)?;
                    [y, stats]
                });
            }
        }
    }
    Ok(())
}

pub(super) fn layer_norm_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let gain = trials.normal(&shape[1..]);
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.layer_norm(&x, &gain, &gain, 1e-5)?.1);
            let [dy, residual] = [(); 2].map(|()| trials.normal(&shape));
            trial!(trials, "with residual", [dy, x, stats, gain, residual], [], |device| [
                device.layer_norm_dx(dy, x, stats, gain, Some(residual))?
            ]);
            // With one or two features only rounding would be compared.
            if shape[1] > 2 {
                trial!(trials, "", [dy, x, stats, gain], [], |device| {
                    [device.layer_norm_dx(dy, x, stats, gain, None)?]
                });
            }
        }
    }
    Ok(())
}

pub(super) fn layer_norm_dw<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let [d_gain, d_bias] = [(); 2].map(|()| trials.normal(&shape[1..]));
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.layer_norm(&x, &d_gain, &d_bias, 1e-5)?.1);
            let dy = trials.normal(&shape);
            trial!(trials, "", [dy, x, stats], [d_gain, d_bias], |device| {
                device.layer_norm_dw(dy, x, stats, d_gain, d_bias)?;
                []
            });
        }
    }
    Ok(())
}

pub(super) fn rms_norm<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let gain = trials.normal(&shape[1..]);
        for x in to_normalise(trials, shape) {
            for epsilon in [1e-6, 1e-2] {
                trial!(trials, format!("epsilon {epsilon}"), [x, gain], [], |device| {
                    let (y, stats) = llama_layers(device)?.rms_norm(x, gain, epsilon)?;
                    [y, stats]
                });
            }
        }
    }
    Ok(())
}

pub(super) fn rms_norm_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let gain = trials.normal(&shape[1..]);
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.rms_norm(&x, &gain, 1e-5)?.1);
            let [dy, residual] = [(); 2].map(|()| trials.normal(&shape));
            trial!(trials, "with residual", [dy, x, stats, gain, residual], [], |device| [
                llama_layers(device)?.rms_norm_dx(dy, x, stats, gain, Some(residual))?
            ]);
            // With one feature only rounding would be compared.
            if shape[1] > 1 {
                trial!(trials, "", [dy, x, stats, gain], [], |device| {
                    [llama_layers(device)?.rms_norm_dx(dy, x, stats, gain, None)?]
                });
            }
        }
    }
    Ok(())
}

pub(super) fn rms_norm_dw<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in MATRICES {
        let d_gain = trials.normal(&shape[1..]);
        for x in to_normalise(trials, shape) {
            let stats = rounded(Reference.rms_norm(&x, &d_gain, 1e-5)?.1);
            let dy = trials.normal(&shape);
            trial!(trials, "", [dy, x, stats], [d_gain], |device| {
                llama_layers(device)?.rms_norm_dw(dy, x, stats, d_gain)?;
                []
            });
        }
    }
    Ok(())
}

pub(super) fn cross_entropy<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape @ [rows, vocab] in [[1, 2], [5, 7], [17, 33], [130, 257], [3, 1031]] {
        for largest in [3.0, 1e4] {
            let x = trials.draw(&shape, |rng| rng.random_range(-largest..largest));
            let mut targets = trials.classes(rows, vocab as u32);
            targets.iter_mut().skip(1).step_by(3).for_each(|target| *target = IGNORED);
            trial!(trials, format!("logits up to {largest}"), [x], [], |device| {
                // The call may reuse the memory of its logits.
                let mut logits = device.zeros(&shape)?;
                device.accumulate(&mut logits, x)?;
                let (loss, gradient) = device.cross_entropy(logits, &targets, 0.7)?;
                [loss, gradient]
            });
        }
    }
    Ok(())
}

/// The loss after a linear layer, and its gradients, for vocabularies of odd sizes like GPT-2's
/// 50,257: a device may keep such logits in a form of its own.
pub(super) fn head<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [rows, hidden, vocab] in [[5, 8, 19], [66, 16, 131]] {
        let [x, w, bias] = [vec![rows, hidden], vec![vocab, hidden], vec![vocab]]
            .map(|shape| trials.draw(&shape, |rng| rng.random_range(-0.5..0.5f32)));
        let [dw, d_bias] = [vec![vocab, hidden], vec![vocab]].map(|shape| trials.normal(&shape));
        let targets = trials.classes(rows, vocab as u32);
        trial!(trials, format!("{vocab} classes"), [x, w, bias], [dw, d_bias], |device| {
            let logits = device.linear(x, w, Layout::OutIn, Some(bias), None)?;
            let (loss, dy) = device.cross_entropy(logits, &targets, 0.7)?;
            let part = device.linear_dx(&device.rows(&dy, 2, rows - 2)?, w, Layout::OutIn)?;
            device.linear_dw(x, &dy, Layout::OutIn, dw, Some(d_bias))?;
            [loss, device.linear_dx(&dy, w, Layout::OutIn)?, part, dy]
        });
    }
    Ok(())
}

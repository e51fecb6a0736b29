//! Functions of single elements.

use rand::Rng;

use crate::device::conformance::trials::{Trials, rounded, trial};
use crate::device::conformance::{Outcome, SHAPES};
use crate::device::reference::Tensor;
use crate::layers::{Activation, Dropout, Layers, Pointwise, llama_layers};

/// Arguments of activations. The last tensor has elements with overflowing exponentials.
fn to_activate<D: Layers>(trials: &mut Trials<'_, D>) -> Vec<Tensor> {
    let near = |shape| trials.draw(shape, |rng| rng.random_range(-5.0..5.0));
    let mut all: Vec<Tensor> = SHAPES.into_iter().map(near).collect();
    let far = vec![-1e6, -1e3, -100.0, -20.0, -0.0, 1e-30, 20.0, 100.0, 1e3, 1e6];
    all.push(rounded(Tensor::new(&[2, 5], far)));
    all
}

const ACTIVATIONS: [Activation; 4] =
    [Activation::GeluTanh, Activation::Gelu, Activation::Tanh, Activation::Silu];

pub(super) fn activation<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_activate(trials) {
            trial!(trials, format!("{f:?}"), [x], [], |device| [device.activation(x, f)?]);
        }
    }
    Ok(())
}

pub(super) fn activation_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_activate(trials) {
            let dy = trials.normal(&x.shape);
            trial!(trials, format!("{f:?}"), [dy, x], [], |device| {
                let (dx, y) = device.activation_dx(dy, x, f)?;
                [dx, y]
            });
        }
    }
    Ok(())
}

/// Rows of gate and up: odd sizes, more than any tile, and gates with overflowing exponentials.
fn to_gate<D: Layers>(trials: &mut Trials<'_, D>) -> Vec<Tensor> {
    let shapes = [[3, 10], [5, 66], [70, 514]];
    let near = |shape: [usize; 2]| trials.draw(&shape, |rng| rng.random_range(-5.0..5.0));
    let mut all: Vec<Tensor> = shapes.into_iter().map(near).collect();
    all.push(Tensor::new(&[1, 2], vec![1.5, -2.0]));
    all.push(Tensor::new(&[2, 4], vec![-1e3, 1e3, 2.0, -3.0, 20.0, -100.0, 0.5, 4.0]));
    all
}

pub(super) fn gated<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_gate(trials) {
            trial!(
                trials,
                format!("{f:?}"),
                [x],
                [],
                |device| [llama_layers(device)?.gated(x, f)?]
            );
        }
    }
    Ok(())
}

pub(super) fn gated_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_gate(trials) {
            let dy = trials.normal(&[x.n_rows(), x.width() / 2]);
            trial!(trials, format!("{f:?}"), [dy, x], [], |device| {
                let (dx, y) = llama_layers(device)?.gated_dx(dy, x, f)?;
                [dx, y]
            });
        }
    }
    Ok(())
}

/// Drops elements from the start of a stream, from within it, and across a carry.
pub(super) fn dropout<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in SHAPES {
        for first in [0, 12_345, (1 << 32) - 3] {
            for rate in [0.0, 0.1, 0.75] {
                let by = Dropout::new(rate, 11, 22, 33, first);
                let [x, residual] = [trials.normal(shape), trials.normal(shape)];
                let label = format!("rate {rate} from {first}");
                trial!(trials, label, [x], [], |device| [device.dropout(x, &by, None)?]);
                trial!(trials, format!("{label} with residual"), [x, residual], [], |device| {
                    [device.dropout(x, &by, Some(residual))?]
                });
            }
        }
    }
    Ok(())
}

//! Elements on their own, and their norm.

use rand::Rng;

use super::trials::{Trials, bits, f32s, rounded, trial};
use super::{Outcome, SHAPES};
use crate::kernels::reference::Tensor;
use crate::kernels::{Activation, Dropout, Kernels};

pub(super) fn squared_norms<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    let k = trials.kernels;
    let none = k.shape(&k.squared_norms(&[])?);
    trials.require(none == [0], "no tensors", &format!("the result has shape {none:?}"))?;
    // The last one is large enough for a sum in one f32 to lose digits.
    let shapes = [&SHAPES[..], &[&[1001, 1031]]].concat();
    for shape in &shapes {
        let x = trials.normal(shape);
        trial!(trials, "", [x], [], |k| [k.squared_norms(&[x])?]);
    }
    let (first, last) = (shapes[0], shapes[shapes.len() - 1]);
    let [x, y, z] = [last, first, last].map(|shape| trials.normal(shape));
    trial!(trials, "", [x, y, z], [], |k| [k.squared_norms(&[x, y, x, z])?]);
    let [x, y] = [x, y].map(|x| k.upload(&x.shape, &f32s(&x)));
    let (x, y) = (x?, y?);
    let both = k.download(&k.squared_norms(&[&x, &y])?)?;
    let each = [k.download(&k.squared_norms(&[&x])?)?, k.download(&k.squared_norms(&[&y])?)?];
    let same = bits(&both) == bits(&each.concat());
    trials.require(same, "two tensors at once", "the bits are not those of one by one")?;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 1000, 33_409] {
            let mut data = vec![1.0; 33_410];
            data[place] = bad;
            let x = k.upload(&[130, 257], &data)?;
            let norm = k.download(&k.squared_norms(&[&x])?)?;
            let at = format!("{bad} at element {place} of [130, 257]");
            let what = format!("gives {norm:?}");
            trials.require(norm.iter().all(|x| !x.is_finite()), &at, &what)?;
        }
    }
    Ok(())
}

/// The last one reaches where an exponential overflows.
fn to_activate<K: Kernels>(trials: &mut Trials<'_, K>) -> Vec<Tensor> {
    let near = |shape| trials.draw(shape, |rng| rng.random_range(-5.0..5.0));
    let mut all: Vec<Tensor> = SHAPES.into_iter().map(near).collect();
    let far = vec![-1e6, -1e3, -100.0, -20.0, -0.0, 1e-30, 20.0, 100.0, 1e3, 1e6];
    all.push(rounded(Tensor::new(&[2, 5], far)));
    all
}

const ACTIVATIONS: [Activation; 3] = [Activation::GeluTanh, Activation::Gelu, Activation::Tanh];

pub(super) fn activation<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_activate(trials) {
            trial!(trials, format!("{f:?}"), [x], [], |k| [k.activation(x, f)?]);
        }
    }
    Ok(())
}

pub(super) fn activation_dx<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for f in ACTIVATIONS {
        for x in to_activate(trials) {
            let dy = trials.normal(&x.shape);
            trial!(trials, format!("{f:?}"), [dy, x], [], |k| {
                let (dx, y) = k.activation_dx(dy, x, f)?;
                [dx, y]
            });
        }
    }
    Ok(())
}

/// From the start of a stream, from within it, and across the end of its counter's lower word.
pub(super) fn dropout<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        for first in [0, 12_345, (1 << 32) - 3] {
            for rate in [0.0, 0.1, 0.75] {
                let by = Dropout::new(rate, 11, 22, 33, first);
                let [x, residual] = [trials.normal(shape), trials.normal(shape)];
                let label = format!("rate {rate} from {first}");
                trial!(trials, label, [x], [], |k| [k.dropout(x, &by, None)?]);
                trial!(trials, format!("{label} with residual"), [x, residual], [], |k| {
                    [k.dropout(x, &by, Some(residual))?]
                });
            }
        }
    }
    Ok(())
}

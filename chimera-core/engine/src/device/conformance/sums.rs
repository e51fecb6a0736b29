//! Sums of tensors and of squares.

use super::trials::{Trials, f32s, is_same, trial};
use super::{EMPTY, LARGE, Outcome, SHAPES};
use crate::device::Device;

pub(super) fn accumulate<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in [&SHAPES[..], &EMPTY, &[LARGE]].concat() {
        let [x, into] = [trials.normal(shape), trials.normal(shape)];
        trial!(trials, "", [x], [into], |device| {
            device.accumulate(into, x)?;
            []
        });
    }
    Ok(())
}

pub(super) fn squared_norms<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    let none = device.shape(&device.squared_norms(&[])?);
    trials.require(none == [0], "no tensors", &format!("the result has shape {none:?}"))?;
    // The last one is large enough for a sum in a single f32 to lose digits.
    let shapes = [&SHAPES[..], &EMPTY, &[LARGE]].concat();
    for shape in &shapes {
        let x = trials.normal(shape);
        trial!(trials, "", [x], [], |device| [device.squared_norms(&[x])?]);
    }
    let (first, last) = (shapes[0], shapes[shapes.len() - 1]);
    let [x, y, z] = [last, first, last].map(|shape| trials.normal(shape));
    trial!(trials, "", [x, y, z], [], |device| [device.squared_norms(&[x, y, x, z])?]);
    let [x, y] = [x, y].map(|x| device.upload(&x.shape, &f32s(&x)));
    let (x, y) = (x?, y?);
    let both = device.download(&device.squared_norms(&[&x, &y])?)?;
    let each = [
        device.download(&device.squared_norms(&[&x])?)?,
        device.download(&device.squared_norms(&[&y])?)?,
    ];
    let same = is_same(&both, &each.concat());
    trials.require(same, "two tensors at once", "the bits are not those of one by one")?;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 1000, 33_409] {
            let mut data = vec![1.0; 33_410];
            data[place] = bad;
            let x = device.upload(&[130, 257], &data)?;
            let norm = device.download(&device.squared_norms(&[&x])?)?;
            let at = format!("{bad} at element {place} of [130, 257]");
            let what = format!("gives {norm:?}");
            trials.require(norm.iter().all(|x| !x.is_finite()), &at, &what)?;
        }
    }
    Ok(())
}

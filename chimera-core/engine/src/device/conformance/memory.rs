//! Memory: cases that fail if tensors share memory by mistake.

use super::trials::{Trials, is_same, trial};
use super::{EMPTY, LARGE, Outcome, SHAPES};
use crate::device::Device;

pub(super) fn zeros<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in [&SHAPES[..], &EMPTY, &[LARGE]].concat() {
        let x = trials.normal(shape);
        // Two at once: each must have memory of its own.
        trial!(trials, "two", [x], [], |device| {
            let (mut written, untouched) = (device.zeros(shape)?, device.zeros(shape)?);
            device.accumulate(&mut written, x)?;
            [written, untouched]
        });
    }
    Ok(())
}

pub(super) fn rows<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for shape in [&[11][..], &[11, 1], &[11, 7], &[11, 3, 5]] {
        let x = trials.normal(shape);
        for (start, len) in [(0, 11), (0, 1), (3, 4), (10, 1), (4, 0), (11, 0)] {
            let label = format!("{len} from row {start} of");
            trial!(trials, label, [x], [], |device| [device.rows(x, start, len)?]);
        }
        trial!(trials, "rows of rows of", [x], [], |device| {
            let middle = device.rows(x, 3, 6)?;
            [device.rows(&middle, 2, 3)?]
        });
    }
    Ok(())
}

pub(super) fn reshape<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    for (from, to) in [
        (&[60][..], &[3, 4, 5][..]),
        (&[6, 10], &[60]),
        (&[12, 5], &[4, 15]),
        (&[1], &[1, 1]),
        (&[0], &[0, 3]),
        (LARGE, &[1033, 1031]),
    ] {
        let x = trials.normal(from);
        trial!(trials, format!("to {to:?} from"), [x], [], |device| [device.reshape(x, to)?]);
        // The operand is itself a view of rows, and the result is accumulated into.
        trial!(trials, format!("rows, to {to:?} from"), [x], [], |device| {
            let joined = device.join(&[x, x])?;
            let second = device.rows(&joined, from[0], from[0])?;
            let mut sum = device.join(&[&device.reshape(&second, to)?])?;
            device.accumulate(&mut sum, &device.reshape(x, to)?)?;
            [sum]
        });
    }
    Ok(())
}

pub(super) fn join<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    for rest in [&[][..], &[1], &[7], &[3, 5], &[1031]] {
        let [a, b, c] = [1, 5, 64].map(|n| trials.normal(&[&[n][..], rest].concat()));
        trial!(trials, "three", [a, b, c], [], |device| [device.join(&[a, b, c])?]);
        // Joining one tensor copies too: the result has memory of its own, with the same bits.
        trial!(trials, "one, added to", [c], [], |device| {
            let mut joined = device.join(&[c])?;
            device.accumulate(&mut joined, c)?;
            [joined]
        });
    }
    for shape in EMPTY {
        let [a, b] = [(); 2].map(|()| trials.normal(shape));
        trial!(trials, "two empty", [a, b], [], |device| [device.join(&[a, b])?]);
    }
    let [a, b, none] = [LARGE, &[1, LARGE[1]], &[0, LARGE[1]]].map(|shape| trials.normal(shape));
    trial!(trials, "large, empty and one row", [a, none, b], [], |device| {
        [device.join(&[a, none, b])?]
    });
    let odd = [-0.0, 1e-40, f32::MAX, f32::NEG_INFINITY, f32::NAN];
    let odd = device.upload(&[5], &odd)?;
    let (first, last) = (device.rows(&odd, 0, 2)?, device.rows(&odd, 2, 3)?);
    let joined = device.download(&device.join(&[&first, &last])?)?;
    let same = is_same(&joined, &device.download(&odd)?);
    trials.require(same, "rows of one tensor", "the bits are not those of the tensor")
}

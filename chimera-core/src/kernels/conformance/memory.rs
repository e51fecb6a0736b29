//! Memory: where careless sharing shows.

use super::trials::{Trials, bits, f32s, trial};
use super::{Outcome, SHAPES};
use crate::kernels::Kernels;

pub(super) fn upload<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    let k = trials.kernels;
    let mut data = f32s(&trials.normal(&[2, 3, 5]));
    data[..5].copy_from_slice(&[-0.0, 1e-40, f32::MAX, f32::NEG_INFINITY, f32::NAN]);
    for shape in [&[30][..], &[1, 30], &[15, 2], &[2, 3, 5]] {
        let at = format!("{shape:?}");
        let tensor = k.upload(shape, &data)?;
        trials.require(k.shape(&tensor) == shape, &at, "another shape")?;
        let same = bits(&k.download(&tensor)?) == bits(&data);
        trials.require(same, &at, "download gives other bits than upload was given")?;
    }
    Ok(())
}

pub(super) fn zeros<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        let x = trials.normal(shape);
        // Two at once: each must have memory of its own.
        trial!(trials, "two", [x], [], |k| {
            let (mut written, untouched) = (k.zeros(shape)?, k.zeros(shape)?);
            k.accumulate(&mut written, x)?;
            [written, untouched]
        });
    }
    Ok(())
}

pub(super) fn rows<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in [&[11][..], &[11, 1], &[11, 7], &[11, 3, 5]] {
        let x = trials.normal(shape);
        for (start, len) in [(0, 11), (0, 1), (3, 4), (10, 1)] {
            let label = format!("{len} from row {start} of");
            trial!(trials, label, [x], [], |k| [k.rows(x, start, len)?]);
        }
        trial!(trials, "rows of rows of", [x], [], |k| {
            let middle = k.rows(x, 3, 6)?;
            [k.rows(&middle, 2, 3)?]
        });
    }
    Ok(())
}

pub(super) fn reshape<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for (from, to) in [(&[60][..], &[3, 4, 5][..]), (&[6, 10], &[60]), (&[12, 5], &[4, 15])] {
        let x = trials.normal(from);
        trial!(trials, format!("to {to:?} from"), [x], [], |k| [k.reshape(x, to)?]);
        // Of rows, and what comes of it is added to.
        trial!(trials, format!("rows, to {to:?} from"), [x], [], |k| {
            let joined = k.join(&[x, x])?;
            let second = k.rows(&joined, from[0], from[0])?;
            let mut sum = k.join(&[&k.reshape(&second, to)?])?;
            k.accumulate(&mut sum, &k.reshape(x, to)?)?;
            [sum]
        });
    }
    Ok(())
}

pub(super) fn join<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    let k = trials.kernels;
    for rest in [&[][..], &[1], &[7], &[3, 5], &[1031]] {
        let [a, b, c] = [1, 5, 64].map(|n| trials.normal(&[&[n][..], rest].concat()));
        trial!(trials, "three", [a, b, c], [], |k| [k.join(&[a, b, c])?]);
        // Of one as of many: memory of its own, with the same bits.
        trial!(trials, "one, added to", [c], [], |k| {
            let mut joined = k.join(&[c])?;
            k.accumulate(&mut joined, c)?;
            [joined]
        });
    }
    let odd = [-0.0, 1e-40, f32::MAX, f32::NEG_INFINITY, f32::NAN];
    let odd = k.upload(&[5], &odd)?;
    let (first, last) = (k.rows(&odd, 0, 2)?, k.rows(&odd, 2, 3)?);
    let joined = k.download(&k.join(&[&first, &last])?)?;
    let same = bits(&joined) == bits(&k.download(&odd)?);
    trials.require(same, "rows of one tensor", "the bits are not those of the tensor")
}

pub(super) fn accumulate<K: Kernels>(trials: &mut Trials<'_, K>) -> Outcome {
    for shape in SHAPES {
        let [x, into] = [trials.normal(shape), trials.normal(shape)];
        trial!(trials, "", [x], [into], |k| {
            k.accumulate(into, x)?;
            []
        });
    }
    Ok(())
}

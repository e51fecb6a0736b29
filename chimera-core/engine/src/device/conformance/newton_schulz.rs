//! The iterations of Muon.

use super::Outcome;
use super::trials::{Trials, trial};
use crate::device::reference::Tensor;
use crate::device::{Device, products_of};

/// Runs only on devices that have products.
pub(super) fn newton_schulz<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    if trials.device.products().is_none() {
        return Ok(());
    }
    for [m, n] in [[1, 1], [3, 7], [7, 3], [64, 130], [130, 257]] {
        let length = ((m * n) as f64).sqrt();
        let [x, zeros] = [trials.normal(&[m, n]).map(|x| x / length), Tensor::zeros(&[m, n])];
        trial!(trials, "", [x, zeros], [], |device| {
            let products = products_of(device)?;
            let by = |x, n| products.newton_schulz(x, [3.4445, -4.775, 2.0315], n);
            [by(x, 0)?, by(x, 1)?, by(x, 3)?, by(zeros, 2)?]
        });
    }
    Ok(())
}

//! Dropout of the inputs of adapters during training (Hu et al., LoRA, 2021).

use std::ops::Range;

use chimera_engine::device::Result;
use chimera_engine::layers::{Dropout, Layers};
use chimera_engine::stage::Micro;

use super::width;

/// The stream of the first adapter. Dropout of the model has those below.
const ADAPTERS: u64 = 2 << 32;
/// The most adapters of a layer.
const MAPS: u64 = 3;

/// The dropout of adapters in a pass of a micro-batch. An element's choice depends on seed, step,
/// layer, linear map, and the element's place in the samples of the step, so a recomputed forward
/// and a backward have the choices of their forward, however micro-batches are cut.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct AdapterDropout {
    rate: f64,
    seed: u64,
    step: u64,
    /// The row of the first sample's first row, counted over all samples of the step.
    first_row: u64,
    /// Number of rows of each sample that go through, and of all its rows.
    extents: [usize; 2],
    /// The stream of the layer's first linear map.
    stream: u64,
}

impl AdapterDropout {
    /// Returns the dropout of these `rows` of each sample of `context` rows; `None` if nothing is
    /// dropped.
    pub(in crate::model) fn new(
        (rate, seed): (f64, u64),
        micro: &Micro<'_>,
        context: usize,
        rows: &Range<usize>,
    ) -> Option<Self> {
        let first_row = micro.sample * context as u64 + rows.start as u64;
        let (step, extents) = (micro.step, [rows.len(), context]);
        let (drops, stream) = (micro.training && rate > 0.0, ADAPTERS);
        drops.then_some(AdapterDropout { rate, seed, step, first_row, extents, stream })
    }

    /// Returns the dropout of the layer in a place of the model.
    pub(in crate::model) fn at(self, place: usize) -> Self {
        AdapterDropout { stream: ADAPTERS + MAPS * place as u64, ..self }
    }

    /// Applies the dropout of a linear map to the layer's input, or to its gradient; adds `residual`
    /// if given.
    pub(super) fn apply<D: Layers>(
        &self,
        device: &D,
        map: usize,
        x: &D::Tensor,
        residual: Option<&D::Tensor>,
    ) -> Result<D::Tensor> {
        let ([n_rows, context], width) = (self.extents, width(device, x));
        let by = |sample: usize| {
            let row = self.first_row + (sample * context) as u64;
            let stream = self.stream + map as u64;
            Dropout::new(self.rate, self.seed, self.step, stream, row * width as u64)
        };
        if n_rows == context {
            return device.dropout(x, &by(0), residual);
        }
        let part = |sample: usize| {
            let rows = |all| device.rows(all, sample * n_rows, n_rows);
            let residual = residual.map(rows).transpose()?;
            device.dropout(&rows(x)?, &by(sample), residual.as_ref())
        };
        let n_samples = device.shape(x)[0] / n_rows;
        let parts = (0..n_samples).map(part).collect::<Result<Vec<_>>>()?;
        device.join(&parts.iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use chimera_engine::device::Device;
    use chimera_engine::device::reference::{Reference, Tensor};

    use super::*;

    const CONTEXT: usize = 16;
    const WIDTH: usize = 64;

    fn micro(step: u64, sample: u64, training: bool) -> Micro<'static> {
        Micro { step, sample, input: &[], target: &[], loss_scale: 1.0, training }
    }

    /// The factors of the elements of `n` samples.
    fn factors(micro: &Micro<'_>, rows: Range<usize>, n: usize, at: [usize; 2]) -> Tensor {
        let dropout = AdapterDropout::new((0.25, 3), micro, CONTEXT, &rows).expect("drops");
        let shape = [n * rows.len(), WIDTH];
        let ones = Reference.upload(&shape, &vec![1.0; shape[0] * WIDTH]).expect("room");
        dropout.at(at[0]).apply(&Reference, at[1], &ones, None).expect("runs")
    }

    #[test]
    fn masks_have_the_mean_of_their_rate_and_are_of_their_place() {
        let all = factors(&micro(0, 0, true), 0..CONTEXT, 8, [10, 0]);
        let n = all.data.len() as f64;
        let mean = all.data.iter().sum::<f64>() / n;
        // The deviation of a factor of 4/3 that is there with probability 3/4.
        let deviation = (1.0 / 3.0 / n).sqrt();
        assert!((mean - 1.0).abs() < 4.0 * deviation, "{mean}");
        assert!(all.data.iter().all(|x| *x == 0.0 || (x * 0.75 - 1.0).abs() < 1e-4));
        assert_eq!(factors(&micro(0, 0, true), 0..CONTEXT, 8, [10, 0]).data, all.data);
        for (step, place) in [(1, [10, 0]), (0, [4, 0]), (0, [11, 0]), (0, [10, 1])] {
            let other = factors(&micro(step, 0, true), 0..CONTEXT, 8, place);
            let same = other.data.iter().zip(&all.data).filter(|(a, b)| a == b).count() as f64;
            assert!((same / n - 0.625).abs() < 0.03, "{place:?} shares {same} of {n}");
        }
    }

    #[test]
    fn masks_do_not_depend_on_micro_batches_and_slices() {
        let all = factors(&micro(2, 0, true), 0..CONTEXT, 4, [1, 2]);
        let later = factors(&micro(2, 1, true), 0..CONTEXT, 3, [1, 2]);
        assert_eq!(later.data, all.data[CONTEXT * WIDTH..]);
        let slice = factors(&micro(2, 1, true), 5..11, 2, [1, 2]);
        for (nth, rows) in slice.data.chunks(6 * WIDTH).enumerate() {
            assert_eq!(rows, &all.data[((nth + 1) * CONTEXT + 5) * WIDTH..][..6 * WIDTH]);
        }
    }

    #[test]
    fn nothing_is_dropped_at_rate_0_or_outside_training() {
        let drops = |rate, training| {
            AdapterDropout::new((rate, 3), &micro(0, 0, training), CONTEXT, &(0..CONTEXT)).is_some()
        };
        assert_eq!([drops(0.0, true), drops(0.5, false), drops(0.5, true)], [false, false, true]);
    }
}

//! The raw times of workers, and the measurements that follow from them.

use std::collections::BTreeMap;

use chimera_core::layers::Call;

use super::law::{median, usual};
use super::samples::{N_BLOCKS, Sample};
use super::stage_pass::{Half, HalfCalls, ModelPart};
use super::{LayerTime, Measurements, PartTime, Workers};

/// All times that were measured.
#[derive(Default)]
pub(super) struct Timings {
    layers: BTreeMap<(&'static str, Vec<usize>), Vec<f64>>,
    /// Seconds in all, and in layers, by sample, part and pass.
    parts: BTreeMap<(usize, ModelPart, Half), (Vec<f64>, Vec<f64>)>,
    /// Seconds of the reference work.
    pub(super) reference: Vec<f64>,
    /// The share of its cores that the process got.
    pub(super) core_share: Option<f64>,
}

impl Timings {
    pub(super) fn add_calls(&mut self, calls: impl IntoIterator<Item = Call>) {
        for Call { layer, extents, seconds } in calls {
            self.layers.entry((layer, extents)).or_default().push(seconds);
        }
    }

    pub(super) fn add(&mut self, sample: usize, part: ModelPart, did: Vec<HalfCalls>) {
        for HalfCalls { half, calls, seconds, .. } in did {
            if calls.is_empty() {
                continue;
            }
            let (all, layers) = self.parts.entry((sample, part, half)).or_default();
            let n = if part == ModelPart::Block { N_BLOCKS as f64 } else { 1.0 };
            layers.push(calls.iter().map(|call| call.seconds).sum::<f64>() / n);
            all.push(seconds / n);
            self.add_calls(calls);
        }
    }

    pub(super) fn extend(&mut self, other: Timings) {
        for (key, times) in other.layers {
            self.layers.entry(key).or_default().extend(times);
        }
        for (key, (all, layers)) in other.parts {
            let mine = self.parts.entry(key).or_default();
            mine.0.extend(all);
            mine.1.extend(layers);
        }
        self.reference.extend(other.reference);
        self.core_share = self.core_share.or(other.core_share);
    }

    pub(super) fn measured(
        mut self,
        Workers { workers, threads }: Workers,
        samples: &[Sample],
    ) -> Measurements {
        let layer = |((layer, extents), mut times): ((&str, Vec<usize>), Vec<f64>)| {
            let (count, (seconds, spread)) = (times.len(), usual(&mut times)?);
            Some(LayerTime { layer: layer.into(), extents, count, seconds, spread })
        };
        let part = |((sample, part, op), (mut all, mut layers)): (
            (usize, ModelPart, Half),
            (Vec<f64>, Vec<f64>),
        )| {
            let Sample { model, sequence, samples } = &samples[sample];
            let (seconds, spread) = usual(&mut all)?;
            Some(PartTime {
                model: model.architecture.name().into(),
                hidden: model.hidden,
                heads: model.heads,
                vocab: model.vocab,
                sequence: *sequence,
                samples: *samples,
                part,
                op,
                seconds,
                spread,
                in_layers: (usual(&mut layers)?.0 / seconds).min(1.0),
            })
        };
        let layers = self.layers.into_iter().filter_map(layer).collect();
        let reference_s = median(&mut self.reference);
        let reference_quick_s = self.reference.get(self.reference.len() / 4).copied();
        Measurements {
            workers,
            threads,
            layers,
            parts: self.parts.into_iter().filter_map(part).collect(),
            messages: Vec::new(),
            reductions: Vec::new(),
            sync_s: 0.0,
            reference_s,
            reference_quick_s,
            core_share: self.core_share,
            moves: Vec::new(),
        }
    }
}

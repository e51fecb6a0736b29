//! Interpolated measurements for a number of workers.

use std::collections::{BTreeMap, HashMap};

use super::law::{Law, median};
use super::stage_pass::{Half, ModelPart, SizedPart};
use super::{Measurements, MessageTime, ReductionTime};

/// Interpolated measurements for a number of workers.
#[derive(Debug)]
pub(super) struct Laws {
    /// Seconds of a unit of work and the usual spread, by layer.
    pub(super) layers: HashMap<String, (Law, f64)>,
    /// Total time relative to that in layers, by part and pass, as a function of tokens and width.
    overheads: BTreeMap<(ModelPart, Half), Law>,
    /// Seconds of messages by bytes, in all and of the sender; `None` for one worker.
    pub(super) messages: Option<[Law; 2]>,
    /// Seconds of an element of a reduction by replicas and elements, in all and of its start.
    pub(super) reductions: Option<[Law; 2]>,
    /// The usual spread of messages and of reductions.
    pub(super) exchange_spreads: [f64; 2],
    pub(super) sync_s: f64,
    /// Seconds of a byte that is moved out of memory or back, and the usual spread.
    pub(super) moves: Option<(Law, f64)>,
}

/// The time of a layer or a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub(super) seconds: f64,
    /// As in [`OpTime`](super::OpTime).
    pub(super) growth: f64,
    /// Spread in seconds.
    pub(super) spread: f64,
}

impl Laws {
    pub(super) fn of(measured: &Measurements) -> Laws {
        let mut by_layer: HashMap<String, (Vec<(Vec<usize>, f64)>, Vec<f64>)> = HashMap::new();
        for layer in &measured.layers {
            let (points, spreads) = by_layer.entry(layer.layer.clone()).or_default();
            points.push((layer.extents.clone(), layer.seconds / work(&layer.extents)));
            spreads.push(layer.spread);
        }
        let law = |(layer, (points, mut spreads)): (String, (Vec<_>, Vec<f64>))| {
            Some((layer, (Law::through(points)?, median(&mut spreads))))
        };
        let mut by_part: BTreeMap<(ModelPart, Half), Vec<(Vec<usize>, f64)>> = BTreeMap::new();
        for part in &measured.parts {
            let extents = vec![part.sequence * part.samples, part.hidden];
            let overhead = 1.0 / part.in_layers.max(0.1);
            by_part.entry((part.part, part.op)).or_default().push((extents, overhead));
        }
        let overheads =
            by_part.into_iter().filter_map(|(key, points)| Some((key, Law::through(points)?)));
        let Measurements { messages, reductions, sync_s, moves, .. } = measured;
        let of_messages = |seconds: fn(&MessageTime) -> f64| {
            Law::through(messages.iter().map(|m| (vec![m.bytes], seconds(m))))
        };
        let of_reductions = |seconds: fn(&ReductionTime) -> f64| {
            let each = |r: &ReductionTime| {
                (vec![r.replicas, r.elements], seconds(r) / work(&[r.elements]))
            };
            Law::through(reductions.iter().map(each))
        };
        let of_moves =
            Law::through(moves.iter().map(|m| (vec![m.bytes], m.seconds / work(&[m.bytes]))));
        let both = |[takes, occupies]: [Option<Law>; 2]| Some([takes?, occupies?]);
        Laws {
            layers: by_layer.into_iter().filter_map(law).collect(),
            overheads: overheads.collect(),
            messages: both([of_messages(|m| m.seconds), of_messages(|m| m.occupies)]),
            reductions: both([of_reductions(|r| r.seconds), of_reductions(|r| r.occupies)]),
            exchange_spreads: [
                median(&mut messages.iter().map(|m| m.spread).collect::<Vec<_>>()),
                median(&mut reductions.iter().map(|r| r.spread).collect::<Vec<_>>()),
            ],
            sync_s: *sync_s,
            moves: of_moves
                .map(|law| (law, median(&mut moves.iter().map(|m| m.spread).collect::<Vec<_>>()))),
        }
    }

    /// Returns the time of a layer, or `None` if it was not measured.
    pub(super) fn layer(&self, layer: &str, extents: &[usize]) -> Option<Time> {
        let (law, spread) = self.layers.get(layer)?;
        let seconds = law.at(extents) * work(extents);
        Some(Time { seconds, growth: 0.0, spread: seconds * spread })
    }

    /// Returns the total time of a pass relative to that in layers. Recomputations take the value
    /// of the forward, which makes the same calls.
    pub(super) fn overhead(&self, work: &SizedPart<'_>, half: Half) -> f64 {
        let like = match half {
            Half::Recompute | Half::Restore => Half::Forward,
            half => half,
        };
        let extents = [work.sequence * work.samples / work.slices.max(1), work.model.hidden];
        self.overheads.get(&(work.part, like)).map_or(1.0, |law| law.at(&extents))
    }
}

/// Returns the amount of work that the time of a large call is proportional to.
fn work(extents: &[usize]) -> f64 {
    extents.iter().map(|extent| (*extent).max(1) as f64).product()
}

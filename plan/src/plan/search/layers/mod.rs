//! Models that are not ours: the costs of each of their layers, from a file.

mod candidates;
mod read;

use anyhow::{Result, ensure};
use chimera_core::costs::{StageBytes, StageCosts, UniformCosts};
use chimera_core::ids::StageId;
use chimera_core::timetable::Timetable;

pub use candidates::{Ranks, choose_for};

use chimera_settings::Config;

use crate::plan::Chain;

/// The costs of a model's layers, in order.
#[derive(Clone, PartialEq, Debug)]
pub struct LayerCosts {
    /// Samples of the micro-batch that all times and bytes refer to.
    pub micro_batch_size: usize,
    /// Bytes that a rank holds for each byte of weights: the weights, their gradients, and the optimizer's state.
    state_per_weight: f64,
    layers: Vec<LayerCost>,
}

/// Costs of a layer, or of a stage of several, for one micro-batch: seconds and bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct LayerCost {
    forward_s: f64,
    input_s: f64,
    weight_s: f64,
    weight_bytes: f64,
    activation_bytes: f64,
    message_bytes: f64,
}

impl LayerCost {
    /// Returns the seconds of all three passes.
    fn seconds(&self) -> f64 {
        self.forward_s + self.input_s + self.weight_s
    }

    /// Returns the costs of this layer and the next together. The output is that of the next.
    fn and(self, next: LayerCost) -> LayerCost {
        LayerCost {
            forward_s: self.forward_s + next.forward_s,
            input_s: self.input_s + next.input_s,
            weight_s: self.weight_s + next.weight_s,
            weight_bytes: self.weight_bytes + next.weight_bytes,
            activation_bytes: self.activation_bytes + next.activation_bytes,
            message_bytes: next.message_bytes,
        }
    }
}

impl LayerCosts {
    /// Returns the number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Cuts the model into stages of neighbouring layers, each with at least one, so that the longest takes least time.
    ///
    /// # Errors
    /// If there are fewer layers than stages.
    fn stages(&self, n_stages: usize) -> Result<Vec<LayerCost>> {
        let n = self.layers.len();
        ensure!(
            (1..=n).contains(&n_stages),
            "{n_stages} stages need as many layers, and the model has {n}: choose a smaller depth, or fewer chunks or waves"
        );
        let longest = self.longest_stage(n_stages);
        let mut stages = Vec::with_capacity(n_stages);
        let mut rest = &self.layers[..];
        for nth in 0..n_stages {
            let n_behind = n_stages - nth - 1;
            let most = rest.len() - n_behind;
            let n_taken = if n_behind == 0 { most } else { fitting(rest, longest).clamp(1, most) };
            let (own, behind) = rest.split_at(n_taken);
            stages.extend(own.iter().copied().reduce(LayerCost::and));
            rest = behind;
        }
        Ok(stages)
    }

    /// Returns the seconds of the longest of `n_stages` stages, to a part in 2^50 of the whole.
    fn longest_stage(&self, n_stages: usize) -> f64 {
        let n_needed = |longest: f64| {
            let (mut rest, mut n) = (&self.layers[..], 0);
            while !rest.is_empty() {
                rest = &rest[fitting(rest, longest).max(1)..];
                n += 1;
            }
            n
        };
        let mut low = self.layers.iter().map(LayerCost::seconds).fold(0.0, f64::max);
        let mut high = self.layers.iter().map(LayerCost::seconds).sum::<f64>().max(low);
        if n_needed(low) <= n_stages {
            return low;
        }
        for _ in 0..50 {
            let middle = low + (high - low) / 2.0;
            if n_needed(middle) <= n_stages { high = middle } else { low = middle }
        }
        high
    }

    /// Returns the bytes that stages hold per sample of a micro-batch. A stage of the first layers receives no message.
    fn stage_bytes(&self, stages: &[LayerCost]) -> Vec<StageBytes> {
        let sample = |bytes: f64| bytes / self.micro_batch_size as f64;
        let before = std::iter::once(0.0).chain(stages.iter().map(|stage| stage.message_bytes));
        let bytes = |(stage, input): (&LayerCost, f64)| StageBytes {
            saved: sample(stage.activation_bytes),
            selected: sample(stage.activation_bytes),
            input: sample(input),
            // Until its weight half has run, a layer holds its saved activations.
            deferred: sample(stage.activation_bytes),
            output: sample(stage.message_bytes),
            gradient: sample(input),
            ..StageBytes::default()
        };
        stages.iter().zip(before).map(bytes).collect()
    }
}

/// Returns how many layers from the start take at most `longest` together.
fn fitting(layers: &[LayerCost], longest: f64) -> usize {
    let sums = layers.iter().scan(0.0, |sum, layer| {
        *sum += layer.seconds();
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= longest * (1.0 + 1e-12)).count()
}

impl Chain for LayerCosts {
    fn costs(&self, _: &Config, timetable: &Timetable) -> Result<StageCosts> {
        let stages = self.stages(timetable.placement.n_stages())?;
        Ok(costs_of(&stages, timetable.units_per_micro))
    }

    fn tied(&self, _: usize) -> Vec<Vec<StageId>> {
        Vec::new()
    }
}

/// Returns the times of the stages' ops if a micro-batch is cut into `units`. Recomputing takes as long as a forward.
fn costs_of(stages: &[LayerCost], units: u32) -> StageCosts {
    let stage = |stage: &LayerCost| {
        let costs = UniformCosts::new(stage.forward_s, 0.0, 0.0);
        UniformCosts { input: stage.input_s, weight: stage.weight_s, ..costs }.per_units(units)
    };
    StageCosts::new(stages.iter().map(stage).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(seconds: &[f64]) -> LayerCosts {
        let layer =
            |s: &f64| LayerCost { forward_s: *s, message_bytes: 10.0 * s, ..LayerCost::default() };
        LayerCosts {
            micro_batch_size: 2,
            state_per_weight: 4.0,
            layers: seconds.iter().map(layer).collect(),
        }
    }

    fn cut(seconds: &[f64], n_stages: usize) -> Vec<f64> {
        let stages = model(seconds).stages(n_stages).expect("enough layers");
        stages.iter().map(|stage| stage.forward_s).collect()
    }

    #[test]
    fn stages_are_as_even_as_layers_allow() {
        assert_eq!(cut(&[1.0, 1.0, 1.0, 1.0], 2), [2.0, 2.0]);
        assert_eq!(cut(&[5.0, 1.0, 1.0, 1.0, 4.0], 3), [5.0, 3.0, 4.0]);
        assert_eq!(cut(&[0.1, 0.2, 0.3], 1), [0.1 + 0.2 + 0.3]);
        assert_eq!(cut(&[0.0, 0.0, 0.0], 3), [0.0, 0.0, 0.0], "each has a layer");
        assert_eq!(cut(&[9.0, 0.0, 0.0, 1.0], 4), [9.0, 0.0, 0.0, 1.0]);
        let refused = model(&[1.0]).stages(2).expect_err("too few").to_string();
        assert!(refused.contains("2 stages need as many layers, and the model has 1"), "{refused}");
    }

    #[test]
    fn bytes_are_of_a_sample_and_inputs_those_of_the_stage_before() {
        let model = model(&[1.0, 2.0]);
        let bytes = model.stage_bytes(&model.stages(2).expect("enough layers"));
        assert_eq!((bytes[0].input, bytes[0].output), (0.0, 5.0));
        assert_eq!((bytes[1].input, bytes[1].gradient, bytes[1].output), (5.0, 5.0, 10.0));
    }
}

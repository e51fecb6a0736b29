//! Memory estimates of a stage's passes, run once for one sample on a device that only counts.

use chimera_engine::device::{Counted, Device, Extents, Result};
use chimera_engine::layers::{Activation, Pointwise};
use chimera_engine::stage::{Micro, Output, Param, Slice, Stage};
use chimera_schedule::costs::StageBytes;

use super::config::{Cut, DropoutRate, ModelConfig};
use super::error::ModelError;
use super::table::stage;

/// Any probability above 0 takes the same memory.
const RATE: f64 = 0.5;

/// Memory of a stage on a device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Memory {
    /// Bytes per sample.
    pub sample: StageBytes,
    /// Bytes of the weights' copies as operands of products, if those are not f32.
    pub operands: f64,
    /// Bytes of the stage's own tensors, such as a Llama's table of rotary positions.
    pub own: f64,
}

/// Estimates the memory of the stage `cut` of `config`, for samples of `sequence` tokens, with or
/// without dropout. Activations have `activation_bytes` bytes per element: 4, or 2 for bf16.
///
/// # Errors
/// If there are no such samples.
pub fn memory(
    config: &ModelConfig,
    cut: &Cut,
    sequence: usize,
    drops: bool,
    activation_bytes: u64,
) -> std::result::Result<Memory, ModelError> {
    let (device, rate) = (Counted::new(activation_bytes), if drops { RATE } else { 0.0 });
    let (input, target) = config.sample(&vec![0; sequence], 0);
    let dropout = DropoutRate { rate, seed: 0 };
    let stage = stage(device.clone(), config, sequence, dropout, cut.clone())?;
    let own = device.used() as f64;
    // The counting device has no memory that could run out.
    let counted = count(&device, &stage, cut, &input, &target).unwrap_or_default();
    Ok(Memory { own, ..counted })
}

/// A stage on the counting device, with its weights and a sample.
struct CountedStage<'s, S> {
    device: &'s Counted,
    stage: &'s S,
    cut: &'s Cut,
    micro: Micro<'s>,
    weights: Vec<Extents>,
    /// The shape of the stage's activations.
    shape: Vec<usize>,
}

fn count<S: Stage<Tensor = Extents, Item = u32>>(
    device: &Counted,
    stage: &S,
    cut: &Cut,
    input: &[u32],
    target: &[u32],
) -> Result<Memory> {
    let micro = Micro { step: 0, sample: 0, input, target, loss_scale: 1.0, training: true };
    let tensors = |shape: fn(&Param) -> Vec<usize>| {
        stage.params().iter().map(|p| device.zeros(&shape(p))).collect::<Result<Vec<_>>>()
    };
    let (weights, mut grads) = (tensors(|p| p.shape.clone())?, tensors(Param::gradient_shape)?);
    let shape = stage.sizes().and_then(|sizes| sizes.input_shape(1)).unwrap_or_default();
    let counted = CountedStage { device, stage, cut, micro, weights, shape };
    // Operands are made once, and kept from then on.
    let (dy, saved) = counted.forward(counted.input()?)?;
    let (_, deferred) = stage.backward_input(&counted.weights, &micro, saved, dy)?;
    stage.backward_weight(&micro, deferred, &mut grads)?;
    let operands = counted.weights.iter().map(Extents::cast_bytes).sum::<u64>();

    let mut sample = StageBytes::default();
    counted.count_forward(&mut sample)?;
    counted.count_halves(&mut grads, &mut sample)?;
    counted.count_backward(&mut grads, &mut sample)?;
    Ok(Memory { sample, operands: operands as f64, own: 0.0 })
}

impl<S: Stage<Tensor = Extents, Item = u32>> CountedStage<'_, S> {
    /// Makes a tensor that stages pass to each other.
    fn activation(&self) -> Result<Extents> {
        self.device.activation(&self.device.zeros(&self.shape)?, Activation::Tanh)
    }

    fn input(&self) -> Result<Option<Extents>> {
        if self.cut.first { Ok(None) } else { self.activation().map(Some) }
    }

    fn gradient(&self, y: Extents) -> Result<Extents> {
        if self.cut.last { Ok(y) } else { self.activation() }
    }

    fn forward(&self, x: Option<Extents>) -> Result<(Extents, S::Saved)> {
        let (output, saved) = self.stage.forward(&self.weights, &self.micro, x)?;
        Ok((of_output(output), saved))
    }

    /// Counts a forward, what it keeps, and both kinds of recomputation.
    fn count_forward(&self, sample: &mut StageBytes) -> Result<()> {
        let CountedStage { device, stage, weights, micro, .. } = self;
        let start = device.used();
        let kept = self.input()?;
        sample.input = (device.used() - start) as f64;
        let (most, result) = device.during(|| self.forward(kept.clone()));
        sample.forward = most as f64;
        let (y, saved) = result?;
        drop(kept);
        let all = device.used();
        drop(y);
        sample.saved = (device.used() - start) as f64;
        sample.output = (all - device.used()) as f64;
        if let Some(sliced) = stage.sliced() {
            let slice = Slice { past: &[], of: 1 };
            let (.., left) = sliced.forward_slice(weights, micro, slice, self.input()?)?;
            sample.past = left.iter().map(|left| device.bytes(left) as f64).sum();
        }
        let selective = stage.selective().expect("models here recompute selectively");
        let selected = selective.select(saved);
        sample.selected = (device.used() - start) as f64;
        let (most, saved) = device.during(|| selective.restore(weights, micro, selected));
        sample.restore = most as f64;
        drop(saved);

        let kept = self.input()?;
        let (most, _) = device.during(|| stage.recompute(weights, micro, kept));
        sample.recompute = most as f64;
        Ok(())
    }

    /// Counts the two halves of a backward, and what the first keeps for the second.
    fn count_halves(&self, grads: &mut [Extents], sample: &mut StageBytes) -> Result<()> {
        let CountedStage { device, stage, weights, micro, .. } = self;
        let start = device.used();
        let (y, saved) = self.forward(self.input()?)?;
        let dy = self.gradient(y)?;
        let (most, result) = device.during(|| stage.backward_input(weights, micro, saved, dy));
        sample.backward_input = most as f64;
        let (dx, deferred) = result?;
        let all = device.used();
        drop(dx);
        sample.deferred = (device.used() - start) as f64;
        sample.gradient = (all - device.used()) as f64;
        let (most, result) = device.during(|| stage.backward_weight(micro, deferred, grads));
        sample.backward_weight = most as f64;
        result
    }

    /// Counts a whole backward, until whose end the gradient of the input exists.
    fn count_backward(&self, grads: &mut [Extents], sample: &mut StageBytes) -> Result<()> {
        let CountedStage { device, stage, weights, micro, .. } = self;
        let (y, saved) = self.forward(self.input()?)?;
        let dy = self.gradient(y)?;
        let (most, result) = device.during(|| {
            let (dx, deferred) = stage.backward_input(weights, micro, saved, dy)?;
            stage.backward_weight(micro, deferred, grads)?;
            Ok(dx)
        });
        sample.backward = most as f64;
        result.map(drop)
    }
}

/// Returns the loss's gradient, with which backward begins, or any tensor of the right size.
fn of_output(output: Output<Extents>) -> Extents {
    match output {
        Output::Activation(y) => y,
        Output::Loss { grad, .. } => grad,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Architecture, Llama};
    use super::*;

    #[test]
    fn the_largest_model_is_counted() {
        for architecture in Architecture::ALL {
            let (layers, hidden, heads) = (1 << 14, 1 << 20, 1 << 20);
            let (context, vocab) = (1 << 24, 1 << 24);
            let llama =
                (architecture == Architecture::LLAMA).then(|| Llama::usual(hidden, heads / 2));
            let heads = if llama.is_some() { heads / 2 } else { heads };
            let tied = false;
            let config = ModelConfig {
                architecture,
                layers,
                hidden,
                heads,
                context,
                vocab,
                tied,
                llama,
                end_of_text: None,
            };
            let sample = memory(&config, &Cut::whole(&config), context, false, 4).unwrap().sample;
            assert!(sample.deferred > u64::MAX as f64, "{sample:?}");
        }
    }

    /// Only operands of products are cast, not tables. Activations are half as large.
    #[test]
    fn bf16_halves_activations_and_adds_operands() {
        let config = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 2,
            hidden: 16,
            heads: 2,
            context: 8,
            vocab: 64,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let cut = Cut::whole(&config);
        let [wide, narrow] = [4, 2].map(|bytes| memory(&config, &cut, 8, false, bytes).unwrap());
        assert_eq!((wide.operands, wide.sample.output), (0.0, 4.0 * 8.0 * 64.0));
        let matrices = 2 * 12 * 16 * 16 + 64 * 16;
        let biases = 2 * (3 + 1 + 4 + 1) * 16;
        assert_eq!(narrow.operands, 2.0 * f64::from(matrices + biases));
        assert_eq!(narrow.sample.output, 2.0 * 8.0 * 64.0);
        // Rows of logits are aligned.
        let odd = ModelConfig { vocab: 65, ..config };
        let odd = memory(&odd, &cut, 8, false, 2).unwrap();
        assert_eq!(odd.sample.output, 2.0 * 8.0 * 128.0);
    }
}

//! What a trained model makes of text it has not seen, and of text it is to continue.

use anyhow::{Result, anyhow};
use chimera_core::kernels::Kernels;
use chimera_core::model::{Cut, Gpt2Config, Gpt2Stage};
use chimera_core::stage::{Micro, Output, Param, Stage};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::data::Batch;

/// A whole model on one device.
pub struct Model<K: Kernels> {
    kernels: K,
    config: Gpt2Config,
    weights: Vec<K::Tensor>,
}

impl<K: Kernels> Model<K> {
    /// Puts the tensors of a model onto a device; each parameter of the model must be among them.
    pub fn new(kernels: K, config: &Gpt2Config, tensors: &[(Param, Vec<f32>)]) -> Result<Model<K>> {
        let mut weights = Vec::new();
        for param in config.params(&whole(config)) {
            let found =
                tensors.iter().find(|(p, _)| p.name == param.name && p.shape == param.shape);
            let (_, values) = found.ok_or_else(|| {
                anyhow!("the weights lack {} of shape {:?}", param.name, param.shape)
            })?;
            weights.push(kernels.upload(&param.shape, values)?);
        }
        Ok(Model { kernels, config: config.clone(), weights })
    }

    /// Mean loss over all targets of a batch, in nats, sample by sample.
    pub fn loss(&self, batch: &Batch) -> Result<f64> {
        let context = self.config.context;
        let n_samples = batch.input.len() / context;
        let stage = self.stage(context)?;
        let mut sum = 0.0;
        for (input, target) in batch.input.chunks(context).zip(batch.target.chunks(context)) {
            let loss_scale = 1.0 / (n_samples * context) as f64;
            let micro = Micro { step: 0, sample: 0, input, target, loss_scale };
            let (output, _) = stage.forward(&self.weights, &micro, None)?;
            if let Output::Loss { loss, .. } = output {
                sum += self.kernels.download(&loss)?.iter().map(|l| f64::from(*l)).sum::<f64>();
            }
        }
        Ok(sum)
    }

    /// Continues `prompt` by `count` tokens drawn at `temperature`, the same for the same seed.
    pub fn sample(
        &self,
        prompt: &[u32],
        count: usize,
        temperature: f64,
        seed: u64,
    ) -> Result<Vec<u32>> {
        let mut ids = prompt.to_vec();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..count {
            let input = &ids[ids.len().saturating_sub(self.config.context)..];
            let micro = Micro { step: 0, sample: 0, input, target: &[], loss_scale: 1.0 };
            let (output, _) = self.stage(input.len())?.forward(&self.weights, &micro, None)?;
            if let Output::Activation(logits) = output {
                let last = self.kernels.rows(&logits, input.len() - 1, 1)?;
                let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                ids.push(draw(&self.kernels.download(&last)?, temperature, uniform));
            }
        }
        Ok(ids)
    }

    fn stage(&self, sequence: usize) -> Result<Gpt2Stage<K>> {
        Ok(Gpt2Stage::new(self.kernels.clone(), &self.config, sequence, whole(&self.config))?)
    }
}

fn whole(config: &Gpt2Config) -> Cut {
    Cut { blocks: 0..config.layers, first: true, last: true }
}

/// The id at which the cumulated softmax of `logits / temperature` passes `uniform` in `0..1`.
fn draw(logits: &[f32], temperature: f64, uniform: f64) -> u32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |l: f32| (f64::from(l - highest) / temperature.max(1e-6)).exp();
    let mut left = uniform * logits.iter().map(|l| weight(*l)).sum::<f64>();
    for (id, logit) in (0..).zip(logits) {
        left -= weight(*logit);
        if left < 0.0 {
            return id;
        }
    }
    logits.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.0, f32::ln(3.0), f32::NEG_INFINITY];
        assert_eq!([0.1, 0.24, 0.26, 0.99].map(|u| draw(&logits, 1.0, u)), [0, 0, 1, 1]);
        assert_eq!(draw(&logits, 0.0, 0.01), 1);
    }
}

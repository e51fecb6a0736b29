//! Evaluation of a trained BERT on pairs of segments.

use anyhow::{Result, anyhow, ensure};
use chimera_core::layers::Layers;
use chimera_core::model::{BertStage, Cut, ModelConfig, Objective};
use chimera_core::stage::{Micro, Output, Param, Stage};

use super::upload;
use crate::data::{Batch, Pairs};

/// Numbers of a sample before the positions of its masked tokens.
const COUNTS: usize = 2;

/// A whole BERT on one device.
pub struct Bert<K: Layers> {
    kernels: K,
    config: ModelConfig,
    weights: Vec<K::Tensor>,
}

/// The score of a BERT on a text.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PairScore {
    /// Pairs of segments.
    pub n_samples: u64,
    /// Masked tokens in each pair.
    pub n_masked: usize,
    /// Mean loss over masked tokens, in nats.
    pub masked_loss: f64,
    /// Mean loss over pairs, in nats.
    pub pair_loss: f64,
    /// Share of the pairs whose second segment was classified correctly.
    pub pairs_right: f64,
}

impl<K: Layers> Bert<K> {
    /// Puts the tensors of a model onto a device. They must include each parameter of the model.
    ///
    /// # Errors
    /// If a parameter is missing, or the model is not a BERT.
    pub fn new(kernels: K, config: &ModelConfig, tensors: &[(Param, Vec<f32>)]) -> Result<Bert<K>> {
        ensure!(config.objective() == Objective::MaskedTokens, "the model is no BERT");
        let weights = upload(&kernels, config.params(&Cut::whole(config)), tensors, &[])?;
        Ok(Bert { kernels, config: config.clone(), weights })
    }

    /// Returns the mean loss over the masked tokens of a batch, plus that over its pairs, in nats,
    /// computed sample by sample.
    pub fn loss(&self, batch: &Batch) -> Result<f64> {
        let scale = |target: &[u32]| 1.0 / (batch.n_samples * n_masked(target)) as f64;
        let loss = |(input, target)| self.sample_loss(input, target, scale(target));
        batch.samples().map(loss).sum()
    }

    /// Scores the model on a text, masking tokens by draws from `seed`. `observe` gets the number
    /// of samples done.
    pub fn score(
        &self,
        pairs: &Pairs,
        seed: u64,
        mut observe: impl FnMut(u64),
    ) -> Result<PairScore> {
        let (n_samples, n_masked) = (pairs.n_samples(), pairs.n_masked());
        let mut score = PairScore { n_samples, n_masked, ..PairScore::default() };
        for sample in 0..n_samples {
            let mut batch = pairs.sample(seed, sample)?;
            let mut loss = |flip: u32| {
                if let Some(class) = batch.target.last_mut() {
                    *class ^= flip;
                }
                self.sample_loss(&batch.input, &batch.target, 1.0 / n_masked as f64)
            };
            let right = loss(0)?;
            // With the other class only the pair's loss differs, and the probabilities of both
            // classes sum to 1.
            let margin = right - loss(1)?;
            let pair = margin.max(0.0) + (-margin.abs()).exp().ln_1p();
            score.masked_loss += (right - pair) / n_samples as f64;
            score.pair_loss += pair / n_samples as f64;
            score.pairs_right += f64::from(margin < 0.0) / n_samples as f64;
            observe(sample + 1);
        }
        Ok(score)
    }

    /// Returns the logits of every token of `ids`: `[ids, vocab]`. Those from `second` on are the
    /// second segment.
    ///
    /// # Errors
    /// If there are more ids than the context has tokens, or an id that the model does not know.
    pub fn logits(&self, ids: &[u32], second: usize) -> Result<Vec<f32>> {
        let vocab = self.config.vocab;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(anyhow!("token id {id}, but the model's vocabulary has {vocab} ids"));
        }
        let stage = self.stage(ids.len(), ids.len())?;
        let input = input(ids, second, 0..ids.len() as u32);
        let micro = micro(&input, &[], 1.0);
        match stage.forward(&self.weights, &micro, None)?.0 {
            Output::Activation(logits) => Ok(self.kernels.download(&logits)?),
            Output::Loss { .. } => Ok(Vec::new()), // there are no targets
        }
    }

    /// Returns the next-sentence logit: the log-odds that the second segment is from elsewhere.
    pub fn strangeness(&self, ids: &[u32], second: usize) -> Result<f64> {
        let input = input(ids, second, 0..1);
        let loss = |class| self.sample_loss(&input, &[0, class], 1.0);
        Ok(loss(0)? - loss(1)?) // the loss of masked tokens cancels
    }

    fn stage(&self, sequence: usize, predictions: usize) -> Result<BertStage<K>> {
        let (k, config) = (self.kernels.clone(), &self.config);
        Ok(BertStage::new(k, config, sequence, predictions, Cut::whole(config))?)
    }

    fn sample_loss(&self, input: &[u32], target: &[u32], loss_scale: f64) -> Result<f64> {
        let n_masked = n_masked(target);
        let n_tokens = input.len().saturating_sub(COUNTS + n_masked);
        let stage = self.stage(n_tokens, n_masked)?;
        match stage.forward(&self.weights, &micro(input, target, loss_scale), None)?.0 {
            Output::Loss { loss, .. } => {
                Ok(self.kernels.download(&loss)?.iter().map(|l| f64::from(*l)).sum())
            }
            Output::Activation(_) => Ok(0.0), // there are targets
        }
    }
}

/// Returns the number of masked tokens of a target. Its last number is the class of the pair.
fn n_masked(target: &[u32]) -> usize {
    target.len().saturating_sub(1)
}

/// Builds a sample without padding.
fn input(ids: &[u32], second: usize, predicted: impl Iterator<Item = u32>) -> Vec<u32> {
    let counts: [u32; COUNTS] = [ids.len() as u32, second as u32];
    counts.into_iter().chain(predicted).chain(ids.iter().copied()).collect()
}

fn micro<'m>(input: &'m [u32], target: &'m [u32], loss_scale: f64) -> Micro<'m> {
    Micro { step: 0, sample: 0, input, target, loss_scale, training: false }
}

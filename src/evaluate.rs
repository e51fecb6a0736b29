//! What a trained model makes of text it has not seen, and of text it is to continue.

mod bert;

use anyhow::{Result, anyhow, ensure};
use chimera_core::kernels::Kernels;
use chimera_core::model::{Architecture, Cut, Gpt2Stage, ModelConfig};
use chimera_core::stage::{Micro, Output, Param, Stage};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::data::{Batch, Tokens};

pub use bert::{Bert, PairScore};

/// A whole GPT-2 on one device, in two parts: of a long text the head is asked for some rows alone.
pub struct Model<K: Kernels> {
    kernels: K,
    config: ModelConfig,
    body: Vec<K::Tensor>,
    head: Vec<K::Tensor>,
}

/// How the next token is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// What logits are divided by; at 0 the likeliest token is taken.
    pub temperature: f64,
    /// Draws among so many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Draws among the fewest of the likeliest tokens that have this probability together.
    pub top_p: f64,
    /// Key of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 }
    }
}

/// How well a text was foreseen.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    /// Tokens that were foreseen.
    pub n_targets: usize,
    /// Mean loss over them, in nats.
    pub loss: f64,
}

impl Score {
    /// The exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// Refuses a model that cannot tell what follows a text.
pub fn must_foresee(config: &ModelConfig) -> Result<()> {
    ensure!(
        config.architecture == Architecture::Gpt2,
        "the model is a BERT, which predicts masked tokens: a GPT-2 is needed to foresee and continue text"
    );
    Ok(())
}

impl<K: Kernels> Model<K> {
    /// Puts the tensors of a model onto a device; each parameter of the model must be among them.
    ///
    /// # Errors
    /// If one is missing, or the model is no GPT-2.
    pub fn new(
        kernels: K,
        config: &ModelConfig,
        tensors: &[(Param, Vec<f32>)],
    ) -> Result<Model<K>> {
        must_foresee(config)?;
        let part = |cut: &Cut, shared: &[(Param, K::Tensor)]| {
            upload(&kernels, config.params(cut), tensors, shared)
        };
        let body = part(&body(config), &[])?;
        let head = part(&head(config), &body)?;
        let tensors = |part: Vec<(Param, K::Tensor)>| part.into_iter().map(|(_, t)| t).collect();
        let (body, head) = (tensors(body), tensors(head));
        Ok(Model { kernels, config: config.clone(), body, head })
    }

    /// The sizes of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Mean loss over all targets of a batch, in nats, sample by sample.
    pub fn loss(&self, batch: &Batch) -> Result<f64> {
        let scale = 1.0 / batch.target.len() as f64;
        batch.samples().map(|(input, target)| self.window_loss(input, target, scale)).sum()
    }

    /// Loss of a whole text: windows of `context` tokens, each `stride` tokens after the one before, score those
    /// targets that no window before it did. So each token but the first is foreseen once, from at least
    /// `context - stride` tokens before it where there are as many. `observe` hears how many are done.
    ///
    /// # Errors
    /// If the text has fewer than two tokens, or the window is longer than the model's context.
    pub fn score(
        &self,
        tokens: &Tokens,
        context: usize,
        stride: usize,
        mut observe: impl FnMut(usize),
    ) -> Result<Score> {
        let longest = self.config.context;
        ensure!(
            (1..=longest).contains(&context),
            "a window of {context} tokens: choose 1 to the model's context of {longest}"
        );
        ensure!(
            (1..=context).contains(&stride),
            "a stride of {stride} tokens: choose 1 to the window's {context}"
        );
        ensure!(tokens.len() > 1, "one token alone foresees nothing: give at least two");
        let (mut sum, mut done) = (0.0, 0);
        let n_targets = tokens.len() - 1;
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let mut start = 0;
        while done < n_targets {
            let end = (start + context).min(n_targets);
            input.clear();
            target.clear();
            tokens.extend(&mut input, start..end)?;
            tokens.extend(&mut target, done + 1..end + 1)?;
            sum += self.window_loss(&input, &target, 1.0 / n_targets as f64)?;
            done = end;
            start += stride;
            observe(done);
        }
        Ok(Score { n_targets, loss: sum })
    }

    /// Summed loss of the targets of the last rows of one window, times `loss_scale`.
    fn window_loss(&self, input: &[u32], target: &[u32], loss_scale: f64) -> Result<f64> {
        let (head, x) = self.last_rows(input, target.len())?;
        let micro = Micro { step: 0, sample: 0, input: &[], target, loss_scale, training: false };
        match head.forward(&self.head, &micro, Some(x))?.0 {
            Output::Loss { loss, .. } => {
                Ok(self.kernels.download(&loss)?.iter().map(|l| f64::from(*l)).sum())
            }
            Output::Activation(_) => Ok(0.0), // there are targets
        }
    }

    /// The logits of what comes after each of the last `n_rows` tokens of `input`: `[n_rows, vocab]`.
    ///
    /// # Errors
    /// If `input` is longer than the context, or has an id that the model does not know.
    pub fn logits(&self, input: &[u32], n_rows: usize) -> Result<Vec<f32>> {
        let vocab = self.config.vocab;
        if let Some(id) = input.iter().find(|id| **id as usize >= vocab) {
            return Err(anyhow!("token id {id}, but the model's vocabulary has {vocab} ids"));
        }
        let (head, x) = self.last_rows(input, n_rows.min(input.len()))?;
        let micro =
            Micro { step: 0, sample: 0, input: &[], target: &[], loss_scale: 1.0, training: false };
        match head.forward(&self.head, &micro, Some(x))?.0 {
            Output::Activation(logits) => Ok(self.kernels.download(&logits)?),
            Output::Loss { .. } => Ok(Vec::new()), // there are no targets
        }
    }

    /// Continues `prompt` by `count` tokens, the same for the same seed.
    ///
    /// Each token is a forward pass over the last `context` tokens at most: nothing is kept from one to the
    /// next.
    pub fn sample(&self, prompt: &[u32], count: usize, how: &Sampling) -> Result<Vec<u32>> {
        ensure!(!prompt.is_empty(), "the prompt is empty: give at least one token");
        let mut ids = prompt.to_vec();
        let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
        for _ in 0..count {
            let input = &ids[ids.len().saturating_sub(self.config.context)..];
            let logits = self.logits(input, 1)?;
            let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            ids.push(draw(&logits, how, uniform));
        }
        Ok(ids)
    }

    /// The last rows of what the body makes of one sample, and the head for so many.
    fn last_rows(&self, input: &[u32], n_rows: usize) -> Result<(Gpt2Stage<K>, K::Tensor)> {
        let (k, config) = (&self.kernels, &self.config);
        let stage = |sequence, cut| Gpt2Stage::new(k.clone(), config, sequence, cut);
        let micro =
            Micro { step: 0, sample: 0, input, target: &[], loss_scale: 1.0, training: false };
        let body = stage(input.len(), body(config))?;
        let head = stage(n_rows, head(config))?;
        match body.forward(&self.body, &micro, None)?.0 {
            Output::Activation(x) if n_rows == input.len() => Ok((head, x)),
            Output::Activation(x) => Ok((head, k.rows(&x, input.len() - n_rows, n_rows)?)),
            Output::Loss { .. } => Err(anyhow!("the body has no loss")),
        }
    }
}

/// The tensors of `params` on a device: those that are there already, by name, or by their values.
fn upload<K: Kernels>(
    kernels: &K,
    params: Vec<Param>,
    tensors: &[(Param, Vec<f32>)],
    there: &[(Param, K::Tensor)],
) -> Result<Vec<(Param, K::Tensor)>> {
    let each = params.into_iter().map(|param| {
        if let Some((_, table)) = there.iter().find(|(p, _)| p.name == param.name) {
            return Ok((param, table.clone()));
        }
        let found = tensors.iter().find(|(p, _)| p.name == param.name && p.shape == param.shape);
        let (_, values) = found
            .ok_or_else(|| anyhow!("the weights lack {} of shape {:?}", param.name, param.shape))?;
        let tensor = kernels.upload(&param.shape, values)?;
        Ok((param, tensor))
    });
    each.collect()
}

fn body(config: &ModelConfig) -> Cut {
    Cut { blocks: 0..config.layers, first: true, last: false }
}

fn head(config: &ModelConfig) -> Cut {
    Cut { blocks: config.layers..config.layers, first: false, last: true }
}

/// The id at which the cumulated softmax of `logits / temperature`, over the ids that may be drawn, passes
/// `uniform` in `0..1`.
fn draw(logits: &[f32], how: &Sampling, uniform: f64) -> u32 {
    let by_rank = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let Some(likeliest) = (0..logits.len()).min_by(by_rank) else { return 0 };
    if how.temperature == 0.0 {
        return likeliest as u32;
    }
    let weight = |logit: f32| (f64::from(logit - logits[likeliest]) / how.temperature).exp();
    let mut weights: Vec<f64> = logits.iter().copied().map(weight).collect();
    if how.top_k.is_some() || how.top_p < 1.0 {
        let mut ranked: Vec<usize> = (0..logits.len()).collect();
        ranked.sort_by(by_rank);
        let mut n_kept = how.top_k.unwrap_or(ranked.len()).clamp(1, ranked.len());
        let mut left = how.top_p * ranked[..n_kept].iter().map(|id| weights[*id]).sum::<f64>();
        let enough = ranked[..n_kept].iter().position(|id| {
            left -= weights[*id];
            left <= 0.0
        });
        n_kept = enough.map_or(n_kept, |last| last + 1);
        for id in &ranked[n_kept..] {
            weights[*id] = 0.0;
        }
    }
    let mut left = uniform * weights.iter().sum::<f64>();
    for (id, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    likeliest as u32
}

#[cfg(test)]
mod tests {
    use super::{Sampling, draw};

    const UNIFORMS: [f64; 5] = [0.05, 0.15, 0.35, 0.65, 0.99];

    /// Draws from probabilities of 0.1, 0.4, 0.2 and 0.3.
    fn draws(how: Sampling) -> [u32; 5] {
        let logits = [1.0f32, 4.0, 2.0, 3.0].map(f32::ln);
        UNIFORMS.map(|uniform| draw(&logits, &how, uniform))
    }

    #[test]
    fn draws_follow_the_distribution() {
        let all = Sampling::default();
        let logits = [0.0, f32::ln(3.0), f32::NEG_INFINITY];
        assert_eq!([0.1, 0.24, 0.26, 0.99].map(|u| draw(&logits, &all, u)), [0, 0, 1, 1]);
        assert_eq!(draws(all), [0, 1, 1, 2, 3]);
        assert_eq!(draws(Sampling { temperature: 0.0, ..all }), [1; 5]);
        assert_eq!(draws(Sampling { temperature: 1e-9, ..all }), [1; 5]);
        // Squared and normalised: 1, 16, 4 and 9 of 30.
        assert_eq!(draws(Sampling { temperature: 0.5, ..all }), [1, 1, 1, 2, 3]);
    }

    #[test]
    fn the_tail_is_cut_off() {
        let all = Sampling::default();
        assert_eq!(draws(Sampling { top_k: Some(1), ..all }), [1; 5]);
        // 4 and 3 of 7.
        assert_eq!(draws(Sampling { top_k: Some(2), ..all }), [1, 1, 1, 3, 3]);
        assert_eq!(draws(Sampling { top_p: 0.6, ..all }), [1, 1, 1, 3, 3]);
        assert_eq!(draws(Sampling { top_p: 0.3, ..all }), [1; 5]);
        // Of the 4 and 3 that are left, 4 are more than half.
        assert_eq!(draws(Sampling { top_k: Some(2), top_p: 0.5, ..all }), [1; 5]);
        assert_eq!(draws(Sampling { top_k: Some(9), ..all }), draws(all));
    }

    #[test]
    fn of_equals_the_first_is_taken() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(draw(&[1.0, 2.0, 2.0], &greedy, 0.9), 1);
    }
}

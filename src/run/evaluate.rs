//! What a trained model makes of text it has not seen, and of text it is to continue.

mod bert;
mod sampling;

use anyhow::{Result, anyhow, ensure};
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, DropoutRate, KvCache, ModelConfig, Objective, decoder, stage};
use chimera_core::stage::{AnyStage, Micro, Output, Param};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::data::{Batch, Tokens};

pub use bert::{Bert, PairScore};
pub use sampling::Sampling;
use sampling::draw;

/// A whole model that predicts the next token, on one device, in two parts: of a long text the head is asked for some rows alone.
pub struct CausalLm<K: Layers> {
    kernels: K,
    config: ModelConfig,
    body: Vec<K::Tensor>,
    head: Vec<K::Tensor>,
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
        config.objective() == Objective::NextToken,
        "the model is a {}, which predicts masked tokens: a GPT-2 or a Llama is needed to foresee and continue text",
        config.architecture
    );
    Ok(())
}

impl<K: Layers> CausalLm<K> {
    /// Puts the tensors of a model onto a device; each parameter of the model must be among them.
    ///
    /// # Errors
    /// If one is missing, or the model does not predict the next token.
    pub fn new(
        kernels: K,
        config: &ModelConfig,
        tensors: &[(Param, Vec<f32>)],
    ) -> Result<CausalLm<K>> {
        must_foresee(config)?;
        // Whether the device has the layers.
        stage(kernels.clone(), config, 1, DropoutRate::default(), Cut::body(config))?;
        let part = |cut: &Cut, shared: &[(Param, K::Tensor)]| {
            upload(&kernels, config.params(cut), tensors, shared)
        };
        let body = part(&Cut::body(config), &[])?;
        let head = part(&head(config), &body)?;
        let tensors = |part: Vec<(Param, K::Tensor)>| part.into_iter().map(|(_, t)| t).collect();
        let (body, head) = (tensors(body), tensors(head));
        Ok(CausalLm { kernels, config: config.clone(), body, head })
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
        let last = tokens.len() - 1;
        let n_targets = tokens.n_targets(self.config.end_of_text)?;
        ensure!(n_targets > 0, "no token of the text is a target");
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let mut start = 0;
        while done < last {
            let end = (start + context).min(last);
            input.clear();
            target.clear();
            tokens.extend(&mut input, start..end)?;
            tokens.extend_targets(&mut target, done + 1..end + 1, self.config.end_of_text)?;
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
        self.must_know(input)?;
        let (head, x) = self.last_rows(input, n_rows.min(input.len()))?;
        self.logits_of(&head, x)
    }

    /// What the head makes of rows of the body.
    fn logits_of(&self, head: &AnyStage<K::Tensor>, x: K::Tensor) -> Result<Vec<f32>> {
        let micro =
            Micro { step: 0, sample: 0, input: &[], target: &[], loss_scale: 1.0, training: false };
        match head.forward(&self.head, &micro, Some(x))?.0 {
            Output::Activation(logits) => Ok(self.kernels.download(&logits)?),
            Output::Loss { .. } => Ok(Vec::new()), // there are no targets
        }
    }

    fn must_know(&self, ids: &[u32]) -> Result<()> {
        let vocab = self.config.vocab;
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(anyhow!("token id {id}, but the model's vocabulary has {vocab} ids")),
            None => Ok(()),
        }
    }

    /// Continues `prompt` by at most `count` tokens, the same for the same seed. `drawn` hears of each at once, and says whether
    /// the text goes on.
    ///
    /// Each token follows from those before it, at most a window of them. As long as all are within the window, queries,
    /// keys and values are kept from one token to the next; beyond it places change with every token, and each takes a
    /// forward pass over the window.
    pub fn sample(
        &self,
        prompt: &[u32],
        count: usize,
        how: &Sampling,
        mut drawn: impl FnMut(u32) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        ensure!(!prompt.is_empty(), "the prompt is empty: give at least one token");
        let mut ids = prompt.to_vec();
        let mut rng = ChaCha8Rng::seed_from_u64(how.seed);
        let context = self.config.context;
        let window = how.window.unwrap_or(context).clamp(1, context);
        self.must_know(prompt)?;
        let (decoder, mut cache) =
            (decoder(self.kernels.clone(), &self.config, window)?, KvCache::new());
        for _ in 0..count {
            let logits = match &decoder {
                Some(decoder) if ids.len() <= window => {
                    let x = decoder.follow(&self.body, &ids[cache.len()..], &mut cache)?;
                    let last = self.kernels.shape(&x)[0] - 1;
                    self.logits_of(&self.head(1)?, self.kernels.rows(&x, last, 1)?)?
                }
                _ => self.logits(&ids[ids.len().saturating_sub(window)..], 1)?,
            };
            let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let id = draw(&logits, how, uniform);
            ids.push(id);
            if !drawn(id)? {
                break;
            }
        }
        Ok(ids)
    }

    /// The head for so many rows.
    fn head(&self, n_rows: usize) -> Result<AnyStage<K::Tensor>> {
        let (k, config) = (self.kernels.clone(), &self.config);
        Ok(stage(k, config, n_rows, DropoutRate::default(), head(config))?)
    }

    /// The last rows of what the body makes of one sample, and the head for so many.
    fn last_rows(&self, input: &[u32], n_rows: usize) -> Result<(AnyStage<K::Tensor>, K::Tensor)> {
        let (k, config) = (&self.kernels, &self.config);
        let micro =
            Micro { step: 0, sample: 0, input, target: &[], loss_scale: 1.0, training: false };
        let body =
            stage(k.clone(), config, input.len(), DropoutRate::default(), Cut::body(config))?;
        let head = self.head(n_rows)?;
        match body.forward(&self.body, &micro, None)?.0 {
            Output::Activation(x) if n_rows == input.len() => Ok((head, x)),
            Output::Activation(x) => Ok((head, k.rows(&x, input.len() - n_rows, n_rows)?)),
            Output::Loss { .. } => Err(anyhow!("the body has no loss")),
        }
    }
}

/// The tensors of `params` on a device: those that are there already, by name, or by their values.
fn upload<K: Layers>(
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

fn head(config: &ModelConfig) -> Cut {
    Cut { blocks: config.layers..config.layers, first: false, last: true }
}

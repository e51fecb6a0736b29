//! Evaluation of a trained model on unseen text, and continuation of texts.

mod bert;
mod continuation;
mod sampling;
mod windows;

use anyhow::{Context, Result, anyhow, ensure};
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, DropoutRate, ModelConfig, Objective, cut, stage};
use chimera_core::stage::{AnyStage, Micro, Output, Param};

use crate::data::{Batch, Tokens, n_ignored};

pub use bert::{Bert, PairScore};
pub use sampling::Sampling;

use self::windows::Windows;

/// The most logits that the head computes at a time.
const MOST_LOGITS: usize = 1 << 26;

/// A whole model that predicts the next token, cut into stages on one device or several. The head
/// is a stage of its own, because a long text needs the logits of some rows only.
pub struct CausalLm<K: Layers> {
    config: ModelConfig,
    body: Vec<Piece<K>>,
    head: Piece<K>,
}

/// A stage with its weights, on its device.
struct Piece<K: Layers> {
    kernels: K,
    cut: Cut,
    weights: Vec<K::Tensor>,
}

impl<K: Layers> Piece<K> {
    /// Returns the stage for samples of `n_rows` tokens.
    fn stage(&self, config: &ModelConfig, n_rows: usize) -> Result<AnyStage<K::Tensor>> {
        let (k, cut) = (self.kernels.clone(), self.cut.clone());
        Ok(stage(k, config, n_rows, DropoutRate::default(), cut)?)
    }

    /// Runs a stage of the body on one sample, with the activations before it, and returns a row for
    /// each token.
    fn rows(&self, config: &ModelConfig, input: &[u32], x: Option<K::Tensor>) -> Result<K::Tensor> {
        let micro =
            Micro { step: 0, sample: 0, input, target: &[], loss_scale: 1.0, training: false };
        match self.stage(config, input.len())?.forward(&self.weights, &micro, x)?.0 {
            Output::Activation(x) => Ok(x),
            Output::Loss { .. } => Err(anyhow!("the body has no loss")),
        }
    }
}

/// The score of a model on a text.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    /// Tokens that were predicted.
    pub n_targets: usize,
    /// Mean loss over them, in nats.
    pub loss: f64,
}

impl Score {
    /// Returns the exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }
}

/// Refuses a model that does not predict the next token.
pub fn must_foresee(config: &ModelConfig) -> Result<()> {
    ensure!(
        config.objective() == Objective::NextToken,
        "the model is a {}, which predicts masked tokens: a GPT-2 or a Llama is needed to predict \
         and continue text",
        config.architecture
    );
    Ok(())
}

impl<K: Layers> CausalLm<K> {
    /// Puts the tensors of a model onto a device. They must include each parameter of the model.
    ///
    /// # Errors
    /// If a parameter is missing, or the model does not predict the next token.
    pub fn new(
        kernels: K,
        config: &ModelConfig,
        tensors: &[(Param, Vec<f32>)],
    ) -> Result<CausalLm<K>> {
        Self::over(&[kernels], config, tensors)
    }

    /// Puts a stage of the model onto each of the devices. Activations go from one to the next through the host.
    ///
    /// # Errors
    /// As for [`CausalLm::new`], or if there are more devices than layers.
    pub fn over(
        devices: &[K],
        config: &ModelConfig,
        tensors: &[(Param, Vec<f32>)],
    ) -> Result<CausalLm<K>> {
        must_foresee(config)?;
        let mut body: Vec<Piece<K>> = Vec::new();
        // The length of samples is only known with the samples.
        let whole = ModelConfig { end_of_text: None, ..config.clone() };
        for (kernels, cut) in devices.iter().zip(cut(&whole, whole.context, devices.len())?) {
            let cut = Cut { last: false, ..cut };
            // Checks that the device has the layers.
            stage(kernels.clone(), config, 1, DropoutRate::default(), cut.clone())?;
            let weights = upload(kernels, config.params(&cut), tensors, &[])?;
            body.push(Piece { kernels: kernels.clone(), cut, weights });
        }
        let (first, last) = (body.first(), body.last());
        let (first, last) = first.zip(last).context("a model is on at least one device")?;
        let cut = Cut {
            blocks: config.layers..config.layers,
            first: false,
            last: true,
            ..Cut::default()
        };
        let (params, kernels) = (config.params(&cut), last.kernels.clone());
        let shared = config.params(&first.cut).into_iter().zip(&first.weights);
        let shared: Vec<_> = if body.len() == 1 { shared.collect() } else { Vec::new() };
        let weights = upload(&kernels, params, tensors, &shared)?;
        let head = Piece { kernels, cut, weights };
        Ok(CausalLm { config: config.clone(), body, head })
    }

    /// Returns the sizes of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the mean loss in nats over the targets of a batch that count, computed sample by sample.
    pub fn loss(&self, batch: &Batch) -> Result<f64> {
        let n_counted = batch.target.len() - n_ignored(&batch.target);
        let scale = 1.0 / n_counted.max(1) as f64;
        batch.samples().map(|(input, target)| self.window_loss(input, target, scale)).sum()
    }

    /// Computes the loss of a whole text. Windows of `context` tokens, each `stride` tokens after the one before,
    /// score those targets that no earlier window scored. So each token but the first is predicted once, from at
    /// least `context - stride` tokens where that many come before it. `observe` gets the number of tokens done.
    ///
    /// # Errors
    /// If the text has fewer than two tokens, or the window is longer than the model's context.
    pub fn score(
        &self,
        tokens: &Tokens,
        context: usize,
        stride: usize,
        observe: impl FnMut(usize),
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
        ensure!(tokens.len() > 1, "a single token predicts nothing: give at least two");
        let end_of_text = self.config.end_of_text;
        let n_targets = tokens.n_targets(end_of_text)?;
        ensure!(n_targets > 0, "no token of the text is a target");
        let windows = Windows { tokens, context, stride, end_of_text, start: 0, done: 0 };
        let loss = self.sum_losses(windows, 1.0 / n_targets as f64, observe)?;
        Ok(Score { n_targets, loss })
    }

    /// Returns the summed loss of the targets of a window's last rows, times `loss_scale`.
    fn window_loss(&self, input: &[u32], target: &[u32], loss_scale: f64) -> Result<f64> {
        self.head_loss(&self.body_rows(input)?, input.len(), target, loss_scale)
    }

    /// Returns the summed loss of the targets of the last of `n_rows` rows of the body. The head
    /// computes the logits of some rows at a time: all logits of a long window and a large vocabulary
    /// would take more memory than the model.
    fn head_loss(
        &self,
        x: &K::Tensor,
        n_rows: usize,
        target: &[u32],
        loss_scale: f64,
    ) -> Result<f64> {
        let kernels = &self.head.kernels;
        let mut row = n_rows - target.len();
        let mut sum = 0.0;
        for target in target.chunks((MOST_LOGITS / self.config.vocab).max(1)) {
            let micro =
                Micro { step: 0, sample: 0, input: &[], target, loss_scale, training: false };
            let x = kernels.rows(x, row, target.len())?;
            let head = self.head.stage(&self.config, target.len())?;
            if let Output::Loss { loss, .. } = head.forward(&self.head.weights, &micro, Some(x))?.0
            {
                sum += kernels.download(&loss)?.iter().map(|l| f64::from(*l)).sum::<f64>();
            }
            row += target.len();
        }
        Ok(sum)
    }

    /// Returns the logits for the token after each of the last `n_rows` tokens of `input`: `[n_rows, vocab]`.
    ///
    /// # Errors
    /// If `input` is longer than the context, or has an id that the model does not know.
    pub fn logits(&self, input: &[u32], n_rows: usize) -> Result<Vec<f32>> {
        self.must_know(input)?;
        let n_rows = n_rows.min(input.len());
        let x = self.body_rows(input)?;
        let x = self.head.kernels.rows(&x, input.len() - n_rows, n_rows)?;
        self.logits_of(&self.head.stage(&self.config, n_rows)?, x)
    }

    /// Returns the logits that the head computes from rows of the body.
    fn logits_of(&self, head: &AnyStage<K::Tensor>, x: K::Tensor) -> Result<Vec<f32>> {
        let micro =
            Micro { step: 0, sample: 0, input: &[], target: &[], loss_scale: 1.0, training: false };
        match head.forward(&self.head.weights, &micro, Some(x))?.0 {
            Output::Activation(logits) => Ok(self.head.kernels.download(&logits)?),
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

    /// Runs the body on one sample and returns a row for each token.
    fn body_rows(&self, input: &[u32]) -> Result<K::Tensor> {
        self.through(|_, piece, x| piece.rows(&self.config, input, x))
    }

    /// Calls `forward` with each stage and its number in turn, and returns the output of the last.
    fn through(
        &self,
        mut forward: impl FnMut(usize, &Piece<K>, Option<K::Tensor>) -> Result<K::Tensor>,
    ) -> Result<K::Tensor> {
        let (first, rest) = self.body.split_first().context("a model has a stage")?;
        let (mut x, mut from) = (forward(0, first, None)?, &first.kernels);
        for (nth, piece) in (1..).zip(rest) {
            let here = piece.kernels.upload(&from.shape(&x), &from.download(&x)?)?;
            (x, from) = (forward(nth, piece, Some(here))?, &piece.kernels);
        }
        Ok(x)
    }
}

/// Returns the tensors of `params` on a device. Tensors that are `there` already are reused by
/// name, and the others are uploaded.
fn upload<K: Layers>(
    kernels: &K,
    params: Vec<Param>,
    tensors: &[(Param, Vec<f32>)],
    there: &[(Param, &K::Tensor)],
) -> Result<Vec<K::Tensor>> {
    let each = params.into_iter().map(|param| {
        if let Some((_, table)) = there.iter().find(|(p, _)| p.name == param.name) {
            return Ok((*table).clone());
        }
        let found = tensors.iter().find(|(p, _)| p.name == param.name && p.shape == param.shape);
        let (_, values) = found
            .ok_or_else(|| anyhow!("the weights lack {} of shape {:?}", param.name, param.shape))?;
        Ok(kernels.upload(&param.shape, values)?)
    });
    each.collect()
}

//! Evaluation of a trained model on unseen text, and continuation of texts.

mod bert;
mod continuation;
mod decoded;
mod decoding;
mod draws;
mod piece;
mod sampling;
mod scoring;
mod staged;
mod windows;

use anyhow::{Context, Result, anyhow, ensure};
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, ModelConfig, Objective, cut};
use chimera_core::stage::Param;

use crate::data::{Batch, n_ignored};

pub use bert::{Bert, PairScore};
pub use decoding::{Decoding, Drawn};
pub use sampling::Sampling;
pub use scoring::{Score, Scoring};
pub use staged::Staged;
pub use windows::Windows;

use self::piece::Piece;
use self::staged::head_of;

/// A whole model that predicts the next token, cut into stages on one device or several. The head
/// is a stage of its own, because a long text needs the logits of some rows only.
pub struct CausalLm<K: Layers> {
    config: ModelConfig,
    body: Vec<Weighted<K>>,
    head: Weighted<K>,
}

/// A stage with its weights, on its device.
struct Weighted<K: Layers> {
    piece: Piece<K>,
    weights: Vec<K::Tensor>,
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
        let mut body: Vec<Weighted<K>> = Vec::new();
        // The length of samples is only known with the samples.
        let whole = ModelConfig { end_of_text: None, ..config.clone() };
        for (kernels, cut) in devices.iter().zip(cut(&whole, whole.context, devices.len())?) {
            let cut = Cut { last: false, ..cut };
            let weights = upload(kernels, config.params(&cut), tensors, &[])?;
            let piece = Piece { kernels: kernels.clone(), config: config.clone(), cut };
            piece.stage(1)?; // checks that the device has the layers
            body.push(Weighted { piece, weights });
        }
        let (first, last) = (body.first(), body.last());
        let (first, last) = first.zip(last).context("a model is on at least one device")?;
        let cut = head_of(config);
        let (params, kernels) = (config.params(&cut), last.piece.kernels.clone());
        let shared = config.params(&first.piece.cut).into_iter().zip(&first.weights);
        let shared: Vec<_> = if body.len() == 1 { shared.collect() } else { Vec::new() };
        let weights = upload(&kernels, params, tensors, &shared)?;
        let piece = Piece { kernels, config: config.clone(), cut };
        let head = Weighted { piece, weights };
        Ok(CausalLm { config: config.clone(), body, head })
    }

    /// Returns the mean loss in nats over the targets of a batch that count, computed sample by sample.
    pub fn loss(&self, batch: &Batch) -> Result<f64> {
        let n_counted = batch.target.len() - n_ignored(&batch.target);
        let scale = 1.0 / n_counted.max(1) as f64;
        batch.samples().map(|(input, target)| self.window_loss(input, target, scale)).sum()
    }

    /// Returns the summed loss of the targets of a window's last rows, times `loss_scale`.
    fn window_loss(&self, input: &[u32], target: &[u32], loss_scale: f64) -> Result<f64> {
        let (rows, Weighted { piece, weights }) = (self.body_rows(input)?, &self.head);
        Ok(piece.head_loss(weights, &rows, input.len(), (target, loss_scale))?)
    }

    /// Returns the logits for the token after each of the last `n_rows` tokens of `input`: `[n_rows, vocab]`.
    ///
    /// # Errors
    /// If `input` is longer than the context, or has an id that the model does not know.
    pub fn logits(&self, input: &[u32], n_rows: usize) -> Result<Vec<f32>> {
        check_ids(&self.config, input)?;
        let n_rows = n_rows.min(input.len());
        let x = self.body_rows(input)?;
        let x = self.head.piece.kernels.rows(&x, input.len() - n_rows, n_rows)?;
        Ok(self.head.piece.logits(&self.head.weights, x, n_rows)?)
    }

    /// Runs the body on one sample and returns a row for each token.
    fn body_rows(&self, input: &[u32]) -> Result<K::Tensor> {
        self.through(|_, stage, x| Ok(stage.piece.rows(&stage.weights, input, x)?))
    }

    /// Calls `forward` with each stage and its number in turn, and returns the output of the last.
    fn through(
        &self,
        mut forward: impl FnMut(usize, &Weighted<K>, Option<K::Tensor>) -> Result<K::Tensor>,
    ) -> Result<K::Tensor> {
        let (first, rest) = self.body.split_first().context("a model has a stage")?;
        let (mut x, mut from) = (forward(0, first, None)?, &first.piece.kernels);
        for (nth, stage) in (1..).zip(rest) {
            let kernels = &stage.piece.kernels;
            let here = kernels.upload(&from.shape(&x), &from.download(&x)?)?;
            (x, from) = (forward(nth, stage, Some(here))?, kernels);
        }
        Ok(x)
    }
}

/// Refuses a prompt that a model cannot continue.
fn check_prompt(config: &ModelConfig, prompt: &[u32]) -> Result<()> {
    ensure!(!prompt.is_empty(), "the prompt is empty: give at least one token");
    check_ids(config, prompt)
}

/// Refuses tokens that a model does not know.
fn check_ids(config: &ModelConfig, ids: &[u32]) -> Result<()> {
    let vocab = config.vocab;
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(anyhow!("token id {id}, but the model's vocabulary has {vocab} ids")),
        None => Ok(()),
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
        Ok(kernels.upload(&param.shape, the_tensor(tensors, &param)?)?)
    });
    each.collect()
}

/// Finds the values of a parameter.
fn the_tensor<'t, V>(tensors: &'t [(Param, V)], param: &Param) -> Result<&'t V> {
    let found = tensors.iter().find(|(p, _)| p.name == param.name && p.shape == param.shape);
    let (_, values) = found
        .ok_or_else(|| anyhow!("the weights lack {} of shape {:?}", param.name, param.shape))?;
    Ok(values)
}

//! A stage of a model for texts of any length, or its head.

use chimera_core::device::DeviceError;
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, DropoutRate, ModelConfig, stage};
use chimera_core::stage::{AnyStage, Micro, Output};

/// The most logits that the head computes at a time.
const MOST_LOGITS: usize = 1 << 26;

/// A part of a model on a device, without its weights.
pub(super) struct Piece<K: Layers> {
    pub(super) kernels: K,
    pub(super) config: ModelConfig,
    pub(super) cut: Cut,
}

impl<K: Layers> Piece<K> {
    /// Returns the stage for samples of `n_rows` tokens.
    pub(super) fn stage(&self, n_rows: usize) -> Result<AnyStage<K::Tensor>, DeviceError> {
        let (k, cut) = (self.kernels.clone(), self.cut.clone());
        stage(k, &self.config, n_rows, DropoutRate::default(), cut)
            .map_err(|error| self.failed(error.to_string()))
    }

    /// Runs a stage of the body on one sample, with the activations before it, and returns a row for
    /// each token.
    pub(super) fn rows(
        &self,
        w: &[K::Tensor],
        input: &[u32],
        x: Option<K::Tensor>,
    ) -> Result<K::Tensor, DeviceError> {
        let micro =
            Micro { step: 0, sample: 0, input, target: &[], loss_scale: 1.0, training: false };
        match self.stage(input.len())?.forward(w, &micro, x)?.0 {
            Output::Activation(x) => Ok(x),
            Output::Loss { .. } => Err(self.failed("the body has no loss".into())),
        }
    }

    /// Returns the summed loss of the targets of the last of `n_rows` rows of the body, if this is the
    /// head. It computes the logits of some rows at a time: all logits of a long window and a large
    /// vocabulary would take more memory than the model.
    pub(super) fn head_loss(
        &self,
        w: &[K::Tensor],
        x: &K::Tensor,
        n_rows: usize,
        (target, loss_scale): (&[u32], f64),
    ) -> Result<f64, DeviceError> {
        let kernels = &self.kernels;
        let mut row = n_rows - target.len();
        let mut sum = 0.0;
        for target in target.chunks((MOST_LOGITS / self.config.vocab).max(1)) {
            let micro =
                Micro { step: 0, sample: 0, input: &[], target, loss_scale, training: false };
            let x = kernels.rows(x, row, target.len())?;
            if let Output::Loss { loss, .. } =
                self.stage(target.len())?.forward(w, &micro, Some(x))?.0
            {
                sum += kernels.download(&loss)?.iter().map(|l| f64::from(*l)).sum::<f64>();
            }
            row += target.len();
        }
        Ok(sum)
    }

    /// Returns the logits of `n_rows` rows of the body, if this is the head.
    pub(super) fn logits(
        &self,
        w: &[K::Tensor],
        rows: K::Tensor,
        n_rows: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let micro =
            Micro { step: 0, sample: 0, input: &[], target: &[], loss_scale: 1.0, training: false };
        match self.stage(n_rows)?.forward(w, &micro, Some(rows))?.0 {
            Output::Activation(logits) => self.kernels.download(&logits),
            Output::Loss { .. } => Ok(Vec::new()), // there are no targets
        }
    }

    /// Returns the logits after the last row of each text, if this is the head: `[texts, vocab]`. The rows
    /// of the texts follow each other, as many of each as `n_rows` gives.
    pub(super) fn last_logits(
        &self,
        w: &[K::Tensor],
        rows: &K::Tensor,
        n_rows: impl Iterator<Item = usize>,
    ) -> Result<Vec<f32>, DeviceError> {
        let mut end = 0;
        let last = n_rows.map(|n| {
            end += n;
            self.kernels.rows(rows, end - 1, 1)
        });
        let last = last.collect::<Result<Vec<_>, _>>()?;
        // A pass through the head takes at most as many rows as a sample may have, and there may be more texts.
        let logits = last.chunks(self.config.context).map(|some| {
            let rows = self.kernels.join(&some.iter().collect::<Vec<_>>())?;
            self.logits(w, rows, some.len())
        });
        Ok(logits.collect::<Result<Vec<_>, _>>()?.concat())
    }

    pub(super) fn failed(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.kernels.name(), op: "evaluation", reason }
    }
}

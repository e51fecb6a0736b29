//! The loss of a model on a text, by a program that only goes forward.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use chimera_core::comm::{Comm, Host};
use chimera_core::device::DeviceError;
use chimera_core::engine::Training;
use chimera_core::fault::{Class, Fault};
use chimera_core::layers::Layers;
use chimera_core::stage::{Micro, Output};
use chimera_core::trainer::Trainer;
use chimera_device::{AnyKernels, Devices, OpenDevice};

use super::staged::{Forward, ForwardStage, Parts, Staged};
use super::windows::{Windows, targets};
use crate::run::by_ranks::{in_threads, on_rank};
use crate::run::ranks::gather::share;
use crate::run::{OnTransport, PATIENCE};

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

/// The windows of a text and their losses.
type Losses = Vec<(u64, f64)>;

/// An evaluation of a model on the windows of a text, which are the micro-batches of its program.
pub struct Scoring<'s> {
    model: Staged<'s>,
    windows: Windows<'s>,
    n_done: AtomicU64,
    observe: &'s (dyn Fn(u64) + Sync),
}

impl<'s> Scoring<'s> {
    /// Prepares an evaluation. `observe` gets the number of windows that have their loss, of this
    /// process.
    ///
    /// # Errors
    /// If a window is longer than the model's context.
    pub fn new(
        model: Staged<'s>,
        mut windows: Windows<'s>,
        observe: &'s (dyn Fn(u64) + Sync),
    ) -> Result<Scoring<'s>> {
        let (context, longest) = (windows.context(), model.config.context);
        ensure!(
            (1..=longest).contains(&context),
            "a window of {context} tokens: choose 1 to the model's context of {longest}"
        );
        windows.n_per_step = model.n_per_step();
        Ok(Scoring { model, windows, n_done: AtomicU64::new(0), observe })
    }

    /// Evaluates with a thread for each rank, which computes with `threads` threads.
    ///
    /// # Errors
    /// If a rank or its device fails.
    pub fn in_threads<K: AnyKernels>(&self, devices: &Devices<K>, threads: usize) -> Result<Score> {
        Ok(self.score(in_threads(devices, threads, self)?.concat()))
    }

    /// Evaluates as the rank of `comm`, which computes with `threads` threads.
    ///
    /// # Errors
    /// If a rank or its device fails, or if ranks do not evaluate the same.
    pub fn on_rank<K: AnyKernels>(
        &self,
        device: &OpenDevice<K>,
        comm: &mut dyn Comm<Host>,
        threads: usize,
    ) -> Result<Score, Fault> {
        let own = on_rank(device, comm, threads, self)?;
        Ok(self.score(share(&mut &mut *comm, &own, PATIENCE)?.concat()))
    }

    /// Returns the model that is evaluated.
    pub fn model(&self) -> &Staged<'s> {
        &self.model
    }

    /// The most elements of a tensor that ranks send each other.
    pub fn longest_tensor(&self) -> usize {
        self.windows.context() * self.model.config.hidden
    }

    /// Sums the losses of all windows in their order: the same bits for every program.
    fn score(&self, mut losses: Losses) -> Score {
        losses.sort_by_key(|(window, _)| *window);
        let loss = losses.into_iter().map(|(_, loss)| loss).sum();
        Score { n_targets: self.windows.n_predicted(), loss }
    }
}

/// Runs the program of a rank until all windows have passed. The result has the losses of the windows
/// whose last stage was on this rank.
impl OnTransport for &Scoring<'_> {
    type Output = Losses;

    fn on<K: Layers>(self, kernels: K, comm: &mut dyn Comm<K::Tensor>) -> Result<Losses, Fault> {
        let (rank, model) = (comm.rank(), &self.model);
        let steps = self.windows.n_windows().div_ceil(model.n_per_step());
        // A loss that is not finite is a result.
        let training = Training { steps, check_finite: false, ..Training::default() };
        let losses = Arc::new(Mutex::new(Losses::new()));
        let trainer = Trainer::new(model.program, &self.windows).training(training);
        trainer.width(model.width).on_rank(comm, kernels.clone(), |stage| {
            let parts = model.parts(kernels.clone(), stage);
            let parts = parts.map_err(|e| Fault::new(Class::Usage, rank, format!("{e:#}")))?;
            let work = Scored { scoring: self, losses: Arc::clone(&losses) };
            Ok(ForwardStage { parts, work })
        })?;
        let mut own = losses.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(take(&mut *own))
    }
}

/// The work of a stage of an evaluation. The last one notes the loss of each window.
struct Scored<'s> {
    scoring: &'s Scoring<'s>,
    losses: Arc<Mutex<Losses>>,
}

impl<K: Layers> Forward<K> for Scored<'_> {
    const NEEDS_INPUTS: bool = true;

    fn forward(
        &self,
        parts: &Parts<K>,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<Output<K::Tensor>, DeviceError> {
        let scoring = self.scoring;
        let rows = parts.body.rows(parts.of_body(w), micro.input, x)?;
        let Some(head) = &parts.head else { return Ok(Output::Activation(rows)) };
        let target = (targets(micro.target), micro.loss_scale);
        let loss = head.head_loss(&parts.of_head(w), &rows, micro.input.len(), target)?;
        if let Some(window) = scoring.windows.at(micro.step, micro.sample) {
            self.losses.lock().unwrap_or_else(PoisonError::into_inner).push((window, loss));
            let n_before = scoring.n_done.fetch_add(1, Ordering::Relaxed);
            (scoring.observe)(n_before + 1);
        }
        let kernels = &parts.body.kernels;
        let (loss, grad) = (kernels.upload(&[1], &[loss as f32])?, kernels.zeros(&[1])?);
        Ok(Output::Loss { loss, grad })
    }
}

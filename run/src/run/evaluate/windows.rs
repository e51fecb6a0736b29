//! A text in windows, which pass through the stages of a model one after another.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Result, anyhow};
use chimera_core::fault::panicked;
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;

use super::CausalLm;
use crate::data::Tokens;

/// The windows of a text: `context` tokens each, `stride` tokens after the one before.
pub(super) struct Windows<'t> {
    pub(super) tokens: &'t Tokens,
    pub(super) context: usize,
    pub(super) stride: usize,
    /// The token after which nothing is a target.
    pub(super) end_of_text: Option<u32>,
    /// The first token of the next window, and the targets of the windows before it.
    pub(super) start: usize,
    pub(super) done: usize,
}

/// A window on its way through the stages.
pub(super) struct Window {
    pub(super) input: Vec<u32>,
    /// The targets of its last rows, those that no earlier window has.
    pub(super) target: Vec<u32>,
    /// Shape and values of the activations after the stages so far.
    activations: Option<(Vec<usize>, Vec<f32>)>,
}

impl Windows<'_> {
    fn window(&mut self) -> Result<Window> {
        let end = (self.start + self.context).min(self.tokens.len() - 1);
        let (mut input, mut target) = (Vec::new(), Vec::new());
        self.tokens.extend(&mut input, self.start..end)?;
        self.tokens.extend_targets(&mut target, self.done + 1..end + 1, self.end_of_text)?;
        self.done = end;
        self.start += self.stride;
        Ok(Window { input, target, activations: None })
    }
}

impl Iterator for Windows<'_> {
    type Item = Result<Window>;

    fn next(&mut self) -> Option<Result<Window>> {
        (self.done + 1 < self.tokens.len()).then(|| self.window())
    }
}

impl<K: Layers> CausalLm<K> {
    /// Returns the summed loss of the windows, times `loss_scale`. Each stage works on a window of its
    /// own, on a thread of its own. `observe` gets the number of targets that were given out.
    pub(super) fn sum_losses(
        &self,
        mut windows: Windows<'_>,
        loss_scale: f64,
        mut observe: impl FnMut(usize),
    ) -> Result<f64> {
        if self.body.len() == 1 {
            let mut sum = 0.0;
            while let Some(Window { input, target, .. }) = windows.next().transpose()? {
                sum += self.window_loss(&input, &target, loss_scale)?;
                observe(windows.done);
            }
            return Ok(sum);
        }
        thread::scope(|scope| {
            let (first, mut from) = sync_channel(1);
            let last = self.body.len() - 1;
            let mut workers = Vec::new();
            for nth in 0..last {
                let (to, next) = sync_channel(1);
                workers.push(scope.spawn(move || self.pass_on(nth, &from, &to)));
                from = next;
            }
            workers.push(scope.spawn(move || self.end_windows(last, &from, loss_scale)));
            while let Some(window) = windows.next().transpose()? {
                // A worker that has failed takes no more; its error is below.
                if first.send(window).is_err() {
                    break;
                }
                observe(windows.done);
            }
            drop(first);
            let mut sum = 0.0;
            for (worker, rank) in workers.into_iter().zip(0..) {
                let ended = worker.join();
                sum += ended.unwrap_or_else(|panic| Err(panicked(Rank(rank), &*panic).into()))?;
            }
            Ok(sum)
        })
    }

    /// Takes windows through one stage and on to the next. There is no loss yet.
    fn pass_on(&self, nth: usize, from: &Receiver<Window>, to: &SyncSender<Window>) -> Result<f64> {
        for mut window in from {
            let rows = self.through_stage(nth, &mut window)?;
            let kernels = &self.body[nth].kernels;
            window.activations = Some((kernels.shape(&rows), kernels.download(&rows)?));
            if to.send(window).is_err() {
                break;
            }
        }
        Ok(0.0)
    }

    /// Takes windows through the last stage and the head, and sums their losses.
    fn end_windows(&self, nth: usize, from: &Receiver<Window>, loss_scale: f64) -> Result<f64> {
        let mut sum = 0.0;
        for mut window in from {
            let rows = self.through_stage(nth, &mut window)?;
            sum += self.head_loss(&rows, window.input.len(), &window.target, loss_scale)?;
        }
        Ok(sum)
    }

    fn through_stage(&self, nth: usize, window: &mut Window) -> Result<K::Tensor> {
        let piece = self.body.get(nth).ok_or_else(|| anyhow!("there is no stage {nth}"))?;
        let before = window.activations.take();
        let x = before.map(|(shape, values)| piece.kernels.upload(&shape, &values)).transpose()?;
        piece.rows(&self.config, &window.input, x)
    }
}

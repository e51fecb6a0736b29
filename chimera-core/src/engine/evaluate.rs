//! The loss on samples that are not trained on, between two runs of the program.
//!
//! Each sample goes forward through the stages where they are, so that no rank ever holds more of the
//! model than it trains. Samples are shared out over groups and pipes, all replicas being equal.

use std::time::Instant;

use super::state::StageOn;
use super::worker::Worker;
use crate::analyze::Need;
use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::fault::{Class, Fault};
use crate::ids::{PipeId, StageId};
use crate::stage::{Data, Micro, Output};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// Mean loss of the present weights over all targets of samples `0..n_samples` of `data`, in nats: the
    /// same bits on every rank. All ranks call it after the same `step`.
    pub fn evaluate(
        &mut self,
        step: u64,
        data: &dyn Data<S::Item>,
        n_samples: u64,
    ) -> Result<f64, Fault> {
        let counted = data.n_counted(step, n_samples);
        let counted = counted.map_err(|e| self.state.unreadable(step, &e))?;
        let scale = 1.0 / counted.max(1) as f64;
        let (began, mut own) = (Instant::now(), Vec::new());
        for sample in (self.state.group as u64..n_samples).step_by(self.state.job.width) {
            if let Some(loss) = self.evaluate_sample(step, data, sample, scale)? {
                own.extend(sample.to_le_bytes());
                own.extend(loss.to_le_bytes());
            }
        }
        self.state.timing.since.leave_out(began);
        let all = self.all_gather("evaluation", &own)?;
        let mut losses: Vec<(u64, f64)> = all.iter().flat_map(|bytes| losses(bytes)).collect();
        losses.sort_by_key(|(sample, _)| *sample);
        if !losses.iter().map(|(sample, _)| *sample).eq(0..n_samples) {
            let message = "the ranks evaluated other samples than they should have";
            return Err(Fault::new(Class::Mismatch, self.state.comm.rank(), message));
        }
        Ok(losses.into_iter().map(|(_, loss)| loss).sum())
    }

    /// Runs the stages of one sample that are here; its loss if the last one is among them.
    fn evaluate_sample(
        &mut self,
        step: u64,
        data: &dyn Data<S::Item>,
        sample: u64,
        loss_scale: f64,
    ) -> Result<Option<f64>, Fault> {
        let (me, state) = (self.me, &mut self.state);
        let placement = state.job.program.placement();
        let pipe = (sample / state.job.width as u64) % placement.n_pipes() as u64;
        let at = |stage: usize| placement.worker(PipeId(pipe as u16), StageId(stage as u16));
        let tag = |stage: usize| {
            Tag::new(step, Payload::Evaluated { sample, stage: StageId(stage as u16) })
        };
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let read = data.sample(step, sample, &mut input, &mut target);
        read.map_err(|e| state.unreadable(step, &e))?;
        let (mut carried, mut loss) = (None, None);
        for stage in (0..placement.n_stages()).filter(|stage| at(*stage) == me) {
            if stage > 0 && at(stage - 1) != me {
                let (from, deadline) =
                    (state.rank_of(at(stage - 1), state.group), state.deadline());
                let received = state.comm.recv(from, tag(stage - 1), deadline);
                let received = state.on_wait("evaluation", Need::Other, received)?;
                let expected = state.stages.held(StageId(stage as u16)).stage.input_shape(1);
                state.check_shape(from, expected, tag(stage - 1), &received)?;
                carried = Some(received);
            }
            let held = state.stages.held(StageId(stage as u16));
            let target = if stage + 1 < placement.n_stages() { &[][..] } else { &target };
            let micro = Micro { step, sample, input: &input, target, loss_scale, training: false };
            let output = held.stage.forward(&held.weights, &micro, carried.take());
            match state.on_device("evaluation", output)?.0 {
                Output::Loss { loss: scaled, .. } => {
                    loss = Some(state.numbers([&scaled].into_iter())?.into_iter().sum());
                }
                Output::Activation(x)
                    if stage + 1 < placement.n_stages() && at(stage + 1) != me =>
                {
                    let to = state.rank_of(at(stage + 1), state.group);
                    let sent = state.comm.send(to, tag(stage), x);
                    state.on_wire("evaluation", sent)?;
                }
                Output::Activation(x) => carried = Some(x),
            }
        }
        Ok(loss)
    }
}

/// Samples and their losses, as one rank sent them.
fn losses(bytes: &[u8]) -> impl Iterator<Item = (u64, f64)> + '_ {
    bytes.chunks_exact(16).filter_map(|pair| {
        let (sample, loss) = pair.split_at(8);
        Some((
            u64::from_le_bytes(sample.try_into().ok()?),
            f64::from_le_bytes(loss.try_into().ok()?),
        ))
    })
}

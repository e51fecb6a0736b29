//! Evaluation: the loss on samples that are not trained on, between two runs of the program.
//!
//! Each sample goes forward through the stages where they are, so that no rank ever holds more of
//! the model than it trains. Samples are distributed over groups and pipes.

use std::time::Instant;

use chimera_schedule::analyze::Need;
use chimera_schedule::ids::PipeId;
use rustc_hash::FxHashMap;

use crate::comm::{Comm, Endpoint, Payload, Tag};
use crate::device::Device;
use crate::engine::rank::worker::Worker;
use crate::engine::state::rank_state::StageOn;
use crate::fault::{Class, Fault};
use crate::stage::{Data, Micro, Output};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// Returns the mean loss of the present weights over all targets of samples `0..n_samples` of
    /// `data`, in nats, bit for bit on every rank. All ranks must call it after the same `step`.
    ///
    /// # Errors
    /// If there is no sample, if one cannot be read, or if a rank or its device fails.
    pub fn evaluate(
        &mut self,
        step: u64,
        data: &dyn Data<S::Item>,
        n_samples: u64,
    ) -> Result<f64, Fault> {
        if n_samples == 0 {
            let message = "there is no sample to evaluate on: give one or more, or do not evaluate";
            let fault = Fault::new(Class::Usage, self.state.comm.rank(), message);
            return Err(Fault { step: Some(step), ..fault });
        }
        let counted = data.n_counted(step, n_samples);
        let counted = counted.map_err(|e| self.state.unreadable(step, &e))?;
        let scale = 1.0 / counted.max(1) as f64;
        let (began, mut own) = (Instant::now(), Vec::new());
        self.state.gather_all(self.me)?;
        for sample in (self.state.group as u64..n_samples).step_by(self.state.job.width) {
            for loss in self.evaluate_sample(step, data, sample, scale)? {
                own.extend(sample.to_le_bytes());
                own.extend(loss.to_le_bytes());
            }
        }
        self.state.timing.since.leave_out(began);
        let all = self.all_gather("evaluation", &own)?;
        let mut losses: Vec<(u64, f64)> = all.iter().flat_map(|bytes| losses(bytes)).collect();
        losses.sort_by_key(|(sample, _)| *sample);
        // Every stage that has a loss reports it.
        let n_losses = self.state.job.program.rules().graph().losses().count();
        let expected = (0..n_samples).flat_map(|sample| std::iter::repeat_n(sample, n_losses));
        if !losses.iter().map(|(sample, _)| *sample).eq(expected) {
            let message = "the ranks evaluated other samples than they should have";
            return Err(Fault::new(Class::Mismatch, self.state.comm.rank(), message));
        }
        Ok(losses.into_iter().map(|(_, loss)| loss).sum())
    }

    /// Runs the stages of one sample that this rank holds. Returns their losses, if any.
    fn evaluate_sample(
        &mut self,
        step: u64,
        data: &dyn Data<S::Item>,
        sample: u64,
        loss_scale: f64,
    ) -> Result<Vec<f64>, Fault> {
        let (me, state) = (self.me, &mut self.state);
        let (placement, graph) = (state.job.program.placement(), state.job.program.rules().graph());
        let pipe = (sample / state.job.width as u64) % placement.n_pipes() as u64;
        let at = |stage| placement.worker(PipeId(pipe as u16), stage);
        let tag = |stage, to| Tag::new(step, Payload::Evaluated { sample, stage, to });
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let read = data.sample(step, sample, &mut input, &mut target);
        read.map_err(|e| state.unreadable(step, &e))?;
        let (mut here, mut losses) = (FxHashMap::default(), Vec::new());
        for id in graph.stages().filter(|stage| at(*stage) == me) {
            let edges = state.edges(id);
            let mut inputs = Vec::new();
            for &from in graph.inputs(id) {
                if at(from) == me {
                    inputs.extend(here.remove(&(from, id)));
                    continue;
                }
                let (rank, deadline) = (state.rank_of(at(from), state.group), state.deadline());
                let received = state.comm.recv(rank, tag(from, id), deadline);
                let received = state.on_wait("evaluation", Need::Other, received)?;
                let stage = &state.stages.held(id).stage;
                let sizes = stage.sizes().filter(|_| edges.n_inputs() == 1);
                let expected = sizes.and_then(|sizes| sizes.input_shape(1));
                state.check_shape(rank, expected, tag(from, id), &received)?;
                inputs.push(received);
            }
            let held = state.stages.held(id);
            let target = if graph.has_loss(id) { &target } else { &[][..] };
            let micro = Micro { step, sample, input: &input, target, loss_scale, training: false };
            let result = edges.forward(&held.stage, &held.weights, &micro, inputs);
            let mut activations = Vec::new();
            for output in state.on_device("evaluation", result)?.0 {
                match output {
                    Output::Activation(y) => activations.push(y),
                    Output::Loss { loss, .. } => {
                        losses.push(state.numbers([&loss].into_iter())?.into_iter().sum());
                    }
                }
            }
            for (&to, y) in graph.outputs(id).iter().zip(edges.along_edges(activations)) {
                if at(to) == me {
                    here.insert((id, to), y);
                    continue;
                }
                let sent = state.comm.send(state.rank_of(at(to), state.group), tag(id, to), y);
                state.on_wire("evaluation", sent)?;
            }
        }
        Ok(losses)
    }
}

/// Decodes samples and their losses, as sent by one rank.
fn losses(bytes: &[u8]) -> impl Iterator<Item = (u64, f64)> + '_ {
    bytes.chunks_exact(16).filter_map(|pair| {
        let (sample, loss) = pair.split_at(8);
        Some((
            u64::from_le_bytes(sample.try_into().ok()?),
            f64::from_le_bytes(loss.try_into().ok()?),
        ))
    })
}

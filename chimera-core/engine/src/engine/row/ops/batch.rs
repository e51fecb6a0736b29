//! The samples of an op.

use chimera_schedule::op::Op;

use crate::comm::Comm;
use crate::device::Device;
use crate::engine::Job;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::Fault;
use crate::stage::Micro;

pub(crate) struct Batch<I> {
    step: u64,
    sample: u64,
    input: Vec<I>,
    target: Vec<I>,
    loss_scale: f64,
}

impl<I> Batch<I> {
    pub(crate) fn micro(&self) -> Micro<'_, I> {
        let &Batch { step, sample, ref input, ref target, loss_scale } = self;
        Micro { step, sample, input, target, loss_scale, training: true }
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// The samples of an op. Sample `i` of the step's micro-batch `m` has number
    /// `(group*N + m)*B + i` in the step's global batch, where N is that of the op's model. An op on a slice of sequences has the whole
    /// samples of its micro-batch.
    pub(crate) fn batch(&self, op: &Op) -> Result<Batch<S::Item>, Fault> {
        let program = self.job.program;
        let n_slices = program.rules().n_slices();
        let unit_samples = self.job.micro_batch_size as u64 / u64::from(program.sample_shares());
        let n_units = program.units_of(op.stage) / n_slices;
        let unit = u64::from(op.span.start / n_slices % n_units);
        let first = (self.group as u64 * u64::from(n_units) + unit) * unit_samples;
        let step = self.steps.first + u64::from(program.window().step_of(op.span));
        let (mut input, mut target) = (Vec::new(), Vec::new());
        if self.stages.held(op.stage).stage.needs_inputs() {
            for sample in first..first + unit_samples * u64::from(op.span.len) {
                let before = target.len();
                let read = self.job.data.sample(step, sample, &mut input, &mut target);
                read.map_err(|e| self.at(self.unreadable(step, &e), op))?;
                self.check_targets(op, (step, sample), target.len() - before)?;
            }
        }
        let has_loss = program.rules().graph().has_loss(op.stage);
        if !has_loss {
            target.clear();
        }
        let loss_scale = if has_loss { self.loss_scale(step, op)? } else { 0.0 };
        Ok(Batch { step, sample: first, input, target, loss_scale })
    }

    /// Number of targets that count in a step's global batch.
    pub(crate) fn n_counted(&self, step: u64) -> Result<u64, Fault> {
        self.n_counted_in(step, self.job.program.window().units_per_step())
    }

    /// Number of targets that count in the first units of each group.
    fn n_counted_in(&self, step: u64, n_units: u32) -> Result<u64, Fault> {
        let Job { program, data, width, micro_batch_size, .. } = &self.job;
        let n_micros = n_units / program.units_per_micro();
        let n_samples = *width as u64 * u64::from(n_micros) * *micro_batch_size as u64;
        data.n_counted(step, n_samples).map_err(|e| self.unreadable(step, &e))
    }

    /// One over the targets that count in an update, or in the mean of a step's updates.
    fn loss_scale(&self, step: u64, op: &Op) -> Result<f64, Fault> {
        let window = self.job.program.window();
        let counted = self.n_counted_in(step, self.job.program.units_of(op.stage));
        let counted = counted.map_err(|fault| self.at(fault, op))?;
        let n_updates = f64::from(window.units_per_step()) / f64::from(window.units_per_update());
        Ok(n_updates / counted.max(1) as f64)
    }
}

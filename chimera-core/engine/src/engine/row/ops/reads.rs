//! The weights that an op computes with.

use std::collections::VecDeque;
use std::sync::Arc;

use chimera_schedule::effects::Version;
use chimera_schedule::op::Op;

use super::units;
use crate::comm::Comm;
use crate::device::Device;
use crate::engine::Job;
use crate::engine::optim::updating::Step;
use crate::engine::row::value::Value;
use crate::engine::state::held_stage::Weights;
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::Fault;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// The weights for each unit: the versions that the op eats last, or else those that it reads.
    pub(crate) fn versions(
        &self,
        op: &Op,
        eaten: &mut VecDeque<Value<S>>,
    ) -> Result<Vec<Weights<S>>, Fault> {
        let n_versions = eaten.iter().filter(|v| matches!(v, Value::Version(_))).count();
        if n_versions == 0 {
            let weights = self.read(op)?;
            return Ok(units(op).map(|_| Arc::clone(&weights)).collect());
        }
        Ok(eaten.split_off(eaten.len() - n_versions).into_iter().map(Value::version).collect())
    }

    /// The weights that an op reads, unless it eats a version.
    pub(crate) fn read(&self, op: &Op) -> Result<Weights<S>, Fault> {
        let Job { program, training, .. } = self.job;
        let version = program.rules().reads(op).map_or(Version::Newest, |weights| weights.version);
        if let (Version::Predicted(version), Some(repeat)) = (version, training.optimizer.repeat())
        {
            let held = self.stages.held(op.stage);
            let update = self.steps.n_updates + u64::from(held.n_updates);
            let step = self.steps.first + u64::from(program.window().step_of(op.span));
            let by = Step { training, step, update, grad_scale: 1.0 };
            let ahead = version.saturating_sub(held.n_updates);
            return self.on_device(op, held.predicted(&self.device, (repeat, ahead), &by));
        }
        Ok(Arc::clone(self.stages.version(op.stage, version)))
    }

    /// The versions that an op passes on, if weights may change before its backward.
    pub(crate) fn kept_versions<I: IntoIterator<Item = Weights<S>>>(
        &self,
        weights: I,
    ) -> impl Iterator<Item = Value<S>> + use<S, D, C, I> {
        let keeps = self.job.program.rules().keeps_versions();
        weights.into_iter().filter(move |_| keeps).map(Value::Version)
    }
}

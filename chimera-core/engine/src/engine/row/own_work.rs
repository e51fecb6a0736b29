//! Work beside the training: running its pieces in a program.
//!
//! Pieces of K-FAC take the factors of linear layers and invert them. If a program lacks such
//! pieces, factors are taken in the backward, and inverses are computed when they come into use, so
//! results do not depend on the pieces. Pieces of other work call the caller's function.

use std::sync::Arc;

use chimera_schedule::ids::{BucketId, StageId, WorkId};
use chimera_schedule::op::Op;

use crate::comm::{Comm, Endpoint};
use crate::device::{Device, DeviceError};
use crate::engine::optim::kfac::{KfacPiece, Side};
use crate::engine::row::value::Value;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::work_piece::{Inverse, Shown, WorkPiece};
use crate::fault::{Class, Fault};

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    pub(crate) fn takes_factors(&self) -> bool {
        self.job.training.takes_factors(self.steps.n_updates)
    }

    /// The operands that a backward of one unit shows; empty if they are not read. Adds them to the
    /// factors, if the step takes factors and the program has no pieces for that.
    pub(crate) fn show(
        &mut self,
        op: &Op,
        deferred: &S::Deferred,
    ) -> Result<Shown<S::Tensor>, Fault> {
        let rules = self.job.program.rules();
        let is_factors = |work: WorkId| self.kfac_of(work) == Some(KfacPiece::Factors);
        let has_pieces = rules.works_on_backward().any(is_factors);
        let is_read = rules.works_on_backward().any(|work| !is_factors(work));
        if !is_read && !self.takes_factors() {
            return Ok(Shown::default());
        }
        let held = self.stages.held(op.stage);
        let (n_layers, operands) = (held.layers.len(), held.stage.operands(deferred));
        if self.takes_factors() && operands.len() != n_layers {
            let n = operands.len();
            let reason = format!("it shows the operands of {n} linear layers, and has {n_layers}");
            let failed = DeviceError::Failed { device: "the stage".into(), op: "operands", reason };
            return self.on_device(op, Err(failed));
        }
        let shown = Arc::new(operands);
        if self.takes_factors() && !has_pieces {
            self.add_factors(op.stage, &shown)?;
        }
        Ok(shown)
    }

    /// The values made of the units' operands: those of all units, once per work on backwards.
    pub(crate) fn made_shown<'s>(
        &self,
        units: &'s [Shown<S::Tensor>],
    ) -> impl Iterator<Item = Value<S>> + use<'s, '_, S, D, C> {
        let works = self.job.program.rules().works_on_backward();
        works.flat_map(|_| units.iter().map(|shown| Value::Shown(Arc::clone(shown))))
    }

    pub(crate) fn run_piece(
        &mut self,
        op: &Op,
        work: WorkId,
        eaten: impl IntoIterator<Item = Value<S>>,
    ) -> Result<(), Fault> {
        let mut shown = eaten.into_iter().map(Value::shown);
        match self.kfac_of(work) {
            Some(KfacPiece::Factors) if self.takes_factors() => {
                shown.try_for_each(|shown| self.add_factors(op.stage, &shown))
            }
            Some(KfacPiece::Factors) => Ok(()),
            Some(KfacPiece::Inverse) => self.invert_next(op.stage),
            None => self.do_other(op, work, shown.next()),
        }
    }

    /// Returns the kind of the work's pieces, if they are K-FAC's and the training uses it.
    fn kfac_of(&self, work: WorkId) -> Option<KfacPiece> {
        let piece = KfacPiece::of(&self.job.program.rules().works()[work.index()].name);
        piece.filter(|_| self.job.training.optimizer.preconditions())
    }

    fn do_other(
        &self,
        op: &Op,
        work: WorkId,
        shown: Option<Shown<S::Tensor>>,
    ) -> Result<(), Fault> {
        let Some(do_piece) = self.job.own_work else { return Ok(()) };
        let of_window = match shown {
            Some(_) => self.job.program.window().step_of(op.span),
            None => 0, // its span counts pieces
        };
        let piece = WorkPiece {
            work: &self.job.program.rules().works()[work.index()].name,
            op: *op,
            rank: self.comm.rank(),
            step: self.steps.first + u64::from(of_window),
            shown: shown.as_ref().map(|shown| &**shown as _),
        };
        do_piece(&piece).map_err(|why| {
            let message = format!("a piece of {} cannot be done: {why}", piece.work);
            self.at(Fault::new(Class::Usage, piece.rank, message), op)
        })
    }

    /// Adds the products of one unit's operands to the factors.
    fn add_factors(&mut self, stage: StageId, operands: &[[S::Tensor; 2]]) -> Result<(), Fault> {
        let State { stages, device, .. } = &mut *self;
        let mut layers = stages.held_mut(stage).layers.iter_mut().zip(operands);
        let added = layers.try_for_each(|(layer, operands)| {
            let mut sides = Side::BOTH.into_iter().zip(operands);
            sides.try_for_each(|(side, operand)| layer.add(device, side, operand))
        });
        self.on_device(format!("factors of {stage}"), added)
    }

    /// Computes one pending inverse: of this stage if any is left, otherwise of another.
    fn invert_next(&mut self, stage: StageId) -> Result<(), Fault> {
        let of_stage = self.inverses.iter().position(|inverse| inverse.stage == stage);
        let Some(Inverse { stage, layer, side }) = self.inverses.remove(of_stage.unwrap_or(0))
        else {
            return Ok(());
        };
        let State { stages, device, job, .. } = &mut *self;
        let inverted = stages.held_mut(stage).invert(device, (layer, side), job.training);
        self.on_device(format!("inverses of {stage}"), inverted)
    }

    /// Takes this rank's sums of factors, to be reduced with a bucket's gradients.
    pub(crate) fn take_factors(&mut self, bucket: BucketId) -> Result<Vec<S::Tensor>, Fault> {
        let mut sums = Vec::new();
        let Some(stage) = self.shown_stage(bucket) else { return Ok(sums) };
        let State { stages, device, .. } = &mut *self;
        let taken = stages.held_mut(stage).take_factors(device, &mut sums);
        self.on_device(format!("factors of {stage}"), taken)?;
        Ok(sums)
    }

    /// Stores the sums of factors over all replicas.
    pub(crate) fn put_factors(&mut self, bucket: BucketId, sums: Vec<Option<S::Tensor>>) {
        let Some(stage) = self.shown_stage(bucket) else { return };
        let mut sums = sums.into_iter().flatten();
        for layer in &mut self.stages.held_mut(stage).layers {
            if let (Some(input), Some(output)) = (sums.next(), sums.next()) {
                layer.put_sums([input, output]);
            }
        }
    }

    /// Queues the inverses of the factors that a stage has averaged, if this rank holds the stage.
    pub(crate) fn ask_for_inverses(&mut self, stage: StageId) {
        let n_layers = self.stages.find(stage).map_or(0, |held| held.layers.len());
        self.inverses.retain(|inverse| inverse.stage != stage);
        for layer in 0..n_layers {
            let inverse = |side| Inverse { stage, layer, side };
            self.inverses.extend(Side::BOTH.map(inverse));
        }
    }

    /// The stage with factors to reduce with a bucket; `None` for a bucket of tied tensors.
    fn shown_stage(&self, bucket: BucketId) -> Option<StageId> {
        match self.job.program.buckets()[bucket.index()].stages[..] {
            [stage] if self.takes_factors() => self.stages.find(stage).map(|_| stage),
            _ => None,
        }
    }
}

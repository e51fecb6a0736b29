//! Work beside the training, in pieces: factors of linear layers and their inverses.
//!
//! A piece is done when this rank would wait for another one, or when what it makes is needed: factors before the
//! reduction of their stage, inverses before the next factors. So no result depends on when a piece is done, nor on the time
//! that anything takes. What is left when a step ends is left for the next one.

use super::kfac::Side;
use super::pieces::{FactorPiece, InversePiece};
use super::state::{StageOn, State};
use crate::comm::Comm;
use crate::device::{Device, DeviceError};
use crate::fault::Fault;
use crate::ids::{BucketId, StageId};
use crate::op::Op;

/// The most micro-batches whose operands wait for their turn.
const MOST_SHOWN: usize = 2;

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Whether the step under way takes factors.
    pub(super) fn takes_factors(&self) -> bool {
        self.job.training.takes_factors(self.steps.n_updates)
    }

    /// Takes the operands of a backward, if the step takes factors.
    pub(super) fn show(&mut self, op: &Op, deferred: &S::Deferred) -> Result<(), Fault> {
        if !self.takes_factors() {
            return Ok(());
        }
        let held = self.stages.held(op.stage);
        let (n_layers, operands) = (held.layers.len(), held.stage.operands(deferred));
        if operands.len() != n_layers {
            let n = operands.len();
            let reason = format!("it shows the operands of {n} linear layers, and has {n_layers}");
            let failed = DeviceError::Failed { device: "the stage".into(), op: "operands", reason };
            return self.on_device(op, Err(failed));
        }
        while self.pieces.factors.len() >= MOST_SHOWN * 2 * n_layers.max(1) {
            self.do_factor()?;
        }
        for (layer, operands) in operands.into_iter().enumerate() {
            for (side, operand) in Side::BOTH.into_iter().zip(operands) {
                let piece = FactorPiece { stage: op.stage, layer, side, operand };
                self.pieces.factors.push_back(piece);
            }
        }
        Ok(())
    }

    /// Does one piece.
    pub(super) fn do_piece(&mut self) -> Result<(), Fault> {
        match self.pieces.factors.is_empty() {
            true => self.do_inverse(),
            false => self.do_factor(),
        }
    }

    fn do_factor(&mut self) -> Result<(), Fault> {
        let Some(piece) = self.pieces.factors.pop_front() else { return Ok(()) };
        let FactorPiece { stage, layer, side, operand } = piece;
        let State { stages, device, .. } = &mut *self;
        let added = stages.held_mut(stage).layers[layer].add(device, side, &operand);
        self.on_device(format!("factors of {stage}"), added)
    }

    fn do_inverse(&mut self) -> Result<(), Fault> {
        let Some(piece) = self.pieces.inverses.pop_front() else { return Ok(()) };
        let InversePiece { stage, layer, side } = piece;
        let State { stages, device, job, .. } = &mut *self;
        let inverted = stages.held_mut(stage).invert(device, (layer, side), job.training);
        self.on_device(format!("inverses of {stage}"), inverted)
    }

    /// This rank's sums of factors that go with a bucket's gradients.
    pub(super) fn take_factors(&mut self, bucket: BucketId) -> Result<Vec<S::Tensor>, Fault> {
        let mut sums = Vec::new();
        let Some(stage) = self.shown_stage(bucket) else { return Ok(sums) };
        while self.pieces.factors.iter().any(|piece| piece.stage == stage) {
            self.do_factor()?;
        }
        let State { stages, device, .. } = &mut *self;
        let taken = stages.held_mut(stage).take_factors(device, &mut sums);
        self.on_device(format!("factors of {stage}"), taken)?;
        Ok(sums)
    }

    /// Puts the sums over all replicas in their place.
    pub(super) fn put_factors(&mut self, bucket: BucketId, sums: Vec<Option<S::Tensor>>) {
        let Some(stage) = self.shown_stage(bucket) else { return };
        let mut sums = sums.into_iter().flatten();
        for layer in &mut self.stages.held_mut(stage).layers {
            if let (Some(input), Some(output)) = (sums.next(), sums.next()) {
                layer.put_sums([input, output]);
            }
        }
    }

    /// Asks for the inverses of factors that a stage has averaged, if it is here.
    pub(super) fn ask_for_inverses(&mut self, stage: StageId) {
        let n_layers = self.stages.find(stage).map_or(0, |held| held.layers.len());
        self.pieces.inverses.retain(|piece| piece.stage != stage);
        for layer in 0..n_layers {
            let piece = |side| InversePiece { stage, layer, side };
            self.pieces.inverses.extend(Side::BOTH.map(piece));
        }
    }

    /// The stage whose factors go with a bucket's gradients: of a bucket of tied tensors none do.
    fn shown_stage(&self, bucket: BucketId) -> Option<StageId> {
        match self.job.program.buckets()[bucket.index()].stages[..] {
            [stage] if self.takes_factors() => self.stages.find(stage).map(|_| stage),
            _ => None,
        }
    }
}

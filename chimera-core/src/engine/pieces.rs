//! The pieces of work beside the training that a rank has to do.

use std::collections::VecDeque;

use super::kfac::Side;
use crate::ids::StageId;

/// What is to be done, in order.
pub(super) struct PieceQueue<T> {
    pub(super) factors: VecDeque<FactorPiece<T>>,
    pub(super) inverses: VecDeque<InversePiece>,
}

/// An operand of a micro-batch, whose products are to be added to a factor.
pub(super) struct FactorPiece<T> {
    pub(super) stage: StageId,
    pub(super) layer: usize,
    pub(super) side: Side,
    pub(super) operand: T,
}

/// An inverse that comes into use with the next factors.
pub(super) struct InversePiece {
    pub(super) stage: StageId,
    pub(super) layer: usize,
    pub(super) side: Side,
}

impl<T> PieceQueue<T> {
    /// Nothing to do.
    pub(super) fn none() -> Self {
        PieceQueue { factors: VecDeque::new(), inverses: VecDeque::new() }
    }

    /// Whether there is a piece to do.
    pub(super) fn has_pieces(&self) -> bool {
        !self.factors.is_empty() || !self.inverses.is_empty()
    }

    /// Forgets operands of a step that is begun anew.
    pub(super) fn begin(&mut self) {
        self.factors.clear();
    }
}

//! A piece of work beside the training, as passed to the caller's function.

use std::any::Any;
use std::sync::Arc;

use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::op::Op;

use crate::engine::optim::kfac::Side;

/// Runs a piece of [`OwnWork`](chimera_schedule::effects::OwnWork) on the rank that reaches it. An
/// error, with its reason in words, ends the training.
pub type DoPiece<'j> = dyn Fn(&WorkPiece<'_>) -> Result<(), String> + Sync + 'j;

/// A piece of work beside the training.
pub struct WorkPiece<'p> {
    /// Name of the work.
    pub work: &'p str,
    /// The piece: its stage and pipe, and its unit of the step or its number.
    pub op: Op,
    /// The rank that runs it.
    pub rank: Rank,
    /// The current step; for pieces without one, the first step of the window.
    pub step: u64,
    pub(crate) shown: Option<&'p dyn Any>,
}

impl WorkPiece<'_> {
    /// For work [on backwards](chimera_schedule::effects::Pieces::OnBackward), returns the input
    /// and output gradient of each linear layer that the stage
    /// [shows](crate::stage::Stage::operands). `None` if there are none, or if `T` is not their
    /// type.
    pub fn operands<T: 'static>(&self) -> Option<&[[T; 2]]> {
        self.shown?.downcast_ref::<Vec<[T; 2]>>().map(Vec::as_slice)
    }
}

/// The operands of one unit's linear layers.
pub(crate) type Shown<T> = Arc<Vec<[T; 2]>>;

/// An inverse that takes effect with the next factors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inverse {
    pub(crate) stage: StageId,
    pub(crate) layer: usize,
    pub(crate) side: Side,
}

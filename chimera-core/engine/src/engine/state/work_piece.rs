//! A piece of work beside the training, and what it is given.

use std::any::Any;
use std::sync::Arc;

use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::op::Op;

use crate::engine::optim::kfac::Side;

/// Does a piece of [`OwnWork`](chimera_schedule::effects::OwnWork) on the rank that comes to it; the error says in words why it
/// cannot, and ends the training.
pub type DoPiece<'j> = dyn Fn(&WorkPiece<'_>) -> Result<(), String> + Sync + 'j;

/// A piece of work beside the training.
pub struct WorkPiece<'p> {
    /// Name of the work.
    pub work: &'p str,
    /// Which of its pieces: of a stage of a pipe, and of a unit of the step or the n-th of any time.
    pub op: Op,
    /// The rank that does it.
    pub rank: Rank,
    /// The step under way; of a piece of any time in a window of several steps, the first of them.
    pub step: u64,
    pub(crate) shown: Option<&'p dyn Any>,
}

impl WorkPiece<'_> {
    /// Of work [on backwards](chimera_schedule::effects::Pieces::OnBackward): input and output gradient of each linear layer that the
    /// stage [shows](crate::stage::Stage::operands). None if there are none, or they are no tensors of type `T`.
    pub fn operands<T: 'static>(&self) -> Option<&[[T; 2]]> {
        self.shown?.downcast_ref::<Vec<[T; 2]>>().map(Vec::as_slice)
    }
}

/// The operands of one unit's linear layers.
pub(crate) type Shown<T> = Arc<Vec<[T; 2]>>;

/// An inverse that comes into use with the next factors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inverse {
    pub(crate) stage: StageId,
    pub(crate) layer: usize,
    pub(crate) side: Side,
}

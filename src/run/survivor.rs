//! What a rank keeps when another one has died, so that it goes on from there with whoever takes that one's place.

use std::any::Any;

use chimera_core::device::Device;
use chimera_core::engine::WorkerState;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::stage::Stage;

use super::trained::RankTrained;

/// What a rank has of a run from one transport to the next.
#[derive(Default)]
pub struct Survivor {
    /// Its stages, with weights and optimizer state, which only who knows the device can read.
    stages: Option<Box<dyn Any + Send>>,
    /// The step that they are to be trained in next.
    next: Option<u64>,
    /// Whether other ranks are past the step that the run begins with: who has no stages then gets them from replicas.
    pub joins: bool,
    /// Steps that rank 0 has told of.
    pub(super) told: u64,
    /// Steps after which this rank did all that comes between two steps.
    pub(super) settled: u64,
    /// What it leaves, but for the weights.
    pub(super) trained: RankTrained,
}

impl Survivor {
    /// The step to be trained next, if this rank has weights for one.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Keeps the stages of a rank.
    pub(super) fn keep<S, D>(&mut self, kept: WorkerState<S, D>)
    where
        S: Stage<Tensor = D::Tensor> + 'static,
        D: Device,
    {
        self.next = kept.next();
        self.stages = Some(Box::new(kept));
    }

    /// The stages that `rank` has kept, if it has.
    pub(super) fn take<S, D>(&mut self, rank: Rank) -> Result<Option<WorkerState<S, D>>, Fault>
    where
        S: Stage<Tensor = D::Tensor> + 'static,
        D: Device,
    {
        let other = |_| Fault::new(Class::Internal, rank, "stages of another device were kept");
        let kept = self.stages.take().map(|kept| kept.downcast().map_err(other)).transpose()?;
        Ok(kept.map(|kept| *kept))
    }
}

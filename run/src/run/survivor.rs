//! The state that a rank keeps when another one dies, to continue from there with the replacement.

use std::any::Any;
use std::sync::Arc;

use chimera_core::device::Device;
use chimera_core::engine::{Job, WorkerState};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, listed};
use chimera_core::lower::Programs;
use chimera_core::program::Program;
use chimera_core::stage::Stage;

use super::progress::trained::RankTrained;
use super::{Run, Subject};
use crate::observe::Recorded;

/// The state of a rank that outlives a transport.
#[derive(Default)]
pub struct Survivor {
    /// The ranks that train now, if some are missing.
    pub(super) fewer: Option<Arc<Fewer>>,
    /// The ranks that trained its stages with it, if some were missing.
    before: Option<Arc<Fewer>>,
    /// Stages with weights and optimizer state. Only code that knows the device can read them.
    stages: Option<Box<dyn Any + Send>>,
    /// The step in which they are to be trained next.
    next: Option<u64>,
    /// Whether other ranks are past the step that the run begins with. A rank without stages then
    /// gets them from replicas.
    pub joins: bool,
    /// Steps that rank 0 has reported.
    pub(super) told: u64,
    /// Ranks that were replaced in steps that are computed again and had been reported before.
    pub(super) replaced: Vec<Rank>,
    /// Number of steps after which this rank did all the work that comes between two steps.
    pub(super) settled: u64,
    /// The trace so far, on rank 0.
    pub(super) traced: Recorded,
    /// The result of the rank, without the weights.
    pub(super) trained: RankTrained,
}

/// The stages that a rank has kept, and the ranks that trained them with it if some were missing.
type KeptStages<S, D> = (WorkerState<S, D>, Option<Arc<Fewer>>);

/// Some of the ranks of a job, and the program by which they train whole steps.
#[derive(Debug)]
pub struct Fewer {
    /// The ranks, ascending. The transport's rank i is the i-th.
    pub present: Vec<Rank>,
    /// The program of these ranks.
    pub program: Program,
}

impl Fewer {
    /// Adapts `job` to the ranks that are present.
    pub(super) fn job<'j, I>(fewer: Option<&'j Fewer>, job: Job<'j, I>) -> Job<'j, I> {
        match fewer {
            Some(fewer) => Job { program: &fewer.program, width: 1, ..job },
            None => job,
        }
    }
}

impl Survivor {
    /// Notes which ranks of the run have met, and makes their program if some are missing.
    ///
    /// # Errors
    /// If no program can be made for them.
    pub fn meet<S: Subject>(
        &mut self,
        run: &Run<S>,
        present: &[Rank],
        me: Rank,
    ) -> Result<Option<Arc<Fewer>>, Fault> {
        let (program, width) = (run.program(), run.config().schedule.width);
        if present.len() == width * program.placement().n_workers() {
            self.fewer = None;
        } else if self.fewer.as_ref().is_none_or(|fewer| fewer.present != present) {
            let mut programs = Programs::new(program, width);
            programs.make(present).map_err(|why| {
                let message = format!("{why}. Start again from the last checkpoint");
                Fault::new(Class::PeerLost, me, message)
            })?;
            let (program, present) = (programs.of(present).0.clone(), present.to_vec());
            self.fewer = Some(Arc::new(Fewer { present, program }));
        }
        Ok(self.fewer.clone())
    }

    /// Returns the ranks that trained last, if some were missing; otherwise nothing.
    pub fn present(&self) -> &[Rank] {
        self.fewer.as_ref().map_or(&[], |fewer| &fewer.present)
    }

    /// Describes why training has paused, where these ranks were `replaced` before it went on.
    pub(super) fn why_a_gap(&self, replaced: &[Rank]) -> String {
        match (&self.fewer, replaced) {
            (Some(fewer), _) => format!("{} train without the others", listed(&fewer.present)),
            (None, []) => "a rank died before it had trained".into(),
            (None, replaced) => format!("processes took the place of {}", listed(replaced)),
        }
    }

    /// Takes over the duties of rank 0 from a dead rank that reported the steps before `first`. The
    /// work after the last step is done again.
    pub fn lead(&mut self, first: u64) {
        (self.settled, self.told) = (0, first);
    }

    /// Returns the step to be trained next, if this rank has weights for one.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Keeps the stages of a rank, which it trained with the ranks that are `now`.
    pub(super) fn keep<S, D>(&mut self, kept: WorkerState<S, D>, now: Option<Arc<Fewer>>)
    where
        S: Stage<Tensor = D::Tensor> + 'static,
        D: Device,
    {
        self.next = kept.next();
        self.before = now;
        self.stages = Some(Box::new(kept));
    }

    /// Takes the stages that `rank` has kept, if any, and the ranks that trained them with it.
    pub(super) fn take<S, D>(&mut self, rank: Rank) -> Result<Option<KeptStages<S, D>>, Fault>
    where
        S: Stage<Tensor = D::Tensor> + 'static,
        D: Device,
    {
        let other = |_| Fault::new(Class::Internal, rank, "stages of another device were kept");
        let kept = self.stages.take().map(|kept| kept.downcast().map_err(other)).transpose()?;
        Ok(kept.map(|kept| (*kept, self.before.take())))
    }
}

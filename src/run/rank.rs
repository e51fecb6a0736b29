//! One rank of a run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use anyhow::Result;
use chimera_core::comm::Comm;
use chimera_core::engine::{Job, StepReport, Worker, handshake, panicked};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::StageId;
use chimera_core::layers::Layers;
use chimera_core::model::{DropoutRate, stage};

use super::Run;
use super::steps::Steps;
use super::trained::RankTrained;
use super::watch::Watch;
use crate::observe::Log;

impl Run {
    /// Trains the row of the rank that `comm` is an end of.
    pub(super) fn train_rank<'r, K, O>(
        &'r self,
        job: Job<'r>,
        kernels: K,
        comm: &mut impl Comm<K::Tensor>,
        watch: &Watch<'r, O>,
    ) -> Result<RankTrained, Fault>
    where
        K: Layers,
        O: FnMut(&StepReport) -> Result<()>,
    {
        let rank = comm.rank();
        handshake(comm, &watch.fingerprint, Instant::now() + job.patience.first_step)?;
        let model = self.model();
        let dropout = DropoutRate { rate: self.config().dropout, seed: self.config().seed };
        let stage = |id: StageId| {
            let cut = self.plan.cuts[id.index()].clone();
            let made = stage(kernels.clone(), model, model.context, dropout, cut);
            made.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))
        };
        let mut worker = Worker::new(job, kernels.clone(), comm, stage)?;
        if let Some(explain) = &self.explain {
            explain.follow(rank, worker.recent().clone());
        }
        let mut log =
            Log::open(self.config().log.as_deref(), self.program(), rank, self.first_step())?;
        let trained = catch_unwind(AssertUnwindSafe(|| {
            Steps { run: self, worker: &mut worker, rank, watch, log: &mut log }.train()
        }));
        match &trained {
            Ok(trained) => {
                let is_stopped = |trained: &RankTrained| trained.n_steps < self.config().steps;
                log.end(trained.as_ref().map(is_stopped));
            }
            Err(panic) => log.line(panicked(rank, &**panic)),
        }
        trained.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

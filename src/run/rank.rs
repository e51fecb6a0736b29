//! One rank of a run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Result;
use chimera_core::comm::Comm;
use chimera_core::engine::{Fields, Job, StepReport, Worker, handshake, panicked};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::StageId;
use chimera_core::layers::Layers;
use chimera_core::model::{Architecture, BertStage, Cut, Gpt2Stage, ModelError};
use chimera_core::stage::Stage;

use super::Run;
use super::samples::HeldOut;
use super::steps::Steps;
use super::trained::RankTrained;
use crate::observe::{Log, Recorder};

/// What is done with a run besides training.
pub(super) struct Watch<'r, O> {
    /// What all ranks must have in common.
    pub(super) greeting: Fields,
    pub(super) observe: Mutex<O>,
    pub(super) held_out: HeldOut,
    pub(super) recorder: Option<Recorder<'r>>,
    /// Whether each rank is a process, which knows nothing of the others but by messages.
    pub(super) by_processes: bool,
}

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
        let (model, rate, seed) = (self.model(), self.config().dropout, self.config().seed);
        let (k, sequence) = (kernels.clone(), model.context);
        match model.architecture {
            Architecture::Gpt2 => self.train_stages(job, kernels, comm, watch, |cut| {
                Ok(Gpt2Stage::new(k.clone(), model, sequence, cut)?.with_dropout(rate, seed))
            }),
            Architecture::Bert => self.train_stages(job, kernels, comm, watch, |cut| {
                let predictions = model.predictions(sequence);
                let stage = BertStage::new(k.clone(), model, sequence, predictions, cut)?;
                Ok(stage.with_dropout(rate, seed))
            }),
        }
    }

    fn train_stages<'r, K, S, O>(
        &'r self,
        job: Job<'r>,
        kernels: K,
        comm: &mut impl Comm<K::Tensor>,
        watch: &Watch<'r, O>,
        stage: impl Fn(Cut) -> Result<S, ModelError>,
    ) -> Result<RankTrained, Fault>
    where
        K: Layers,
        S: Stage<Tensor = K::Tensor, Item = u32> + Clone,
        O: FnMut(&StepReport) -> Result<()>,
    {
        let rank = comm.rank();
        handshake(comm, &watch.greeting, Instant::now() + job.patience.first_step)?;
        let stages: Result<Vec<S>, _> = self.plan.cuts.iter().cloned().map(stage).collect();
        let stages = stages.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))?;
        let stage = |id: StageId| Ok(stages[id.index()].clone());
        let mut worker = Worker::new(job, kernels, comm, stage)?;
        if let Some(explain) = &self.explain {
            explain.follow(rank, worker.recent().clone());
        }
        let mut log =
            Log::open(self.config().log.as_deref(), self.program(), rank, self.first_step())?;
        let trained = catch_unwind(AssertUnwindSafe(|| {
            Steps { run: self, worker: &mut worker, rank, watch, log: &mut log }.train(&stages)
        }));
        match &trained {
            Ok(trained) => {
                let on_request =
                    |trained: &RankTrained| trained.last.as_ref().is_some_and(|last| last.stop);
                log.end(trained.as_ref().map(on_request));
            }
            Err(panic) => log.line(panicked(rank, &**panic)),
        }
        trained.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

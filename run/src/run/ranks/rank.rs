//! One rank of a run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use chimera_core::comm::Comm;
use chimera_core::device::Device;
use chimera_core::engine::{Job, Worker, handshake};
use chimera_core::fault::{Fault, panicked};
use chimera_core::ids::StageId;
use chimera_core::stage::Stage;
use chimera_settings::Survive;

use super::steps::{Recover, Steps};
use crate::observe::Log;
use crate::run::Run;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::Watch;
use crate::run::survivor::{Fewer, Survivor};
use crate::run::workload::subject::Subject;

impl<S: Subject> Run<S> {
    /// Trains the row of the rank of `comm`, on `device`; `stage` makes its stages. The transport
    /// and the observer are trait objects: compiling an engine for each pair would take minutes.
    pub(crate) fn train_rank<'r, T, D>(
        &'r self,
        job: Job<'r, S::Item>,
        device: D,
        mut comm: &mut dyn Comm<D::Tensor>,
        watch: &Watch<'r, S::Item>,
        survivor: &mut Survivor,
        mut stage: impl FnMut(StageId) -> Result<T, Fault>,
    ) -> Result<RankTrained, Fault>
    where
        T: Stage<Tensor = D::Tensor, Item = S::Item> + 'static,
        D: Device,
    {
        let rank = comm.rank();
        handshake(&mut comm, &watch.fingerprint, Instant::now() + job.patience.first_step)?;
        let kept = survivor.take(rank)?;
        let is_initial = kept.is_none();
        let now = survivor.fewer.clone();
        let (kept, before) =
            kept.map_or((None, now.clone()), |(kept, before)| (Some(kept), before));
        let job_now = Fewer::job(now.as_deref(), job);
        let mut worker = match kept {
            Some(kept) => Worker::rejoin(Fewer::job(before.as_deref(), job), comm, kept),
            None => Worker::new(job_now, device, comm, &mut stage)?,
        };
        if let Some(explain) = &self.explain {
            explain.follow(rank, worker.recent().clone());
        }
        let first = survivor.next().unwrap_or(self.first_step());
        let warn = move |problem: &str| {
            // If ranks write to the same full disk, only the first one warns.
            self.unlogged.call_once(|| self.saver.iter().for_each(|saver| saver.tell(problem)));
        };
        let folder = self.config().output.log.as_deref();
        let mut log = Log::open(folder, job_now.program, rank, first, warn)?;
        let recover: &mut Recover<'_, '_, T, D, _> =
            &mut |worker, start| worker.recover_with(job_now, start, &mut stage);
        let trained = catch_unwind(AssertUnwindSafe(|| {
            let (worker, log) = (&mut worker, &mut log);
            let saver = self.saver.as_ref().filter(|_| watch.by_processes);
            let (share, since) = (saver.map(|saver| saver.share(rank)), first);
            let steps =
                Steps { run: self, worker, recover, rank, watch, log, survivor, share, since };
            steps.train(is_initial)
        }));
        match &trained {
            Ok(trained) => {
                let is_stopped =
                    |trained: &RankTrained| trained.n_steps < self.config().training.steps;
                log.end(trained.as_ref().map(is_stopped));
            }
            Err(panic) => log.line(panicked(rank, &**panic)),
        }
        if self.config().devices.survive != Survive::Off && trained.is_ok() {
            let is_now = std::ptr::eq(worker.program(), job_now.program);
            let with = if is_now { now.clone() } else { before.clone() };
            survivor.keep(worker.leave(), with);
        }
        trained.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

//! The models here on text: the workload of a run from the command line.

use std::io;
use std::sync::Mutex;

use anyhow::Result;
use chimera_core::comm::{Comm, CommError, Endpoint, Host};
use chimera_core::effects::Token;
use chimera_core::engine::{Job, factor_shapes};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, DropoutRate, Memory, ModelConfig, stage};
use chimera_core::program::{Instr, Program};
use chimera_core::render::chrome::Sizes;
use chimera_core::stage::{Data, Param};
use chimera_core::timetable::Timetable;
use chimera_device::{Devices, OpenDevice};
use chimera_formats::checkpoint::Digest;
use chimera_plan::plan::{Chain, Course, Need, Plan, Priced};
use chimera_settings::{Config, ModelSettings, Transport};

use super::initial::Initial;
use super::samples::{HeldOutText, Samples};
use super::subject::Subject;
use crate::data::Corpus;
use crate::run::by_ranks::{OnThreads, in_threads, on_rank};
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::{HeldOut, Watch};
use crate::run::survivor::Survivor;
use crate::run::{DirectTransport, Here, N_VALIDATION, OnTransport, Run};

/// A model of the [table](chimera_core::model), a text, and devices.
pub struct Transformer<K> {
    pub(crate) devices: Devices<K>,
    pub(crate) model: ModelConfig,
    pub(crate) priced: Priced,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) memory: Vec<Memory>,
    /// The memory that each worker of a group needs.
    pub(crate) needs: Vec<Need>,
    pub(crate) corpus: Corpus,
    pub(crate) here: Here,
}

impl<K: DirectTransport> Subject for Transformer<K> {
    type Item = u32;

    fn plan(&mut self, config: Config, found: Option<Timetable>) -> Result<Course> {
        let Plan { course, priced, cuts, memory, needs, .. } = Plan::with::<K>(config, found)?;
        (self.priced, self.cuts, self.memory, self.needs) = (priced, cuts, memory, needs);
        Ok(course)
    }

    fn chain(&self) -> &dyn Chain {
        &self.priced
    }

    fn params(&self) -> Vec<Vec<Param>> {
        self.cuts.iter().map(|cut| self.model.params(cut)).collect()
    }

    fn samples<'s>(&'s self, course: &Course) -> Box<dyn Data + 's> {
        let (seed, per_step) = (course.config.training.seed, course.samples_per_step());
        let sequence = course.config.model.sequence;
        let n_targets = self.model.predictions(sequence);
        let target_len = self.model.sample(&vec![0; sequence], 0).1.len();
        let (corpus, counted) = (&self.corpus, Mutex::default());
        Box::new(Samples { corpus, seed, n_targets, target_len, per_step, counted })
    }

    fn held_out(&self, course: &Course) -> io::Result<Option<HeldOut<'_, u32>>> {
        let batch = self.corpus.validation(N_VALIDATION)?;
        let n_samples = batch.n_samples as u64;
        let n_targets = self.model.predictions(course.config.model.sequence);
        Ok(Some(HeldOut { data: Box::new(HeldOutText { batch, n_targets }), n_samples }))
    }

    fn tokens_per_sample(&self, config: &Config) -> u64 {
        config.model.sequence as u64
    }

    fn hash(ids: &[u32], hasher: &mut blake3::Hasher) {
        ids.iter().for_each(|id| {
            hasher.update(&id.to_le_bytes());
        });
    }

    fn digest(&self) -> Option<io::Result<&Digest>> {
        Some(self.corpus.digest())
    }

    fn document_end(&self) -> Option<u32> {
        self.corpus.document_end()
    }

    fn device_models(&self) -> Vec<String> {
        self.devices.models()
    }

    fn bf16_products(&self) -> Option<&'static str> {
        self.devices.by_rank().iter().find_map(OpenDevice::bf16_products)
    }

    fn sizes(&self, course: &Course) -> Sizes {
        let flops = |cut| self.model.forward_flops(cut, course.config.model.sequence);
        Sizes {
            bytes: self.memory.iter().map(|stage| stage.sample).collect(),
            forward_flops: self.cuts.iter().map(flops).collect(),
            samples: course.samples_per_unit(),
        }
    }

    fn open_initial(&self, config: &Config) -> Result<Option<Initial>> {
        let adapter = config.model.adapter.as_deref();
        let init = config.model.init.as_deref();
        init.map(|dir| Initial::open(dir, adapter, &self.model)).transpose()
    }

    fn train_threads<'r>(
        run: &'r Run<Transformer<K>>,
        job: Job<'r>,
        watch: &Watch<'r, u32>,
    ) -> Result<Vec<RankTrained>> {
        let threads = run.config().devices.threads;
        in_threads(&run.subject.devices, threads, Training { run, job, watch })
    }

    fn train_process<'r>(
        run: &'r Run<Transformer<K>>,
        job: Job<'r>,
        comm: &mut dyn Comm<Host>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, u32>,
        survivor: &mut Survivor,
    ) -> Result<RankTrained, Fault> {
        let rank = comm.rank();
        let none = || Fault::new(Class::Internal, rank, "a rank has no device");
        let device = run.subject.devices.by_rank().first().ok_or_else(none)?;
        let (work, threads) = (Training { run, job, watch }, run.config().devices.threads);
        match run.config().devices.transport {
            Transport::Nccl => {
                let patience = run.config().patience();
                // This transport does not survive deaths.
                K::over_direct(device, comm, patience, why_over, OnThreads { work, threads })
            }
            _ => {
                drop(why_over); // with MPI only, all waits are MPI's
                on_rank(device, comm, threads, SurvivingTraining { training: work, survivor })
            }
        }
    }
}

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Describes the NCCL that the run will use.
    ///
    /// # Errors
    /// If this machine has no NCCL, or this rank no GPU.
    pub fn nccl(&self, rank: Rank) -> Result<String, Fault> {
        K::direct(self.devices().by_rank().first(), rank)
    }

    /// Returns an upper bound on the words of the longest tensor that ranks send each other: the buffer in which a
    /// stage's gradients are reduced, an activation between stages, or a saved activation that another rank keeps.
    pub fn longest_tensor(&self) -> usize {
        let Course { program, last, .. } = &self.course;
        let programs = [program].into_iter().chain(last);
        let received = programs.map(|program| self.longest_received(program));
        let params = self.subject.params();
        let reduced = params.iter().map(|params| self.reduced_elements(params));
        received.chain(reduced).max().unwrap_or(0)
    }

    /// Returns an upper bound on the words of the longest tensor that a worker of `program`
    /// receives from another one: no saved activation is longer than everything that a unit saves.
    fn longest_received(&self, program: &Program) -> usize {
        let micro_batch_size = self.config().schedule.micro_batch_size;
        let sequence = self.config().model.sequence;
        let unit = micro_batch_size.div_ceil(program.units_per_micro() as usize);
        let of_sample = |token: &Token| match token.edge() {
            Some(_) => sequence * self.model().hidden,
            None => {
                let saved = self.subject.memory.get(token.stage.index()).map(|it| it.sample.saved);
                (saved.unwrap_or_default() / size_of::<f32>() as f64).ceil() as usize
            }
        };
        let words = |instr: &Instr| match instr {
            Instr::Recv(token, _) => {
                of_sample(token).saturating_mul(unit * usize::from(token.span.len))
            }
            _ => 0,
        };
        program.rows().iter().flatten().map(words).max().unwrap_or(0)
    }

    /// Returns the elements of the buffer in which the gradients of a stage are reduced. If the optimizer
    /// preconditions gradients, its factors are in the buffer too. Each tensor begins at a multiple of 64.
    fn reduced_elements(&self, params: &[Param]) -> usize {
        let preconditions = self.config().training.optimizer.preconditions();
        let factors = if preconditions { factor_shapes(params) } else { Vec::new() };
        let gradients = params.iter().map(Param::n_elements);
        let factors = factors.iter().map(|shape| shape.iter().product());
        gradients.chain(factors).map(|n: usize| n.next_multiple_of(64)).sum()
    }

    /// Trains the row of the rank of `comm`, on `kernels`.
    pub(crate) fn train_with<'r, L: Layers>(
        &'r self,
        job: Job<'r>,
        kernels: L,
        comm: &mut dyn Comm<L::Tensor>,
        watch: &Watch<'r, u32>,
        survivor: &mut Survivor,
    ) -> Result<RankTrained, Fault> {
        let Transformer { model, cuts, .. } = &self.subject;
        let ModelSettings { dropout: rate, sequence, .. } = self.config().model;
        let seed = self.config().training.seed;
        let dropout = DropoutRate { rate, seed };
        let (rank, device) = (comm.rank(), kernels.clone());
        self.train_rank(job, kernels, comm, watch, survivor, |id: StageId| {
            let made = stage(device.clone(), model, sequence, dropout, cuts[id.index()].clone());
            made.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))
        })
    }
}

/// The training of a rank.
struct Training<'r, 'w, K> {
    run: &'r Run<Transformer<K>>,
    job: Job<'r>,
    watch: &'w Watch<'r, u32>,
}

impl<K> Clone for Training<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Training<'_, '_, K> {}

impl<K: DirectTransport> OnTransport for Training<'_, '_, K> {
    type Output = RankTrained;

    fn on<L: Layers>(
        self,
        kernels: L,
        comm: &mut dyn Comm<L::Tensor>,
    ) -> Result<RankTrained, Fault> {
        SurvivingTraining { training: self, survivor: &mut Survivor::default() }.on(kernels, comm)
    }
}

/// The training of a rank that may continue from where another transport was left.
struct SurvivingTraining<'r, 'w, K> {
    training: Training<'r, 'w, K>,
    survivor: &'w mut Survivor,
}

impl<K: DirectTransport> OnTransport for SurvivingTraining<'_, '_, K> {
    type Output = RankTrained;

    fn on<L: Layers>(
        self,
        kernels: L,
        comm: &mut dyn Comm<L::Tensor>,
    ) -> Result<RankTrained, Fault> {
        let SurvivingTraining { training: Training { run, job, watch }, survivor } = self;
        run.train_with(job, kernels, comm, watch, survivor)
    }
}

//! A model of the caller's, with all that a run has: checkpoints, exact resume, metrics, traces and logs.

use std::io;

use anyhow::{Context, Result, ensure};
use bytemuck::NoUninit;
use chimera_core::comm::{Comm, CommError, Endpoint, Host, HostStaged, Threads};
use chimera_core::costs::{StageBytes, StageCosts, UniformCosts};
use chimera_core::device::{Device, DeviceError};
use chimera_core::engine::{Fields, Job, StepReport, run_threads};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::render::chrome::Sizes;
use chimera_core::stage::{Data, Param, Stage};
use chimera_core::timetable::Timetable;

use super::subject::Subject;
use super::trained::RankTrained;
use super::watch::{HeldOut, Watch};
use super::{Run, compute_threads, resume};
use crate::formats::checkpoint::Digest;
use crate::plan::{Chain, Course};
use crate::settings::{Config, Transport};

/// A model that can be cut into stages, with its devices and samples.
///
/// A run trains it like one of the models here, by the settings that are not of the model, its text or its device. It
/// is resumed to the bit under the same settings, and up to rounding under another D, W or schedule: checkpoints keep
/// every tensor by its name, in the [type](chimera_core::device::Dtype) that the device says it has.
pub trait Model: Sync {
    /// Where it is trained.
    type Device: Device;
    /// One number of a sample.
    type Item: NoUninit + Send + Sync;
    /// A piece of it.
    type Stage: Stage<Tensor = <Self::Device as Device>::Tensor, Item = Self::Item>;

    /// The name that checkpoints give it: those of a model of another name are refused.
    fn name(&self) -> &str;

    /// Opens the device of a rank.
    fn device(&self, rank: Rank) -> Result<Self::Device, DeviceError>;

    /// Makes a stage, of `n_stages`. Its parameters have the same names and shapes however many stages there are.
    ///
    /// # Errors
    /// If it cannot be cut into so many stages: the run is refused before it starts.
    fn stage(&self, device: &Self::Device, stage: StageId, n_stages: usize) -> Result<Self::Stage>;

    /// What it is trained on.
    fn data(&self) -> &dyn Data<Self::Item>;

    /// What it is evaluated on every `eval-every` steps, and how many samples that has.
    fn held_out(&self) -> Option<(&dyn Data<Self::Item>, u64)> {
        None
    }

    /// What a micro-batch costs on a stage, against others: a search, and the choice of a scaling, depend on it.
    fn costs(&self, _stage: StageId, _n_stages: usize) -> UniformCosts {
        UniformCosts::new(1.0, 2.0, 0.0)
    }
}

/// A [`Model`], cut for a program.
pub struct Own<M: Model> {
    model: M,
    /// The device of rank 0, of whose stages this process asks for their parameters.
    device: M::Device,
    /// Parameters by stage.
    params: Vec<Vec<Param>>,
}

impl<M: Model> Run<Own<M>> {
    /// Checks settings and schedule, and cuts the model. Nothing is written. The options of our models, their text and
    /// their devices are not read.
    ///
    /// # Errors
    /// If the settings have no such schedule, or the model cannot be cut for it.
    pub fn with_model(config: Config, model: M) -> Result<Run<Own<M>>> {
        ensure!(
            config.eval_every == 0 || model.held_out().is_some(),
            "eval-every evaluates on samples that are not trained on, and {} has none: implement Model::held_out",
            model.name()
        );
        ensure!(config.init.is_none(), "init is for the models of this program");
        ensure!(
            config.transport != Transport::Nccl,
            "transport nccl is for the models of this program"
        );
        let config = config.of_model(model.name());
        let found = resume::kept(&config)?;
        let device = model.device(Rank(0))?;
        let mut own = Own { model, device, params: Vec::new() };
        let course = own.plan(config, found)?;
        Run::of(course, own)
    }
}

impl<M: Model> Own<M> {
    /// The stages that `device` is to hold, each by its number.
    fn stages(
        &self,
        device: &M::Device,
        rank: Rank,
    ) -> impl FnMut(StageId) -> Result<M::Stage, Fault> {
        move |id| {
            let made = self.model.stage(device, id, self.params.len());
            made.map_err(|e| Fault::new(Class::Usage, rank, format!("{e:#}")))
        }
    }

    fn params_of(&self, stage: StageId, n_stages: usize) -> Result<Vec<Param>> {
        let made = self.model.stage(&self.device, stage, n_stages);
        let place = || format!("{} cannot be cut into {n_stages} stages", self.model.name());
        Ok(made.with_context(place)?.params().to_vec())
    }

    fn open(&self, rank: Rank) -> Result<M::Device, Fault> {
        self.model.device(rank).map_err(|e| e.into_fault(rank))
    }
}

impl<M: Model> Chain for Own<M> {
    fn costs(&self, _: &Config, timetable: &Timetable) -> Result<StageCosts> {
        let n_stages = timetable.placement.n_stages();
        let costs = (0..n_stages as u16)
            .map(|id| self.model.costs(StageId(id), n_stages).per_units(timetable.units_per_micro));
        Ok(StageCosts::new(costs.collect()))
    }

    fn tied(&self, n_stages: usize) -> Vec<Vec<StageId>> {
        // A model that cannot be cut so is refused when all of its stages are asked for.
        let first = self.params_of(StageId(0), n_stages).unwrap_or_default();
        let ends = vec![StageId(0), StageId(n_stages as u16 - 1)];
        let are_tied = n_stages > 1 && first.iter().any(|param| param.tied);
        if are_tied { vec![ends] } else { Vec::new() }
    }
}

impl<M: Model> Subject for Own<M> {
    type Item = M::Item;

    fn plan(&mut self, config: Config, found: Option<Timetable>) -> Result<Course> {
        let course = Course::plan(config, found, self)?;
        let n_stages = course.n_stages();
        let params = (0..n_stages as u16).map(|id| self.params_of(StageId(id), n_stages));
        self.params = params.collect::<Result<_>>()?;
        Ok(course)
    }

    fn chain(&self) -> &dyn Chain {
        self
    }

    fn params(&self) -> Vec<Vec<Param>> {
        self.params.clone()
    }

    fn samples<'s>(&'s self, _: &Course) -> Box<dyn Data<M::Item> + 's> {
        Box::new(self.model.data())
    }

    fn held_out(&self, _: &Course) -> io::Result<Option<HeldOut<'_, M::Item>>> {
        let held_out = self.model.held_out();
        Ok(held_out.map(|(data, n_samples)| HeldOut { data: Box::new(data), n_samples }))
    }

    fn tokens_per_sample(&self, _: &Config) -> u64 {
        self.model.data().n_targets() as u64
    }

    fn hash(items: &[M::Item], hasher: &mut blake3::Hasher) {
        hasher.update(bytemuck::cast_slice(items));
    }

    fn digest(&self) -> Option<io::Result<&Digest>> {
        None
    }

    fn facts(&self) -> Fields {
        let mut hasher = blake3::Hasher::new();
        for Param { name, shape, .. } in self.params.iter().flatten() {
            hasher.update(format!("{name} {shape:?}\n").as_bytes());
        }
        vec![("parameters".into(), hasher.finalize().to_string())]
    }

    fn device_models(&self) -> Vec<String> {
        Vec::new()
    }

    fn sizes(&self, course: &Course) -> Sizes {
        let n_stages = self.params.len();
        Sizes {
            bytes: vec![StageBytes::default(); n_stages],
            forward_flops: vec![0.0; n_stages],
            samples: course.samples_per_unit(),
        }
    }

    fn train_threads<'r, O>(
        run: &'r Run<Self>,
        job: Job<'r, M::Item>,
        watch: &Watch<'r, M::Item, O>,
    ) -> Result<Vec<RankTrained>>
    where
        O: FnMut(&StepReport) -> Result<()> + Send,
    {
        let Config { width, depth, threads, .. } = *run.config();
        let train = |comm: &mut Threads<<M::Device as Device>::Tensor>| {
            let rank = comm.rank();
            let device = run.subject.open(rank)?;
            let stages = run.subject.stages(&device, rank);
            let pool = compute_threads(threads, rank)?;
            pool.install(|| run.train_rank(job, device.clone(), comm, watch, stages))
        };
        Ok(run_threads((width * depth) as u32, train)?)
    }

    fn train_process<'r, O>(
        run: &'r Run<Self>,
        job: Job<'r, M::Item>,
        comm: &mut impl Comm<Host>,
        _: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, M::Item, O>,
    ) -> Result<RankTrained, Fault>
    where
        O: FnMut(&StepReport) -> Result<()> + Send,
    {
        let rank = comm.rank();
        let device = run.subject.open(rank)?;
        let stages = run.subject.stages(&device, rank);
        let mut staged = HostStaged::new(device.clone(), comm);
        let pool = compute_threads(run.config().threads, rank)?;
        pool.install(|| run.train_rank(job, device.clone(), &mut staged, watch, stages))
    }
}

//! A caller's model, with all that a run has: checkpoints, exact resume, metrics, traces and logs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use bytemuck::NoUninit;
use chimera_core::comm::{Comm, CommError, Endpoint, Host, HostStaged, Threads};
use chimera_core::costs::{StageBytes, StageCosts, UniformCosts};
use chimera_core::device::{Device, DeviceError};
use chimera_core::engine::{Fields, Job, Optimizer, run_threads};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::model::Memory;
use chimera_core::render::chrome::Sizes;
use chimera_core::stage::{Data, Micro, Param, Stage, measure};
use chimera_core::timetable::Timetable;
use chimera_formats::checkpoint::{Digest, state_of};
use chimera_plan::plan::{Chain, Course, Need, Weights, needs};
use chimera_settings::{Config, Layout, ScheduleSettings, Transport, of_our_models, said_in_vain};

use super::subject::Subject;
use crate::run::machine::memory_check;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::{HeldOut, Watch};
use crate::run::survivor::Survivor;
use crate::run::{Run, compute_threads, resume};

/// A model that can be cut into stages, with its devices and samples.
///
/// A run trains it like one of the models here, by the settings that do not concern the model, its text or its
/// device. It resumes to the bit under the same settings, and up to rounding under another D, W or schedule.
/// Checkpoints keep every tensor by its name, in the [type](chimera_core::device::Dtype) that the device gives it.
pub trait Model: Sync {
    /// The device that the model is trained on.
    type Device: Device;
    /// One number of a sample.
    type Item: NoUninit + Send + Sync;
    /// A stage of the model.
    type Stage: Stage<Tensor = <Self::Device as Device>::Tensor, Item = Self::Item> + 'static;

    /// Returns the name of the model in checkpoints. Checkpoints of a model with another name are refused.
    fn name(&self) -> &str;

    /// Opens the device of a rank.
    fn device(&self, rank: Rank) -> Result<Self::Device, DeviceError>;

    /// Makes a stage, of `n_stages`. Its parameters have the same names and shapes for any number
    /// of stages. Parameters that are [tied](Param::tied) are shared by all stages that have one of
    /// the name; a parameter that only one stage has may be marked as tied too.
    ///
    /// # Errors
    /// If it cannot be cut into `n_stages` stages: the run is refused before it starts.
    fn stage(&self, device: &Self::Device, stage: StageId, n_stages: usize) -> Result<Self::Stage>;

    /// Returns the free bytes in the memory of a rank's device; `None` if that is the host's.
    fn free_bytes(&self, _rank: Rank) -> Option<u64> {
        None
    }

    /// Returns the data to train on.
    fn data(&self) -> &dyn Data<Self::Item>;

    /// Returns a rule of the model's own for updating its weights, used instead of the setting `optimizer`.
    fn optimizer(&self) -> Option<Optimizer> {
        None
    }

    /// Returns the data that is evaluated every `eval-every` steps, and its number of samples: one or more.
    fn held_out(&self) -> Option<(&dyn Data<Self::Item>, u64)> {
        None
    }

    /// Returns the relative cost of a micro-batch on a stage. A search, and the choice of a scaling, depend on it.
    fn costs(&self, _stage: StageId, _n_stages: usize) -> UniformCosts {
        UniformCosts::new(1.0, 2.0, 0.0)
    }
}

/// A [`Model`], cut for a program.
pub struct Own<M: Model> {
    model: M,
    /// The device of rank 0. This process makes stages on it to ask for their parameters.
    device: M::Device,
    /// Parameters by stage.
    params: Vec<Vec<Param>>,
    /// Sets of stages that share tensors, by the number of all stages. Cached because a search asks often.
    ties: Mutex<BTreeMap<usize, Vec<Vec<StageId>>>>,
    /// Bytes of a sample on each stage.
    bytes: Vec<StageBytes>,
    /// Options that are set but apply only to the models here.
    unread: Vec<&'static str>,
}

impl<M: Model> Run<Own<M>> {
    /// Checks settings and schedule, cuts the model, and runs each stage once with weights of zeros to
    /// measure its memory. Writes nothing. Ignores the options of our models, their text and their devices.
    ///
    /// # Errors
    /// If the settings have no such schedule, or the model cannot be cut for it.
    pub fn with_model(config: Config, model: M) -> Result<Run<Own<M>>> {
        let n_held_out = model.held_out().map_or(0, |(_, n_samples)| n_samples);
        ensure!(
            config.output.eval_every == 0 || n_held_out > 0,
            "eval-every evaluates on samples that are not trained on, and {} has none: let Model::held_out give one or more",
            model.name()
        );
        ensure!(config.model.init.is_none(), "init is for the models of this program");
        ensure!(
            config.schedule.layout == Layout::Balanced,
            "layout is for the models of this program: Model::stage says what a stage of {} holds",
            model.name()
        );
        config.check_whole_stages().map_err(anyhow::Error::msg)?;
        ensure!(
            config.devices.transport != Transport::Nccl,
            "transport nccl is for the models of this program"
        );
        config.check_own_model(|name| name == model.name())?;
        let unread = said_in_vain(&config, of_our_models());
        let mut config = config.of_model(model.name());
        config.training.optimizer = model.optimizer().unwrap_or(config.training.optimizer);
        let found = resume::kept(&config)?;
        let device = model.device(Rank(0))?;
        config.training.optimizer.check(&device).map_err(anyhow::Error::msg)?;
        let (params, ties, bytes) = (Vec::new(), Mutex::default(), Vec::new());
        let mut own = Own { model, device, params, ties, bytes, unread };
        let course = own.plan(config, found)?;
        Run::of(course, own)
    }

    /// Returns the memory that each worker of a group will need, as far as the stages [report](measure)
    /// what they keep. A run that needs more than is free is refused before its first step.
    pub fn needs(&self) -> Vec<Need> {
        let Own { params, bytes, device, .. } = &self.subject;
        let element = device.zeros(&[1]).map_or(4, |one| device.bytes(&one)) as f64;
        let memory = bytes.iter().map(|sample| Memory { sample: *sample, ..Memory::default() });
        let weights = Weights { params: params.clone(), element };
        needs(self.config(), &weights, &memory.collect::<Vec<_>>(), self.program())
    }

    /// Refuses these ranks if they need more memory than there is.
    fn check_memory(&self, ranks: impl Iterator<Item = Rank>) -> Result<()> {
        let needs = self.needs();
        let of =
            |rank: Rank| (needs[rank.index() % needs.len()], self.subject.model.free_bytes(rank));
        memory_check::check_own(self.config(), &ranks.map(of).collect::<Vec<_>>())
    }
}

impl<M: Model> Own<M> {
    /// Returns a function that makes the stages of `device`, by number.
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

    /// Returns the parameters by stage, as the stages list them.
    fn said_params(&self, n_stages: usize) -> Result<Vec<Vec<Param>>> {
        (0..n_stages as u16).map(|id| self.params_of(StageId(id), n_stages)).collect()
    }

    /// Returns a parameter name under which a checkpoint would also keep optimizer state of another parameter, if any.
    fn ambiguous(&self, optimizer: &Optimizer) -> Option<&str> {
        let params = || self.params.iter().flatten();
        let names: HashSet<&str> = params().map(|param| param.name.as_str()).collect();
        let kept = |param: &Param| {
            let kept = optimizer.kept(param).iter();
            kept.map(|kept| state_of(&param.name, kept)).collect::<Vec<_>>()
        };
        params().flat_map(kept).find_map(|kept| names.get(kept.as_str()).copied())
    }

    /// Measures the bytes of a sample on each stage. Returns `None` if the trial fails, since training will fail again.
    fn measure(&self, course: &Course) -> Option<Vec<StageBytes>> {
        let n_samples = course.samples_per_unit() as usize;
        let (mut input, mut target) = (Vec::new(), Vec::new());
        for sample in 0..n_samples as u64 {
            self.model.data().sample(0, sample, &mut input, &mut target).ok()?;
        }
        let n_stages = self.params.len();
        let (mut x, mut bytes) = (None, Vec::new());
        for id in 0..n_stages {
            let stage = self.model.stage(&self.device, StageId(id as u16), n_stages).ok()?;
            let micro = Micro {
                step: 0,
                sample: 0,
                input: if stage.needs_inputs() { &input } else { &[] },
                target: if id + 1 == n_stages { &target } else { &[] },
                loss_scale: 1.0,
                training: true,
            };
            let (of_stage, y) = measure(&self.device, &stage, &micro, x, n_samples).ok()?;
            bytes.push(of_stage);
            x = Some(y);
        }
        Some(bytes)
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
        let mut known = self.ties.lock().unwrap_or_else(PoisonError::into_inner);
        // If the model cannot be cut this way, the run is refused when its parameters are asked for.
        let found = || ties(&self.said_params(n_stages).unwrap_or_default());
        known.entry(n_stages).or_insert_with(found).clone()
    }

    fn params(&self, _: &Config, n_stages: usize) -> Result<Vec<Vec<Param>>> {
        let (mut params, ties) = (self.said_params(n_stages)?, self.tied(n_stages));
        check_ties(&params, &ties)?;
        for (stage, params) in (0..).map(StageId).zip(&mut params) {
            if !ties.iter().flatten().any(|tied| *tied == stage) {
                params.iter_mut().for_each(|param| param.tied = false); // no other stage has it
            }
        }
        Ok(params)
    }
}

/// Returns sets of stages that share tensors, which have equal names.
fn ties(params: &[Vec<Param>]) -> Vec<Vec<StageId>> {
    let mut by_name: BTreeMap<&str, BTreeSet<StageId>> = BTreeMap::new();
    for (stage, params) in (0..).map(StageId).zip(params) {
        for param in params.iter().filter(|param| param.tied) {
            by_name.entry(&param.name).or_default().insert(stage);
        }
    }
    let ties: BTreeSet<_> = by_name.into_values().filter(|stages| stages.len() > 1).collect();
    ties.into_iter().map(|stages| stages.into_iter().collect()).collect()
}

/// Refuses stages of a tie that do not share all of their tied tensors.
fn check_ties(params: &[Vec<Param>], ties: &[Vec<StageId>]) -> Result<()> {
    let tied = |stage: StageId| {
        let tied = params[stage.index()].iter().filter(|param| param.tied);
        tied.map(|param| (param.name.as_str(), &param.shape[..])).collect::<BTreeSet<_>>()
    };
    for stages in ties {
        for pair in stages.windows(2) {
            let [one, other] = [tied(pair[0]), tied(pair[1])];
            if let Some((name, shape)) = one.symmetric_difference(&other).next() {
                bail!(
                    "{} and {} share tensors, but not `{name}` of {shape:?}: stages that share any tensor share all that are \
                     tied in one of them, by one name and of one shape",
                    pair[0],
                    pair[1]
                );
            }
        }
    }
    Ok(())
}

impl<M: Model> Subject for Own<M> {
    type Item = M::Item;

    fn plan(&mut self, config: Config, found: Option<Timetable>) -> Result<Course> {
        let course = Course::plan(config, found, self)?;
        let n_stages = course.n_stages();
        self.params = Chain::params(self, &course.config, n_stages)?;
        if let Some(name) = self.ambiguous(&course.config.training.optimizer) {
            bail!(
                "{name} names a parameter, and in checkpoints a tensor of the optimizer: choose another name"
            );
        }
        let nothing = || vec![StageBytes::default(); n_stages];
        self.bytes = self.measure(&course).unwrap_or_else(nothing);
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

    fn unread(&self) -> &[&'static str] {
        &self.unread
    }

    fn device_models(&self) -> Vec<String> {
        Vec::new()
    }

    fn sizes(&self, course: &Course) -> Sizes {
        let n_stages = self.params.len();
        Sizes {
            bytes: self.bytes.clone(),
            forward_flops: vec![0.0; n_stages],
            samples: course.samples_per_unit(),
        }
    }

    fn train_threads<'r>(
        run: &'r Run<Self>,
        job: Job<'r, M::Item>,
        watch: &Watch<'r, M::Item>,
    ) -> Result<Vec<RankTrained>> {
        let ScheduleSettings { width, depth, .. } = run.config().schedule;
        let threads = run.config().devices.threads;
        run.check_memory((0..(width * depth) as u32).map(Rank))?;
        let train = |comm: &mut Threads<<M::Device as Device>::Tensor>| {
            let rank = comm.rank();
            let device = run.subject.open(rank)?;
            let stages = run.subject.stages(&device, rank);
            let pool = compute_threads(threads, rank)?;
            let survivor = &mut Survivor::default();
            pool.install(|| run.train_rank(job, device.clone(), comm, watch, survivor, stages))
        };
        Ok(run_threads((width * depth) as u32, train)?)
    }

    fn train_process<'r>(
        run: &'r Run<Self>,
        job: Job<'r, M::Item>,
        comm: &mut dyn Comm<Host>,
        _: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, M::Item>,
        survivor: &mut Survivor,
    ) -> Result<RankTrained, Fault> {
        let rank = comm.rank();
        let unfit = |e| Fault::new(Class::Usage, rank, format!("{e:#}"));
        run.check_memory([rank].into_iter()).map_err(unfit)?;
        let device = run.subject.open(rank)?;
        let stages = run.subject.stages(&device, rank);
        let mut staged = HostStaged::new(device.clone(), comm);
        let pool = compute_threads(run.config().devices.threads, rank)?;
        pool.install(|| run.train_rank(job, device.clone(), &mut staged, watch, survivor, stages))
    }
}

#[cfg(test)]
mod tests;

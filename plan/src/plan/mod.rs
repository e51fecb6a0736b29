//! The plan that settings describe: a model cut into stages, a proven program, and its memory.
//! Among all configurations for some ranks, [`choose()`] finds the one with the shortest step.

mod costs;
mod need;
mod peaks;
mod rank_memory;
mod search;
mod step;

use anyhow::{Result, ensure};
use chimera_core::model::{Cut, Memory, ModelConfig, Partition};
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;

pub use costs::hardware::{EFFICIENCIES, Hardware, USABLE};
pub use costs::own_times::OwnTimes;
pub use costs::predict::{Figure, Prediction};
pub use costs::priced::{Priced, StepCosts, times_of};
pub use costs::rate::Rate;
pub use need::Need;
use need::memory_of;
pub use need::needs;
pub use peaks::Weights;
pub use rank_memory::RankMemory;
pub use search::advice::Advice;
pub use search::answers::Answers;
pub use search::candidate::{Candidate, Cluster, Speed};
pub use search::choose::{Choice, choose};
pub use search::effort::Effort;
pub use search::layers::{LayerCosts, Ranks, choose_for};
pub use search::layout::layout_of;
pub use search::layout::relaid::{Relaid, relaid, work};
pub use search::layout::with_layout;
pub use search::offloaded::recomputed_within_cap;
use search::offloaded::with_recomputed;
use search::scaled;
pub use search::step_parts::StepParts;
pub use step::chain::{Chain, costs_by_flops};
pub use step::conflicts::{CONFLICTS, Conflict};
pub use step::course::{Course, recomputed_at};
pub use step::course::{can_be_cut, timetable};
pub use step::request::request;
pub use step::unfit::{by_file_name, endless_if_refused, name_by_file};
pub use step::units::Units;

use chimera_device::{AnyKernels, Device, OpenedBy};
use chimera_settings::Config;

use crate::profile::ProfiledTimes;

/// A run without its data.
pub struct Plan {
    /// The training, step by step.
    pub course: Course,
    /// Devices by worker.
    pub devices: Vec<Device>,
    /// The model.
    pub model: ModelConfig,
    /// The costs of its stages.
    pub priced: Priced,
    /// The layers of each stage.
    pub cuts: Vec<Cut>,
    /// The memory that each stage takes.
    pub memory: Vec<Memory>,
    /// The memory that each worker of a group needs.
    pub needs: Vec<Need>,
}

impl Plan {
    /// Checks settings and model, proves the schedule, and estimates the memory. Reads no data.
    pub fn make<K: AnyKernels>(config: Config) -> Result<Plan>
    where
        Device: OpenedBy<K>,
    {
        Plan::with::<K>(config, None)
    }

    /// Returns the plan with the timetable that a search elsewhere has `found`, if any.
    ///
    /// # Errors
    /// As [`make`](Plan::make).
    pub fn with<K: AnyKernels>(config: Config, found: Option<Timetable>) -> Result<Plan> {
        let devices = Device::list::<K>(&config.devices.device, config.schedule.depth)?;
        let priced = Priced::by_settings::<K>(&config, &config.model())?;
        let plan = |config| {
            Plan::on(devices.clone(), config, priced.clone(), |config, priced| {
                Course::plan(config, found.clone(), priced)
            })
        };
        scaled::shorter(config, &mut |config| {
            let config = with_layout(config, &priced, found.as_ref())?;
            plan(with_recomputed(config, &mut |config| plan(config))?)
        })
    }

    /// Returns the plan of a training by a [`timetable`] on another machine. Its devices need not be in this build.
    pub(crate) fn elsewhere(
        config: Config,
        timetable: Timetable,
        times: Option<&ProfiledTimes>,
    ) -> Result<Plan> {
        let devices = Device::named(&config.devices.device, config.schedule.depth)?;
        let priced = Priced::new(&config.model(), times.cloned());
        Plan::on(devices, config, priced, |config, priced| Course::by(config, timetable, priced))
    }

    fn on(
        devices: Vec<Device>,
        config: Config,
        priced: Priced,
        course: impl FnOnce(Config, &Priced) -> Result<Course>,
    ) -> Result<Plan> {
        devices.iter().try_for_each(|device| device.check(config.devices.precision))?;
        let model = config.model();
        model.check_sequence(config.model.sequence)?;
        let course = course(config, &priced)?;
        let (config, program) = (&course.config, &course.program);
        ensure!(
            program.rules().n_slices() == 1 || model.is_causal(),
            "{} needs slices of the sequence, which a {} cannot have, since its tokens attend to later ones: choose another \
             schedule, or model gpt2 or llama",
            program.schedule(),
            model.architecture
        );
        ensure!(
            program.rules().graph().is_chain(),
            "schedule {} has stages that are not a chain, but the models here are cut into one: \
             choose another schedule, or train stages of your own (docs/library.md)",
            program.schedule()
        );
        let cuts = config.cuts(&model, course.n_stages())?;
        let memory = memory_of(config, &model, &cuts);
        let weights = Weights::of(&model, &cuts);
        let others = course.in_turn.iter().map(|(_, program)| program);
        let needs = others
            .map(|program| needs(config, &weights, &memory, program))
            .fold(needs(config, &weights, &memory, program), |all, other| {
                all.iter().zip(other).map(|(need, other)| need.larger(other)).collect()
            });
        Ok(Plan { course, devices, model, priced, cuts, memory, needs })
    }

    /// Returns the settings, completed by the plan.
    pub fn config(&self) -> &Config {
        &self.course.config
    }

    /// Returns the parameters of each stage.
    pub fn params(&self) -> Vec<Vec<Param>> {
        self.cuts.iter().map(|cut| self.model.params(cut)).collect()
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// Returns the layers of each stage.
    pub fn layout(&self) -> Partition {
        Partition::of(&self.cuts)
    }

    /// Returns the program: the work of each worker in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.course.program
    }

    /// Returns the memory that it will need.
    pub fn need(&self) -> Need {
        let group = self.needs.iter().copied().fold(Need::default(), |all, need| all + need);
        group.times(self.course.config.schedule.width as f64)
    }
}

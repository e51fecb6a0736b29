//! Costs of the stages of a built-in model from a profile, for commands about schedules.

use anyhow::{Result, bail, ensure};
use chimera_core::analyze::{NetworkCosts, simulate};
use chimera_core::costs::{Costs, StageCosts};
use chimera_core::model::Partition;
use chimera_core::program::Program;
use chimera_core::timetable::Timetable;

use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::network::{NetworkArgs, WorkerCosts};
use crate::cli::parts::schedule::scheduled::Scheduled;
use crate::cli::parts::schedule::shape::{ProfiledArgs, ShapeArgs};
use crate::cli::parts::terminal::console::warn;
use crate::device::Kernels;
use crate::plan::{Chain, Priced, StepCosts, can_be_cut, times_of, with_layout};
use crate::profile::ProfiledTimes;
use crate::run::outside::OnDisk;
use crate::settings::schedules::Named;
use crate::settings::{Config, Layers, Settings};

/// A built-in model, and the times of its layers.
pub(crate) struct Profiled {
    config: Config,
    times: ProfiledTimes,
}

impl Profiled {
    /// Opens the profile that the options name, with the model that they describe. Returns `None`
    /// if they name no profile.
    ///
    /// # Errors
    /// If the profile cannot be read, belongs to another machine, or times are given as well.
    pub(crate) fn open(
        args: &ProfiledArgs,
        schedule: &str,
        shape: &ShapeArgs,
        costs: &CostArgs,
        network: &NetworkArgs,
    ) -> Result<Option<Profiled>> {
        let said = &args.0;
        if said.iter().all(|(key, _)| key != "profile") {
            if let Some((key, _)) = said.iter().next() {
                bail!(
                    "{key} needs times from a profile: name one with --profile, or leave {key} out"
                )
            }
            return Ok(None);
        }
        ensure!(
            !costs.are_given(),
            "--profile gives the times of stages: leave out --forward, --backward and the other \
             times except --transfer"
        );
        ensure!(
            schedule != "-",
            "--profile needs the timetable's depth beforehand: name its file instead of standard input"
        );
        let mut with_schedule = Settings::default().with("schedule", schedule);
        if !matches!(schedule.parse(), Ok(Named::File(_))) {
            // By default a drawing has fewer micro-batches than a training.
            let n = shape.0.drawn()?.schedule.micro_batches as i64;
            with_schedule = with_schedule.with("micro-batches", n);
        }
        let settings = [&shape.0, &costs.memory.0, &network.job.0, said];
        let settings = settings.into_iter().fold(with_schedule, |all, some| some.over(&all));
        let config = Layers { config: None, settings }.resolve(&OnDisk)?;
        config.model().check_sequence(config.model.sequence)?;
        let Some(path) = &config.costs.profile else { return Ok(None) };
        let times =
            times_of::<Kernels>(&config, path, config.schedule.width * config.schedule.depth)?;
        if let Some(doubt) = times.doubt() {
            warn(doubt);
        }
        let priced = Priced::new(&config.model(), Some(times.clone()));
        let config = with_layout(config, &priced, None)?;
        Ok(Some(Profiled { times, config }))
    }

    /// Returns the layers of a timetable's stages.
    ///
    /// # Errors
    /// If the model cannot be cut in this way.
    pub(crate) fn layout(&self, timetable: &Timetable) -> Result<Partition> {
        let n_stages = timetable.placement.n_stages();
        Ok(Partition::of(&self.config.cuts(&self.config.model(), n_stages)?))
    }

    /// Returns the costs of a timetable's stages in seconds.
    ///
    /// # Errors
    /// If the profile has no times of a layer, or the model cannot be cut in this way.
    pub(crate) fn costs(&self, timetable: &Timetable) -> Result<StageCosts> {
        can_be_cut(&self.config, timetable.units_per_micro, timetable.n_slices())?;
        let priced = Priced::new(&self.config.model(), Some(self.times.clone()));
        priced.costs(&self.config, timetable)
    }

    /// Adds to the costs of compute and network those of reductions, updates and the step sync
    /// between threads.
    ///
    /// # Errors
    /// If the profile has no such times, or the model cannot be cut in this way.
    pub(crate) fn with_step<C: Costs>(&self, costs: C, program: &Program) -> Result<StepCosts<C>> {
        let priced = Priced::new(&self.config.model(), Some(self.times.clone()));
        priced.with_step(&self.config, costs, program)
    }

    /// Returns the plan, and the times, under contention: other workers compute at the same time,
    /// for as much of the step as the plan predicts.
    ///
    /// # Errors
    /// If the profile has no times of a layer, or the plan cannot be made with them.
    pub(crate) fn beside_others(
        self,
        plan: Scheduled<NetworkCosts<WorkerCosts>>,
        network: &NetworkArgs,
        given: &CostArgs,
    ) -> Result<(Scheduled<NetworkCosts<WorkerCosts>>, Profiled)> {
        if self.config.schedule.width * self.config.schedule.depth <= 1 {
            return Ok((plan, self));
        }
        let program = plan.prove()?;
        let costs = self.with_step(network.with_sums(plan.costs().clone(), &program)?, &program)?;
        let busy = 1.0 - simulate(&program, &costs).bubble_ratio();
        let beside = Profiled { times: self.times.with_others_busy(busy), ..self };
        let stages = beside.costs(&plan.timetable)?;
        let stages = given.with_transfers(stages, &plan.timetable)?;
        Ok((plan.at(network, stages)?, beside))
    }
}

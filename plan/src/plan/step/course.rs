//! The course of a run, independent of the model: a proven program of steps, and how weights are updated.

use anyhow::{Context, Result, bail, ensure};
use chimera_core::analyze::{prove_in_one_order, simulate};
use chimera_core::costs::{Costs, UnevenCosts};
use chimera_core::engine::{Training, unpreconditioned, unsurvivable};
use chimera_core::lower::{Lowering, Passes, freeze, recompute};
use chimera_core::program::Program;
use chimera_core::request::{Ordered, Request, Source};
use chimera_core::schedule::Parameter;
use chimera_core::search::Report;
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;
use chimera_settings::schedules::Named;
use chimera_settings::{
    Config, RecomputedStages, Scaling, ScheduleSettings, Survive, Transport, UnfitStages,
};

use super::chain::Chain;
use super::conflicts::{check_program, check_settings};
use super::preconditioned::with_kfac;
use super::request::{passes_of_window, request_of_window};
use super::training::training;
use super::unfit::{by_file_name, endless_if_refused};

/// Settings with the proven program that they lead to.
pub struct Course {
    /// The settings, completed.
    pub config: Config,
    /// The work of each worker in a step, or in a window of steps.
    pub program: Program,
    /// The program of the steps at the end that do not make a whole window.
    pub last: Option<Program>,
    /// The programs for each k, ascending, if k is chosen again while training. `program` is one of them.
    pub in_turn: Vec<(u32, Program)>,
    /// The result of the search for a schedule, if there was one.
    pub search: Option<Report>,
    /// The timetable that a search found, here or elsewhere.
    pub found: Option<Timetable>,
    /// The settings of the engine.
    pub training: Training,
}

impl Course {
    /// Checks settings and schedule, and proves the program. Uses the timetable that a search
    /// elsewhere has `found`, if any.
    pub fn plan(config: Config, found: Option<Timetable>, chain: &dyn Chain) -> Result<Course> {
        let config = with_scaling(config, chain)?;
        Course::make(config, chain, |config, window| match found {
            // A search's timetable already has the effect of the passes, except the border.
            Some(timetable) => {
                let Passes { free_border, .. } = passes_of_window(config, window);
                let passes = Passes { free_border, ..Passes::default() };
                Ok(Ordered { timetable, passes, search: None })
            }
            None => order(config, window, chain),
        })
    }

    /// Returns the course of another machine, by its [`timetable`].
    pub(crate) fn by(config: Config, timetable: Timetable, chain: &dyn Chain) -> Result<Course> {
        Course::make(config, chain, |config, window| {
            let source = Source::Timetable(timetable);
            let passes = passes_of_window(config, window);
            let request = Request { source, shape: config.shape(), passes };
            recomputed(config, ordered(config, request, chain)?, chain)
        })
    }

    fn make(
        config: Config,
        chain: &dyn Chain,
        order: impl FnOnce(&Config, u32) -> Result<Ordered>,
    ) -> Result<Course> {
        check_settings(&config)?;
        let training = training(&config);
        let window =
            config.shape().window.min(u32::try_from(config.training.steps).unwrap_or(u32::MAX));
        let by_name = |error| by_file_name(error, &config.schedule.name);
        let ordered = order(&config, window).map_err(by_name)?;
        let (timetable, search) = (&ordered.timetable, ordered.search.clone());
        let found = (config.schedule.name == Named::Auto).then(|| timetable.clone());
        can_be_cut(&config, timetable.units_per_micro, timetable.n_slices())?;
        let program = prove(&config, chain, &training, ordered).map_err(by_name)?;
        check_program(&config, &program)?;
        if let Some(why) = unpreconditioned(&program, &training) {
            bail!(why);
        }
        if config.devices.survive != Survive::Off
            && let Some(why) = unsurvivable(&program, &training)
        {
            bail!("survive: {why}");
        }
        let in_turn = in_turn(&config, chain, &training, &program)?;
        let mut course = Course { config, program, last: None, in_turn, search, found, training };
        if course.config.checkpoints.resume.is_none() {
            course.begin(0, chain)?;
        }
        Ok(course)
    }

    /// Returns the number of stages of the placement.
    pub fn n_stages(&self) -> usize {
        self.program.placement().n_stages()
    }

    /// Returns the samples of the global batch.
    pub fn samples_per_step(&self) -> u64 {
        let ScheduleSettings { width, micro_batches, micro_batch_size, .. } = self.config.schedule;
        let factors = [width, micro_batches, micro_batch_size];
        factors.into_iter().fold(1, |n, factor| n.saturating_mul(factor as u64))
    }

    /// Returns the samples of a unit of a micro-batch.
    pub fn samples_per_unit(&self) -> f64 {
        self.config.schedule.micro_batch_size as f64 / f64::from(self.program.units_per_micro())
    }

    /// Makes step `first` the first, and makes a program for the steps that are left over after whole windows.
    pub fn begin(&mut self, first: u64, chain: &dyn Chain) -> Result<()> {
        let steps = &self.config.training.steps;
        let schedule = &self.config.schedule.name;
        let window = self.program.window().n_steps();
        let to_do = steps.saturating_sub(first);
        let n_left = (to_do % u64::from(window)) as u32;
        self.last = None;
        if n_left > 0 {
            let ordered = order(&self.config, n_left, chain)?;
            ensure!(
                ordered.n_steps() == n_left,
                "{schedule} has a window of {window} steps, but {to_do} steps are to be trained from step {first} \
                 on: choose --steps so that they are whole windows"
            );
            self.last = Some(prove(&self.config, chain, &self.training, ordered)?);
        }
        Ok(())
    }
}

/// Numbers of forwards in turn that are tried besides the given one.
const IN_TURN: [u32; 6] = [1, 2, 3, 4, 6, 8];

/// Returns the programs of `1f1b` by k, if it is to be chosen again: as many as `memory_cap` has room for.
fn in_turn(
    config: &Config,
    chain: &dyn Chain,
    training: &Training,
    given: &Program,
) -> Result<Vec<(u32, Program)>> {
    if config.schedule.adapt_every == 0 {
        return Ok(Vec::new());
    }
    let of = |k: u32| -> Result<Option<(u32, Program)>> {
        if k == config.shape().n_in_turn {
            return Ok(Some((k, given.clone())));
        }
        let mut config = config.clone();
        config.set(Parameter::InTurn, Some(k));
        let ordered = order(&config, config.shape().window, chain)?;
        let proven = prove(&config, chain, training, ordered);
        match proven {
            Err(_) if config.passes.memory_cap.is_some() => Ok(None),
            proven => Ok(Some((k, proven?))),
        }
    };
    let most = config.schedule.micro_batches as u32;
    let mut all: Vec<u32> = IN_TURN.into_iter().filter(|k| *k <= most).collect();
    all.push(config.shape().n_in_turn);
    all.sort_unstable();
    all.dedup();
    all.into_iter().filter_map(|k| of(k).transpose()).collect()
}

/// Returns the timetable that the settings name, without the passes. These are the only part that
/// depends on recomputation.
pub fn timetable(config: &Config, chain: &dyn Chain) -> Result<Timetable> {
    Ok(ordered(config, request_of_window(config, config.shape().window)?, chain)?.timetable)
}

/// Returns the settings with the scaling whose step is shorter.
pub(crate) fn with_scaling(mut config: Config, chain: &dyn Chain) -> Result<Config> {
    if config.schedule.scaling != Scaling::Auto {
        return Ok(config);
    }
    config.schedule.scaling = Scaling::Is(config.shape().scaling);
    if matches!(config.schedule.name, Named::Schedule(_)) && can_be_halved(&config) {
        let (training, mut request) =
            (training(&config), request_of_window(&config, config.shape().window)?);
        request.take_shorter_scaling_by(&mut |ordered| {
            endless_if_refused(makespan(&config, chain, &training, ordered))
        })?;
        config.schedule.scaling = Scaling::Is(request.shape.scaling);
    }
    Ok(config)
}

pub(crate) fn can_be_halved(config: &Config) -> bool {
    config.schedule.micro_batch_size.is_multiple_of(2)
}

fn makespan(
    config: &Config,
    chain: &dyn Chain,
    training: &Training,
    ordered: Ordered,
) -> Result<f64> {
    let how = lowering(config, chain, training, ordered.timetable.placement.n_stages());
    let costs = UnevenCosts::new(chain.costs(config, &ordered.timetable)?, config.worker_speeds());
    let ordered = with_frozen(config, ordered, chain)?;
    let program = recomputed(config, ordered, chain)?.program(&how, &costs)?;
    Ok(simulate(&program, &costs).makespan())
}

/// Refuses micro-batches that cannot be cut into these units; `n_slices` of them are slices of sequences.
pub fn can_be_cut(config: &Config, units_per_micro: u32, n_slices: u32) -> Result<()> {
    if n_slices > 1 {
        ensure!(
            config.model.sequence >= n_slices as usize,
            "a sequence of {} tokens cannot be cut into {n_slices} slices: choose --slices {} or fewer",
            config.model.sequence,
            config.model.sequence
        );
        ensure!(
            config.model.dropout == 0.0,
            "dropout is drawn for whole sequences, and the schedule cuts them into {n_slices} slices: choose --dropout 0, \
             or another schedule"
        );
        return Ok(());
    }
    ensure!(
        config.schedule.micro_batch_size.is_multiple_of(units_per_micro as usize),
        "scaling halving cuts micro-batches in two, but micro-batch-size {} is odd: choose an even one",
        config.schedule.micro_batch_size
    );
    Ok(())
}

/// Returns the timetable that the settings ask for, with a window of this many steps if it is
/// asynchronous. Every rank of a run gets the same one unless a search runs out of time.
pub(crate) fn order(config: &Config, window: u32, chain: &dyn Chain) -> Result<Ordered> {
    recomputed(config, ordered(config, request_of_window(config, window)?, chain)?, chain)
}

fn recomputed(config: &Config, ordered: Ordered, chain: &dyn Chain) -> Result<Ordered> {
    let costs = chain.costs(config, &ordered.timetable)?;
    recomputed_at(config, ordered, &costs)
}

/// Returns the timetable if only some stages recompute, which the passes do not know of.
///
/// # Errors
/// [`UnfitStages`] if a stage that is named does not exist, or a
/// [`Refusal`](chimera_core::analyze::Refusal) of a timetable that is not sound.
pub fn recomputed_at(config: &Config, ordered: Ordered, costs: &impl Costs) -> Result<Ordered> {
    let stages = match &config.passes.recompute_stages {
        RecomputedStages::These(stages) => stages,
        RecomputedStages::All | RecomputedStages::Auto => return Ok(ordered),
    };
    let n_stages = ordered.timetable.placement.n_stages();
    if let Some(stage) = stages.keys().copied().find(|stage| usize::from(*stage) >= n_stages) {
        return Err(UnfitStages::Absent { stage, n_stages }.into());
    }
    let how = Lowering { max_peak: config.passes.memory_cap, ..Lowering::default() };
    let what = |_, stage| config.recompute_of(stage);
    let timetable = recompute(&ordered.timetable, what, config.passes.hoist, &how, costs)?;
    Ok(Ordered { timetable, ..ordered })
}

fn ordered(config: &Config, request: Request, chain: &dyn Chain) -> Result<Ordered> {
    let ordered = request.timetable(&|timetable| chain.costs(config, timetable), &mut |_| ())?;
    with_frozen(config, ordered, chain)
}

/// Leaves out the passes that nobody wants of frozen stages.
fn with_frozen(config: &Config, ordered: Ordered, chain: &dyn Chain) -> Result<Ordered> {
    let frozen = chain.frozen(config, ordered.timetable.placement.n_stages())?;
    Ok(Ordered { timetable: freeze(ordered.timetable, &frozen), ..ordered })
}

/// Returns the proven program of a timetable, for a training by these settings.
pub(crate) fn proven(config: &Config, chain: &dyn Chain, ordered: Ordered) -> Result<Program> {
    prove(config, chain, &training(config), ordered)
}

/// Returns how a timetable of `n_stages` stages is lowered to a program.
fn lowering(config: &Config, chain: &dyn Chain, training: &Training, n_stages: usize) -> Lowering {
    Lowering {
        sync: config.replicas.sync,
        barrier: training.needs_barrier(),
        tied: chain.tied(n_stages),
        max_peak: config.passes.memory_cap,
        whole_stages: config.replicas.most_whole_stages(),
    }
}

/// Returns the proven program of a timetable.
fn prove(
    config: &Config,
    chain: &dyn Chain,
    training: &Training,
    ordered: Ordered,
) -> Result<Program> {
    let n_stages = ordered.timetable.placement.n_stages();
    let how = lowering(config, chain, training, n_stages);
    let of_stages = chain.costs(config, &ordered.timetable)?;
    let costs = UnevenCosts::new(of_stages.clone(), config.worker_speeds());
    let mut program = ordered.program(&how, &costs)?;
    if training.optimizer.preconditions() && program.window().update() == Update::Flush {
        let params = chain.params(config, n_stages)?;
        if !params.is_empty() {
            program = with_kfac(config, &params, &program, &how, &of_stages)?;
        }
    }
    if config.devices.transport == Transport::Nccl {
        for program in [Some(&program), program.bordered()].into_iter().flatten() {
            prove_in_one_order(program).context(
                "transport nccl issues all messages in one order, which this program lacks: choose \
                 another schedule, or transport mpi",
            )?;
        }
    }
    Ok(program)
}

#[cfg(test)]
mod tests;

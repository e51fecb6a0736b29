//! What the settings describe: a model cut into stages, a proven program, and the memory it will need.
//! Of all ways to train on some ranks, [`choose()`] takes the one with the shortest step.

mod candidate;
mod choose;
mod estimate;
mod need;
mod request;

use anyhow::{Result, ensure};
use chimera_core::costs::{StageCosts, UniformCosts};
use chimera_core::engine::{NonFinite, Training};
use chimera_core::ids::StageId;
use chimera_core::lower::{Lowering, Passes, Recompute};
use chimera_core::model::{Cut, Memory, ModelConfig, cut};
use chimera_core::program::{Instr, Program};
use chimera_core::render::chrome::Sizes;
use chimera_core::request::{Ordered, Request, Source};
use chimera_core::search::Report;
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;

pub use candidate::{Candidate, Cluster};
pub use choose::{Choice, Effort, choose};
pub use need::Need;
use need::{memory_of, needs};
pub use request::request;
use request::request_of_window;

use crate::device::Device;
use crate::settings::schedules::Named;
use crate::settings::{Config, Scaling};

/// All of a run but its data.
pub struct Plan {
    pub(crate) config: Config,
    /// By worker.
    pub(crate) devices: Vec<Device>,
    pub(crate) model: ModelConfig,
    pub(crate) cuts: Vec<Cut>,
    /// What each stage takes.
    pub(crate) memory: Vec<Memory>,
    pub(crate) program: Program,
    /// Of the steps at the end that do not make a whole window.
    pub(crate) last: Option<Program>,
    pub(crate) search: Option<Report>,
    /// What it found, here or elsewhere.
    pub(crate) found: Option<Timetable>,
    pub(crate) training: Training,
    /// Of each worker of a group.
    pub(crate) needs: Vec<Need>,
}

impl Plan {
    /// Checks settings, model and schedule, which it proves, and foresees the memory. Reads no data.
    pub fn make(config: Config) -> Result<Plan> {
        Plan::with(config, None)
    }

    /// What a trace says of the model beside its timeline.
    pub(crate) fn sizes(&self) -> Sizes {
        let Plan { config, model, cuts, .. } = self;
        let flops = cuts.iter().map(|cut| model.forward_flops(cut, config.context));
        Sizes {
            bytes: self.memory.iter().map(|stage| stage.sample).collect(),
            forward_flops: flops.collect(),
            samples: config.micro_batch_size as f64 / f64::from(self.program.units_per_micro()),
        }
    }

    /// With the timetable that a search has `found`, if it was elsewhere.
    pub(crate) fn with(config: Config, found: Option<Timetable>) -> Result<Plan> {
        let devices = Device::list(&config.device, config.depth)?;
        let config = with_scaling(config)?;
        Plan::on(devices, config, |config, window| match found {
            // A search's timetable is as the passes would make it.
            Some(timetable) => Ok(Ordered { timetable, passes: Passes::default(), search: None }),
            None => order(config, window),
        })
    }

    /// What another machine would train by a [`timetable`]: its devices need not be in this build.
    pub(crate) fn elsewhere(config: Config, timetable: Timetable) -> Result<Plan> {
        let devices = Device::named(&config.device, config.depth)?;
        Plan::on(devices, config, |config, _| {
            let source = Source::Timetable(timetable);
            ordered(config, Request { source, shape: config.shape(), passes: config.passes() })
        })
    }

    fn on(
        devices: Vec<Device>,
        config: Config,
        order: impl FnOnce(&Config, u32) -> Result<Ordered>,
    ) -> Result<Plan> {
        devices.iter().try_for_each(|device| device.check(config.precision))?;
        ensure!(
            config.min_lr <= config.lr,
            "min-lr {} is above lr {}: the learning rate falls",
            config.min_lr,
            config.lr
        );
        let (steps, traced) = (config.steps, &config.trace_steps.0);
        ensure!(
            config.trace.is_none() || traced.start < steps,
            "trace-steps {}..{} begins after the last step: steps is {steps}; choose a range that begins at {} or before",
            traced.start,
            traced.end,
            steps - 1
        );
        let model = config.model();
        model.validate()?;
        let training = training(&config);
        let window = config.window.min(u32::try_from(config.steps).unwrap_or(u32::MAX));
        let ordered = order(&config, window)?;
        let (timetable, search) = (&ordered.timetable, ordered.search.clone());
        let found = (config.schedule == Named::Auto).then(|| timetable.clone());
        can_be_cut(&config, timetable.units_per_micro)?;
        let cuts = cut(&model, timetable.placement.n_stages())?;
        let program = prove(&config, &model, &training, ordered)?;
        let is_synchronous = program.window().update() == Update::Flush;
        ensure!(
            config.non_finite == NonFinite::Stop || is_synchronous && config.check_finite,
            "non-finite skip needs updates that wait for all workers, and a check: choose a synchronous \
             schedule, and leave check-finite true"
        );
        ensure!(
            !config.shard_optimizer || is_synchronous,
            "shard-optimizer needs weights that nobody reads while they are updated: choose a synchronous \
             schedule"
        );
        ensure!(
            !config.shard_optimizer || !config.mpi_allreduce,
            "shard-optimizer gives each sum to one replica, and mpi-allreduce to all: choose one of them"
        );
        let memory = memory_of(&config, &model, &cuts);
        let needs = needs(&config, &model, &cuts, &memory, &program);
        let mut plan = Plan {
            config,
            devices,
            model,
            cuts,
            memory,
            program,
            last: None,
            search,
            found,
            training,
            needs,
        };
        if plan.config.resume.is_none() {
            plan.begin(0)?;
        }
        Ok(plan)
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// What each worker does in a step, or in a window of steps.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Elements of the longest tensor that ranks send each other: of an activation, or of all gradients of a stage, each
    /// of which begins at a multiple of 64.
    pub(crate) fn longest_tensor(&self) -> usize {
        let programs = [&self.program].into_iter().chain(&self.last);
        let samples = |program: &Program| {
            let unit = self.config.micro_batch_size / program.units_per_micro() as usize;
            let units = |instr: &Instr| match instr {
                Instr::Recv(token, _) => usize::from(token.span.len),
                _ => 0,
            };
            program.rows().iter().flatten().map(units).max().unwrap_or(0) * unit
        };
        let n_samples = programs.map(samples).max().unwrap_or(0);
        let padded = |param: &Param| param.n_elements().next_multiple_of(64);
        let weights = |cut| self.model.params(cut).iter().map(padded).sum();
        let weights = self.cuts.iter().map(weights).max().unwrap_or(0);
        weights.max(n_samples * self.config.context * self.model.hidden)
    }

    /// The memory it will need.
    pub fn need(&self) -> Need {
        let group = self.needs.iter().copied().fold(Need::default(), |all, need| all + need);
        group.times(self.config.width as f64)
    }

    /// Makes step `first` the first, and a program of the steps that are then left over after whole windows.
    pub(crate) fn begin(&mut self, first: u64) -> Result<()> {
        let Config { steps, schedule, .. } = &self.config;
        let window = self.program.window().n_steps();
        let to_do = steps.saturating_sub(first);
        let n_left = (to_do % u64::from(window)) as u32;
        self.last = None;
        if n_left > 0 {
            let ordered = order(&self.config, n_left)?;
            ensure!(
                ordered.timetable.update.n_steps().max(1) == n_left,
                "{schedule} has a window of {window} steps, but {to_do} steps are to be trained from step {first} \
                 on: choose --steps so that they are whole windows"
            );
            let Plan { config, model, training, .. } = &*self;
            self.last = Some(prove(config, model, training, ordered)?);
        }
        Ok(())
    }
}

fn training(config: &Config) -> Training {
    Training {
        seed: config.seed,
        steps: config.steps,
        optimizer: config.optimizer,
        lr: config.lr,
        min_lr: config.min_lr,
        warmup: config.warmup,
        lr_schedule: config.lr_schedule,
        beta1: config.beta1,
        beta2: config.beta2,
        eps: config.eps,
        momentum: config.momentum,
        weight_decay: config.weight_decay,
        clip: (config.clip > 0.0).then_some(config.clip),
        check_finite: config.check_finite,
        non_finite: config.non_finite,
        shard_optimizer: config.shard_optimizer,
    }
}

/// What the settings name, but for the passes, which another recomputation alone makes others.
pub(crate) fn timetable(config: &Config) -> Result<Timetable> {
    Ok(order(config, config.window)?.timetable)
}

/// The settings with the scaling that `auto` stands for: the shorter one, among those that micro-batches can have.
fn with_scaling(mut config: Config) -> Result<Config> {
    if config.scaling != Scaling::Auto {
        return Ok(config);
    }
    config.scaling = Scaling::Is(config.shape().scaling);
    if matches!(config.schedule, Named::Schedule(_)) && config.micro_batch_size.is_multiple_of(2) {
        let model = config.model();
        let mut request = request_of_window(&config, config.window)?;
        request.take_shorter_scaling(&|timetable| costs(&config, &model, timetable))?;
        config.scaling = Scaling::Is(request.shape.scaling);
    }
    Ok(config)
}

/// Refuses micro-batches that cannot be cut into so many units.
pub(crate) fn can_be_cut(config: &Config, units_per_micro: u32) -> Result<()> {
    ensure!(
        config.micro_batch_size.is_multiple_of(units_per_micro as usize),
        "scaling halving cuts micro-batches in two, but micro-batch-size {} is odd: choose an even one",
        config.micro_batch_size
    );
    Ok(())
}

/// The timetable that the settings ask for, of a window of so many steps if it is asynchronous. Every rank of a run
/// gets the same one unless a search runs out of time.
fn order(config: &Config, window: u32) -> Result<Ordered> {
    ordered(config, request_of_window(config, window)?)
}

fn ordered(config: &Config, request: Request) -> Result<Ordered> {
    let model = config.model();
    request.timetable(&|timetable| costs(config, &model, timetable), &mut |_| ())
}

/// What stages cost, by their products: a forward of the mean stage takes 1, and a backward two forwards.
fn costs(config: &Config, model: &ModelConfig, timetable: &Timetable) -> Result<StageCosts> {
    let n_stages = timetable.placement.n_stages();
    let cuts = cut(model, n_stages)?;
    let flops = |cut: &Cut| model.forward_flops(cut, config.context);
    let mean = cuts.iter().map(flops).sum::<f64>() / n_stages as f64;
    let is_selective = |stage: StageId| {
        let mut stages = timetable.selective.iter().map(|(_, stage)| *stage);
        config.recompute == Recompute::Selective || stages.any(|selective| selective == stage)
    };
    let costs = costs_by_flops(model, config.context, &cuts, mean, is_selective);
    let per_units = |stage: UniformCosts| stage.per_units(timetable.units_per_micro);
    Ok(StageCosts::new(costs.into_iter().map(per_units).collect()))
}

/// What stages cost where one unit of time is enough for so many floating-point operations of a sample.
pub(crate) fn costs_by_flops(
    model: &ModelConfig,
    context: usize,
    cuts: &[Cut],
    flops: f64,
    is_selective: impl Fn(StageId) -> bool,
) -> Vec<UniformCosts> {
    let stage = |(stage, cut): (u16, &Cut)| {
        let forward = model.forward_flops(cut, context) / flops;
        let costs = UniformCosts::new(forward, 2.0 * forward, 0.0);
        let recompute = match is_selective(StageId(stage)) {
            true => model.selective_flops(cut, context) / flops,
            false => costs.recompute,
        };
        UniformCosts { recompute, ..costs }
    };
    (0..).zip(cuts).map(stage).collect()
}

/// The proven program of a timetable.
fn prove(
    config: &Config,
    model: &ModelConfig,
    training: &Training,
    ordered: Ordered,
) -> Result<Program> {
    let n_stages = ordered.timetable.placement.n_stages();
    let ends = vec![StageId(0), StageId(n_stages as u16 - 1)];
    let how = Lowering {
        sync: config.sync,
        barrier: training.needs_barrier(),
        tied: if config.tied && n_stages > 1 { vec![ends] } else { Vec::new() },
        max_peak: config.memory_cap,
    };
    let costs = costs(config, model, &ordered.timetable)?;
    Ok(ordered.program(&how, &costs)?)
}

#[cfg(test)]
mod tests {
    use chimera_core::costs::Costs;
    use chimera_core::ids::{PipeId, WorkerId};
    use chimera_core::op::{Kind, Op};
    use chimera_core::schedule::{Shape, find};

    use super::*;
    use crate::run::outside::OnDisk;
    use crate::settings::Layers;

    /// The head of so large a vocabulary is worth two blocks.
    #[test]
    fn stages_cost_what_their_products_take() {
        let of = |recompute: &str| {
            let options =
                "--schedule 1f1b --depth 2 --layers 2 --hidden 64 --heads 4 --context 128";
            let layers = Layers::parse(&format!("{options} --recompute {recompute}")).unwrap();
            let config = layers.resolve(&OnDisk).unwrap();
            let block = 24.0 * 64.0 * 64.0 + 4.0 * 128.0 * 64.0;
            let model = ModelConfig { vocab: block as usize / 64, ..config.model() };
            let shape = Shape::new(2, 2);
            let timetable = find("1f1b").unwrap().timetable(&shape).unwrap();
            let costs = costs(&config, &model, &timetable).unwrap();
            move |kind, stage: u16| {
                let op = Op::new(kind, PipeId(0), StageId(stage), 0);
                costs.op(WorkerId(stage), &op)
            }
        };
        let full = of("full");
        // One block, and one with the head.
        let wanted =
            [(Kind::Forward, 0.5, 1.5), (Kind::Backward, 1.0, 3.0), (Kind::Recompute, 0.5, 1.5)];
        for (kind, first, last) in wanted {
            assert_eq!((full(kind, 0), full(kind, 1)), (first, last), "{kind:?}");
        }
        let selective = of("selective");
        let part = 8.0 * 64.0 * 64.0 / (24.0 * 64.0 * 64.0 + 4.0 * 128.0 * 64.0);
        for stage in 0..2 {
            assert_eq!(selective(Kind::Recompute, stage), 0.5 * part);
        }
    }
}

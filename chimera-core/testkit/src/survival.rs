//! Trainings in which ranks die, drawn from seeds. Survivors and replacements must end with the
//! bits of the undisturbed training, or report the stages that died with their last holders.
//!
//! The whole engine runs on the [simulated](crate::simulated) transport, so a failure can be
//! reproduced from its seed.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::{replace, take};
use std::time::Duration;

use crate::simulated::{Death, Plan, Simulated, run};
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::{Patience, Training};
use chimera_engine::fault::{Class, Fault};
use chimera_engine::trainer::{Trained, Trainer};
use chimera_models::model::{Architecture, DropoutRate, ModelConfig, cut, stage};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::lower::{Lowering, Passes, Recompute, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{SCHEDULES, Schedule, Shape};
use chimera_schedule::update::Update;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::equivalence::TokensByPlace;

/// A training and the events that disturb it.
pub struct Scenario {
    schedule: &'static dyn Schedule,
    shape: Shape,
    width: usize,
    recompute: Recompute,
    program: Program,
    model: ModelConfig,
    training: Training,
    plan: Plan,
    /// The results of all ranks without disturbance.
    undisturbed: Vec<Result<Trained<Tensor>, Fault>>,
    /// If ranks keep copies for each other: the calls of each rank in a training of no steps.
    /// Before these calls, there may be no copies.
    start: Vec<u64>,
}

/// The ending of a scenario that passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every rank ended with the bits of the undisturbed training.
    Survived {
        /// Meetings after the first.
        n_recoveries: u64,
    },
    /// Stages died with all their holders, and every rank reported it.
    Lost,
}

/// Range of drawn deaths, relative to the calls of an undisturbed run; above 1, so that some come
/// during recoveries at the end.
const BEYOND: f64 = 1.3;

/// Longer than the longest training here.
const MOST_TURNS_AWAY: u64 = 1 << 12;
/// Timeout where ranks stall, counted in turns of waits that look at other things in between.
const PATIENCE: Duration = Duration::from_secs(20);
/// Norms and losses are f32 when they leave the device.
const TOLERANCE: f64 = 1e-6;

impl Scenario {
    /// Draws schedule, shape, passes, deaths and delays from a seed.
    pub fn draw(seed: u64) -> Scenario {
        Scenario::draw_with(seed, false)
    }

    /// Like [`draw`](Scenario::draw), but state that is held once, of stages or of a sharded
    /// optimizer, dies with its rank. Ranks keep copies for each other.
    pub fn draw_shadowed(seed: u64) -> Scenario {
        Scenario::draw_with(seed, true)
    }

    fn draw_with(seed: u64, shadowed: bool) -> Scenario {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        loop {
            let schedule = SCHEDULES[random.random_range(0..SCHEDULES.len())];
            let shape = Shape {
                n_pipes: 2 * random.random_range(1..=2),
                ..Shape::new(random.random_range(2..=4), random.random_range(1..=6))
            };
            let width = if random.random_bool(0.25) { 1 } else { 2 };
            let recompute = match random.random_range(0..4) {
                0 => Recompute::Full,
                _ => Recompute::None,
            };
            let Ok(timetable) = schedule.timetable(&shape) else { continue };
            if timetable.update != Update::Flush {
                continue;
            }
            let how = Lowering { barrier: true, ..Lowering::default() };
            let passes = Passes { recompute, ..Passes::default() };
            let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
            let Ok(timetable) = passes.apply(timetable, &how, &costs) else { continue };
            let Ok(program) = lower(&timetable, &how) else { continue };
            let model = ModelConfig {
                architecture: Architecture::GPT2,
                layers: program.placement().n_stages(),
                hidden: 2,
                heads: 1,
                context: 4,
                vocab: 3,
                tied: false,
                llama: None,
                end_of_text: None,
            };
            let steps = random.random_range(1..=3);
            let mut training = Training { seed: 1, steps, lr: 1e-2, ..Training::default() };
            if shadowed {
                training.steps = random.random_range(1..=6);
                training.shadow_every = random.random_range(1..=3);
                training.shard_optimizer = random.random_bool(0.5);
            }
            let most_delay = [0, 3, 30][random.random_range(0..3)];
            let plan = Plan { seed: random.random(), most_delay, ..Plan::default() };
            let undisturbed = Vec::new();
            let mut scenario = Scenario {
                schedule,
                shape,
                width,
                recompute,
                program,
                model,
                training,
                plan,
                undisturbed,
                start: Vec::new(),
            };
            let calls = scenario.trained_undisturbed();
            let death = |random: &mut ChaCha8Rng| {
                let rank = random.random_range(0..calls.len());
                let most = (calls[rank] as f64 * BEYOND) as u64;
                Death { rank: Rank(rank as u32), call: random.random_range(1..=most.max(1)) }
            };
            scenario.plan.deaths =
                (0..random.random_range(1..=3)).map(|_| death(&mut random)).collect();
            return scenario;
        }
    }

    /// Trains without disturbance. Returns the calls of each rank.
    fn trained_undisturbed(&mut self) -> Vec<u64> {
        let plan = Plan { deaths: Vec::new(), ..self.plan.clone() };
        if self.training.shadow_every > 0 {
            let steps = replace(&mut self.training.steps, 0);
            self.start = self.run(&plan).calls;
            self.training.steps = steps;
        }
        let Simulated { outcomes, calls, .. } = self.run(&plan);
        self.undisturbed = outcomes;
        calls
    }

    /// Like [`draw`](Scenario::draw), but dead ranks stay away for a while.
    pub fn draw_narrow(seed: u64) -> Scenario {
        Scenario::draw(seed).narrowed(seed)
    }

    /// Like [`draw_narrow`](Scenario::draw_narrow), with copies of state that is held once.
    pub fn draw_narrow_shadowed(seed: u64) -> Scenario {
        let mut scenario = Scenario::draw_shadowed(seed);
        if replace(&mut scenario.training.shard_optimizer, false) {
            // Without sharding, ranks make different calls.
            scenario.trained_undisturbed();
        }
        scenario.narrowed(seed)
    }

    fn narrowed(mut self, seed: u64) -> Scenario {
        let scenario = &mut self;
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let n_turns = 1 << random.random_range(0..MOST_TURNS_AWAY.ilog2());
        scenario.plan.away = Some(random.random_range(0..=n_turns));
        // More deaths, since stages gain holders on the way.
        let deaths = &mut scenario.plan.deaths;
        let most = deaths.iter().map(|death| death.call).max().unwrap_or(1);
        let n_ranks = (scenario.width * scenario.program.placement().n_workers()) as u32;
        let death = |random: &mut ChaCha8Rng| Death {
            rank: Rank(random.random_range(0..n_ranks)),
            call: random.random_range(1..=most),
        };
        deaths.extend((0..random.random_range(0..=4)).map(|_| death(&mut random)));
        self
    }

    /// Like [`draw`](Scenario::draw), but ranks stall until they are evicted; some die too.
    pub fn draw_stalled(seed: u64) -> Scenario {
        let mut scenario = Scenario::draw(seed);
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let Plan { deaths, stalls, .. } = &mut scenario.plan;
        *stalls = take(deaths);
        *deaths = stalls.iter().skip(1).copied().filter(|_| random.random()).collect();
        stalls.retain(|stall| !deaths.contains(stall));
        scenario
    }

    /// Trains while ranks die, and compares the results with the undisturbed training.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn check(&self) -> Result<Ending, String> {
        let expected: Result<Vec<_>, _> = self.undisturbed.iter().map(Result::as_ref).collect();
        let expected = expected.map_err(|fault| format!("undisturbed: {fault}"))?;
        let Simulated { outcomes, n_meetings, .. } = self.run(&self.plan);
        let of_ranks = || (0..).map(Rank).zip(&outcomes);
        if let Some((rank, Err(fault))) = of_ranks().find(|(_, o)| o.is_err()) {
            let is_loss = |fault: &Fault| fault.class == Class::PeerLost && !fault.is_death();
            if !is_loss(fault) {
                return Err(format!("{rank} ended with {fault:?}"));
            }
            if !self.may_lose() {
                return Err(format!("no stage lost all its holders, but {rank} says: {fault}"));
            }
            return match of_ranks().find(|(_, o)| !o.as_ref().is_err_and(is_loss)) {
                Some((other, outcome)) => {
                    Err(format!("{rank} says: {fault}; but {other} ends with {outcome:?}"))
                }
                None => Ok(Ending::Lost),
            };
        }
        let survivors: Vec<_> = outcomes.into_iter().flatten().collect();
        self.compare(&survivors, &expected)?;
        Ok(Ending::Survived { n_recoveries: n_meetings - 1 })
    }

    /// Returns true if some state may die with all its holders and copies.
    fn may_lose(&self) -> bool {
        let dying = self.dying();
        let is_early = |death: &Death| death.call <= self.start[death.rank.index()];
        let are_made = !self.start.is_empty() && !self.deaths().any(is_early);
        if self.plan.away.is_some() && are_made {
            return dying.len() > 1; // which rank has whose copies depends on who was there
        }
        let n_ranks = (self.width * self.program.placement().n_workers()) as u32;
        let has_copy = |rank: Rank| are_made && !dying.contains(&Rank((rank.0 + 1) % n_ranks));
        let is_lost = |rank: &Rank| dying.contains(rank) && !has_copy(*rank);
        if self.training.shard_optimizer {
            return (0..n_ranks).map(Rank).any(|rank| is_lost(&rank));
        }
        let placement = self.program.placement();
        let stages = (0..placement.n_stages() as u16).map(StageId);
        stages.map(|stage| placement.holders(self.width, stage)).any(|of| of.iter().all(is_lost))
    }

    fn dying(&self) -> BTreeSet<Rank> {
        self.deaths().map(|death| death.rank).collect()
    }

    /// All deaths, including those of evicted ranks.
    fn deaths(&self) -> impl Iterator<Item = &Death> {
        self.plan.deaths.iter().chain(&self.plan.stalls)
    }

    /// Returns true if all holders of some stage are among the ranks that die.
    fn holders_die(&self) -> bool {
        let dying = self.dying();
        let placement = self.program.placement();
        let is_lost = |stage: StageId| {
            placement.holders(self.width, stage).iter().all(|rank| dying.contains(rank))
        };
        (0..placement.n_stages() as u16).map(StageId).any(is_lost)
    }

    fn compare(
        &self,
        survivors: &[Trained<Tensor>],
        expected: &[&Trained<Tensor>],
    ) -> Result<(), String> {
        let mut steps = BTreeSet::new();
        let mut names = BTreeSet::new();
        // Fewer ranks may hold the same stages.
        let undisturbed_weights =
            |name: &str| expected.iter().find_map(|trained| trained.weights.get(name));
        for (rank, (survivor, undisturbed)) in survivors.iter().zip(expected).enumerate() {
            for (name, weights) in &survivor.weights {
                let known = undisturbed_weights(name);
                if !known.is_some_and(|known| self.is_same(&known.data, &weights.data)) {
                    let off = known.map_or(f64::NAN, |known| {
                        let pairs = known.data.iter().zip(&weights.data);
                        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
                    });
                    return Err(format!(
                        "rank {rank} ended with other weights in {name}: {off:e} apart"
                    ));
                }
                names.insert(name.clone());
            }
            for report in &survivor.reports {
                let known = undisturbed.reports.iter().find(|known| known.step == report.step);
                if !known.is_some_and(|known| self.is_same(&[known.loss], &[report.loss])) {
                    return Err(format!("rank {rank}: another loss in step {}", report.step));
                }
                steps.insert(report.step);
            }
        }
        let all: BTreeSet<String> =
            expected.iter().flat_map(|trained| trained.weights.keys().cloned()).collect();
        // State that is held once goes with its holder, even if that one dies after the last step.
        if names != all && !self.holders_die() {
            let missing: Vec<_> = all.difference(&names).collect();
            return Err(format!("no rank ended with the weights {missing:?}"));
        }
        // A replacement knows only later steps, and all ranks may have been replaced.
        let first = if self.dying().len() == expected.len() {
            steps.first().copied().unwrap_or(0)
        } else {
            0
        };
        if steps.iter().copied().eq(first..self.training.steps) {
            Ok(())
        } else {
            Err(format!("of {} steps {steps:?} were reported", self.training.steps))
        }
    }

    /// Returns true if values are those of the undisturbed training: bit for bit, or, if ranks were
    /// missing for a while, up to the rounding of sums.
    fn is_same(&self, expected: &[f64], found: &[f64]) -> bool {
        let is_same = |(a, b): (&f64, &f64)| match self.plan.away {
            None => a.to_bits() == b.to_bits(),
            Some(_) => (a - b).abs() <= TOLERANCE * a.abs().max(1.0),
        };
        expected.len() == found.len() && expected.iter().zip(found).all(is_same)
    }

    fn run(&self, plan: &Plan) -> Simulated<Trained<Tensor>> {
        let n_ranks = (self.width * self.program.placement().n_workers()) as u32;
        let (data, model) = (TokensByPlace(&self.model), &self.model);
        let cuts = cut(model, model.context, self.program.placement().n_stages());
        let trainer = Trainer::new(&self.program, &data).training(self.training.clone());
        let units = self.program.units_per_micro() as usize;
        let mut trainer = trainer.width(self.width).micro_batch_size(units);
        if !plan.stalls.is_empty() {
            trainer = trainer.patience(Patience { first_step: PATIENCE, later: PATIENCE });
        }
        run(n_ranks, plan, |berth| {
            let unfit = |e: &dyn fmt::Display| Fault::new(Class::Usage, Rank(0), e.to_string());
            let cuts = cuts.as_ref().map_err(|e| unfit(e))?;
            let make = |id: StageId| {
                let cut = cuts[id.index()].clone();
                stage(Reference, model, model.context, DropoutRate::default(), cut)
                    .map_err(|e| unfit(&e))
            };
            trainer.on_rendezvous(berth, Reference, make)
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { schedule, shape, width, recompute, training, plan, .. } = self;
        let Shape { depth, n_micro_batches, n_pipes, .. } = shape;
        write!(
            f,
            "{} D={depth} N={n_micro_batches} 2f={n_pipes} W={width}, recompute {recompute:?}, {} steps, delays up to {}",
            schedule.name(),
            training.steps,
            plan.most_delay
        )?;
        for Death { rank, call } in &plan.deaths {
            write!(f, "; {rank} dies at call {call}")?;
        }
        for Death { rank, call } in &plan.stalls {
            write!(f, "; {rank} stalls at call {call}")?;
        }
        if training.shadow_every > 0 {
            let sharded = if training.shard_optimizer { ", sharded" } else { "" };
            write!(f, "; copies every {} steps{sharded}", training.shadow_every)?;
        }
        if let Some(turns) = plan.away {
            write!(f, ", and is away for {turns} turns")?;
        }
        Ok(())
    }
}

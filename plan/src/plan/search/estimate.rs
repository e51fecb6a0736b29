//! Extrapolation of a long step from shorter ones of its schedule.
//!
//! Once a pipeline is full, a further round of micro-batches takes as long as the one before, and
//! as much more memory. So only a few rounds of a step with very many micro-batches are proven and
//! simulated. If three steps, each a round longer than the one before, grow evenly in time and in
//! every worker's bytes, longer ones are assumed to continue like that. No schedule promises it,
//! and those given by a rule of preference deviate by some hundredths of the time; the tests bound
//! the deviation. So the best ones are simulated as a whole in the end. If a step's time does not
//! grow evenly, the only estimate is that a further round takes its busiest worker's time. If its
//! memory does not, it is simulated at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::slice;

use anyhow::{Result, ensure};
use chimera_core::analyze::{Network, bubble_ratio};
use chimera_core::model::{Cut, Memory};
use chimera_core::program::Program;
use chimera_core::request::Ordered;
use chimera_core::schedule::Shape;
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;
use chimera_device::Device;
use chimera_settings::schedules::Named;
use chimera_settings::{Config, Layout, ScheduleSettings};

use super::candidate::{Candidate, Cluster, Fit, no_flush};
use super::layout::shortest;
use super::recomputed::let_off;
use super::step_time::{StepTime, taken};
use crate::plan::need::{Need, memory_of, needs, needs_at};
use crate::plan::peaks::{Peaks, Weights};
use crate::plan::{Course, Plan, Priced, can_be_cut, timetable};

/// The most forward cells of a timetable that is simulated: proving longer ones takes too long for a choice.
pub(crate) const MOST_SIMULATED: usize = 1 << 15;

/// The most forwards of a step that is estimated: some schedules refuse more.
const MOST_FORWARDS: usize = 1 << 21;

/// Rounds of the longest step that others are extrapolated from. Steps of fewer rounds are simulated as a whole.
const MOST_ROUNDS: usize = 4;

/// The most ops that are simulated to find a layout, which every configuration has to do.
const MOST_OPS_OF_LAYOUT: usize = 1 << 16;

/// Configurations that differ only in micro-batches and recomputation: they share timetables and programs.
pub(crate) struct ConfigGroup<'c> {
    cluster: &'c Cluster,
    is_sharing_free: bool,
    foresees: bool,
    /// Whether stages may stop recomputing as far as memory allows.
    lets_off: bool,
    /// Number of stages, which is the same in all timetables; known once one was made.
    n_stages: Option<usize>,
    timetables: Vec<(usize, Timetable)>,
    plans: Vec<Rc<Plan>>,
}

impl Candidate {
    /// Returns the time of its step on other ranks and links; `None` if it would not fit into their memory.
    ///
    /// # Errors
    /// If there is no such configuration.
    pub fn step_on(&self, cluster: &Cluster) -> Result<Option<f64>> {
        let mut group = if self.is_simulated {
            ConfigGroup::simulated(cluster, false)
        } else {
            ConfigGroup::new(cluster, false)
        };
        Ok(match group.outcome(self.config.clone())? {
            Fit::Fits(candidate) => Some(candidate.step_s),
            Fit::TooLarge(..) => None,
        })
    }
}

impl<'c> ConfigGroup<'c> {
    /// Returns a group whose long steps are estimated. The optimizer is sharded if a configuration
    /// says so, or if memory requires it and `is_sharing_free`. It is left whole otherwise: the
    /// owners of tensors need extra time, which is not simulated.
    pub(crate) fn new(cluster: &'c Cluster, is_sharing_free: bool) -> ConfigGroup<'c> {
        let (timetables, plans) = (Vec::new(), Vec::new());
        ConfigGroup {
            cluster,
            is_sharing_free,
            foresees: true,
            lets_off: false,
            n_stages: None,
            timetables,
            plans,
        }
    }

    /// Returns a group whose steps are all simulated.
    pub(crate) fn simulated(cluster: &'c Cluster, is_sharing_free: bool) -> ConfigGroup<'c> {
        ConfigGroup { foresees: false, ..ConfigGroup::new(cluster, is_sharing_free) }
    }

    /// Returns a group whose stages recompute only as far as memory requires, unless a configuration names them.
    pub(crate) fn letting_off(self) -> ConfigGroup<'c> {
        ConfigGroup { lets_off: true, ..self }
    }

    /// Proves a configuration, or shorter ones of its kind, estimates its memory, and if that fits its time.
    pub(crate) fn outcome(&mut self, way: Config) -> Result<Fit> {
        let fit = self.as_it_is(way)?;
        let whole = match &fit {
            Fit::Fits(whole) if self.lets_off => whole.config.clone(),
            _ => return Ok(fit),
        };
        let n_stages = self.n_stages.unwrap_or(1);
        let n_tries = MOST_OPS_OF_LAYOUT / (whole.schedule.micro_batches * n_stages).max(1);
        let cuts = whole.cuts(&whole.model(), n_stages)?;
        let layers: Vec<usize> = cuts.iter().map(|cut| cut.blocks.len()).collect();
        let fewer = let_off(&whole, &layers, n_tries, &mut |config| self.as_it_is(config))?;
        Ok(fewer.unwrap_or(fit))
    }

    /// Returns the outcome of a configuration, with the stages that it says recompute.
    fn as_it_is(&mut self, way: Config) -> Result<Fit> {
        let way = self.with_layout(way)?;
        if self.foresees
            && let Some(foreseen) = self.foreseen(&way)?
        {
            return Ok(foreseen);
        }
        let (n, depth) = (way.schedule.micro_batches, way.schedule.depth);
        ensure!(
            n * depth <= MOST_SIMULATED,
            "schedule {} has no even steps from which {n} micro-batches of depth {depth} could be foreseen: choose at \
             most {}",
            way.schedule.name,
            MOST_SIMULATED / depth
        );
        let plan = self.plan(&way, n)?;
        let peaks = Peaks::of_plan(&way, &plan);
        let (way, need, beyond) = self.need(way, &plan, &peaks);
        if beyond > 0.0 {
            return Ok(Fit::TooLarge(way, need));
        }
        let taken = taken(&plan, &way, self.cluster, false)?;
        Ok(Fit::Fits(candidate(way, need, &taken, true)))
    }

    /// Extrapolates a configuration from shorter steps, if it is long and they suffice.
    fn foreseen(&mut self, way: &Config) -> Result<Option<Fit>> {
        let n = way.schedule.micro_batches;
        let Some(round) = round(way).filter(|round| n / round >= MOST_ROUNDS) else {
            return Ok(None);
        };
        let (mut plans, mut peaks) = (Vec::<Rc<Plan>>::new(), Vec::<Peaks>::new());
        let mut last = None;
        for rounds in 1..=MOST_ROUNDS {
            // Some schedules do not have the shortest.
            let Ok(plan) = self.plan(way, n % round + rounds * round) else { continue };
            if plan.cuts.len() * n > MOST_FORWARDS {
                return Ok(None);
            }
            peaks.push(Peaks::of_plan(way, &plan));
            plans.push(plan);
            let ([.., a, b, c], [.., first, second, third]) = (&peaks[..], &plans[..]) else {
                continue;
            };
            if !are_even([&a.kept, &b.kept, &c.kept]) || !are_even([&a.used, &b.used, &c.used]) {
                continue;
            }
            let more = (n - third.course.config.schedule.micro_batches) as f64 / round as f64;
            let (way, need, beyond) = self.need(way.clone(), third, &further(b, c, more));
            if beyond > 0.0 {
                return Ok(Some(Fit::TooLarge(way, need)));
            }
            let taken = |plan| taken(plan, &way, self.cluster, false);
            let [a, b, c] = [taken(first)?, taken(second)?, taken(third)?];
            let is_even = are_even([&[a.makespan], &[b.makespan], &[c.makespan]]);
            let busy = further_by(&b.busy, &c.busy, more);
            let by_round = busy.iter().zip(&c.busy).map(|(far, near)| far - near);
            let makespan = if is_even {
                c.makespan + more * (c.makespan - b.makespan)
            } else {
                c.makespan + by_round.fold(0.0, f64::max)
            };
            let candidate = candidate(way, need, &StepTime { makespan, busy, ..c }, false);
            if is_even {
                return Ok(Some(Fit::Fits(candidate)));
            }
            last = Some(candidate);
        }
        // A deviating estimate is not shown before it is simulated.
        Ok(last.filter(|_| n * way.schedule.depth <= MOST_SIMULATED).map(Fit::Fits))
    }

    /// Replaces the layout `auto` by the best one for the available memory. A long step takes the
    /// layout of a shorter one.
    fn with_layout(&mut self, mut way: Config) -> Result<Config> {
        if way.schedule.layout != Layout::Auto {
            return Ok(way);
        }
        let n = way.schedule.micro_batches;
        let few = round(&way).map_or(n, |round| n.min(n % round + 2 * round));
        let mut config = way.clone();
        config.schedule.micro_batches = few;
        let timetable = self.timetable(&config).or_else(|_| {
            config.schedule.micro_batches = n;
            self.timetable(&config)
        })?;
        let priced = Priced::new(&way.model(), self.cluster.speed.times().cloned());
        let devices = Device::named(&way.devices.device, way.schedule.depth)?;
        let ordered = Ordered { timetable, passes: way.passes(), search: None };
        let known = RefCell::new(BTreeMap::new());
        let memory = |cut: &Cut| -> Memory {
            let key = (cut.first, cut.blocks.len(), cut.last);
            let count = || memory_of(&config, priced.model(), slice::from_ref(cut))[0];
            *known.borrow_mut().entry(key).or_insert_with(count)
        };
        let excess = |cuts: &[Cut], program: &Program| -> Result<f64> {
            let weights = Weights::of(priced.model(), cuts);
            let memory: Vec<Memory> = cuts.iter().map(memory).collect();
            let beyond = |config: &Config| {
                let needs = needs(config, &weights, &memory, program);
                self.cluster.memory.tightest(config, on_devices(&devices, &needs)).1
            };
            let mut least = beyond(&config);
            if least > 0.0 && self.is_sharing_free {
                let mut shared = config.clone();
                shared.replicas.shard_optimizer = true;
                least = beyond(&shared);
            }
            Ok(least.max(0.0))
        };
        way.schedule.layout =
            Layout::Is(shortest(&config, &priced, ordered, MOST_OPS_OF_LAYOUT, &excess)?);
        Ok(way)
    }

    /// Returns the plan of a configuration with `n` micro-batches.
    pub(super) fn plan(&mut self, way: &Config, n: usize) -> Result<Rc<Plan>> {
        let is_its = |p: &&Rc<Plan>| {
            let config = &p.course.config;
            (config.schedule.micro_batches, config.passes.recompute) == (n, way.passes.recompute)
                && config.schedule.layout == way.schedule.layout
                && config.passes.recompute_stages == way.passes.recompute_stages
        };
        if let Some(plan) = self.plans.iter().find(is_its) {
            let program = &plan.course.program;
            can_be_cut(way, program.units_per_micro(), program.rules().n_slices())?;
            return Ok(Rc::clone(plan));
        }
        let mut config = way.clone();
        config.schedule.micro_batches = n;
        let timetable = self.timetable(&config)?;
        let plan = Rc::new(Plan::elsewhere(config, timetable, self.cluster.speed.times())?);
        let ScheduleSettings { depth, width, name: ref schedule, .. } = way.schedule;
        ensure!(plan.course.program.window().update() == Update::Flush, no_flush(schedule));
        let network = Network { width, ..self.cluster.network };
        ensure!(
            network.fits(depth),
            "groups of {depth} workers would be placed differently on nodes of {} ranks: choose a \
             divisor or a multiple of {depth}",
            network.ranks_per_node
        );
        if is_short(way, n) {
            self.plans.push(Rc::clone(&plan));
        }
        Ok(plan)
    }

    /// Returns the timetable of a configuration before it recomputes. Only the last of the long ones is kept.
    fn timetable(&mut self, way: &Config) -> Result<Timetable> {
        let n = way.schedule.micro_batches;
        if let Some((_, timetable)) = self.timetables.iter().find(|(known, _)| *known == n) {
            return Ok(timetable.clone());
        }
        if let Some(n_stages) = self.n_stages {
            // Refused at once, since the longest timetables take seconds.
            way.cuts(&way.model(), n_stages)?;
        }
        let priced = Priced::new(&way.model(), self.cluster.speed.times().cloned());
        let timetable = timetable(way, &priced)?;
        self.n_stages = Some(timetable.placement.n_stages());
        self.timetables.retain(|(n, _)| is_short(way, *n));
        self.timetables.push((n, timetable.clone()));
        Ok(timetable)
    }

    /// Returns the memory of the rank nearest to its limit if workers have these peaks, and how far
    /// beyond the limit it is. The optimizer is sharded if it has to be.
    fn need(&self, mut way: Config, plan: &Plan, peaks: &Peaks) -> (Config, Need, f64) {
        let Plan { course: Course { program, .. }, model, cuts, memory, .. } = plan;
        let weights = Weights::of(model, cuts);
        let tightest = |way: &Config| {
            let needs = needs_at(way, &weights, memory, program, peaks);
            self.cluster.memory.tightest(way, on_devices(&plan.devices, &needs))
        };
        let (mut need, mut beyond) = tightest(&way);
        if beyond > 0.0 && self.is_sharing_free && !way.replicas.shard_optimizer {
            way.replicas.shard_optimizer = true;
            (need, beyond) = tightest(&way);
        }
        (way, need, beyond)
    }
}

/// Returns the micro-batches of a round. Every schedule that has some steps has them with any whole
/// number of rounds more, and a round holds about as many micro-batches as are in flight at once.
/// Returns `None` if steps cannot be longer or shorter.
fn round(way: &Config) -> Option<usize> {
    let ScheduleSettings { depth, name: ref schedule, .. } = way.schedule;
    let Shape { n_in_turn, in_flight, .. } = way.shape();
    let memory_cap = way.passes.memory_cap;
    let is_free = !matches!(schedule, Named::File(_)) && memory_cap.is_none();
    let flown = (in_flight.unwrap_or(1) as usize).div_ceil(depth).max(1);
    is_free.then(|| 2 * depth * n_in_turn.max(1) as usize * flown)
}

/// Returns true if `n` micro-batches are few enough to extrapolate others of the group from them.
fn is_short(way: &Config, n: usize) -> bool {
    round(way).is_some_and(|round| n / round <= MOST_ROUNDS)
}

/// Returns true if they grow by the same from each to the next, up to rounding.
fn are_even([a, b, c]: [&[f64]; 3]) -> bool {
    let is_even = |((a, b), c): ((&f64, &f64), &f64)| ((c - b) - (b - a)).abs() <= 1e-9 * c.abs();
    a.iter().zip(b).zip(c).all(is_even)
}

/// Extrapolates by `more` further steps, each like that from `a` to `b`.
fn further(a: &Peaks, b: &Peaks, more: f64) -> Peaks {
    Peaks { kept: further_by(&a.kept, &b.kept, more), used: further_by(&a.used, &b.used, more) }
}

fn further_by(a: &[f64], b: &[f64], more: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| b + more * (b - a)).collect()
}

fn candidate(config: Config, need: Need, taken: &StepTime, is_simulated: bool) -> Candidate {
    let StepTime { makespan, agree, busy, .. } = taken;
    let bubble_ratio = bubble_ratio(busy, *makespan);
    Candidate { config, need, step_s: makespan + agree, bubble_ratio, is_simulated }
}

/// Returns the memory that workers need on their devices. Checkpoints are written from the host's memory, not a GPU's.
fn on_devices(devices: &[Device], needs: &[Need]) -> impl Iterator<Item = Need> {
    needs
        .iter()
        .zip(devices)
        .map(|(need, device)| if device.is_host() { *need } else { Need { copy: 0.0, ..*need } })
}

#[cfg(test)]
mod tests;

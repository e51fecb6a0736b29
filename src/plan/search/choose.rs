//! Which way to train takes least time on the ranks there are, of all that fit into their memory.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use chimera_core::lower::{self, Recompute};
use chimera_core::search::AUTO;
use rayon::prelude::*;

use super::candidate::{Candidate, Cluster, Fit, no_flush};
use super::estimate::{ConfigGroup, MOST_SIMULATED};
use super::no_way::why_none;
use super::ways::{is_free, is_synchronous, ways};
use crate::device::start_threads;
use crate::plan::need::Need;
use crate::settings::schedules::Named;
use crate::settings::{Config, ScheduleSettings, Survive};

/// A pipeline with so many micro-batches for each worker idles for some hundredths of a step at most: more are only tried
/// where memory asks for smaller ones.
const MICRO_BATCHES_PER_WORKER: usize = 32;

/// By how much of its time a way may be faster than it was foreseen to be.
const DOUBT: f64 = 0.05;

/// The part of a step by which it must be shorter for an option to be said that is not about the pipeline's shape.
const WORTH_SAYING: f64 = 0.001;

/// How long a choice may take, and who follows it.
pub struct Effort<'e> {
    /// When it ends with the best it has found; one way that is being tried is tried to its end.
    pub time_limit: Duration,
    /// Told how many groups of ways have been tried, of how many.
    pub observe: &'e (dyn Fn(usize, usize) + Sync),
}

/// How far a choice is.
pub(crate) struct Watched<'e> {
    deadline: Option<Instant>,
    observe: &'e (dyn Fn(usize, usize) + Sync),
    n_tried: AtomicUsize,
    n_left_out: AtomicUsize,
}

impl<'e> Watched<'e> {
    pub(crate) fn begin(effort: &Effort<'e>) -> Watched<'e> {
        let (n_tried, n_left_out) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let deadline = Instant::now().checked_add(effort.time_limit);
        Watched { deadline, observe: effort.observe, n_tried, n_left_out }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// One more group of so many was tried.
    pub(crate) fn tell(&self, n_groups: usize) {
        (self.observe)(self.n_tried.fetch_add(1, Ordering::Relaxed) + 1, n_groups);
    }

    /// One more way was not tried to its end.
    pub(crate) fn leave_out(&self) {
        self.n_left_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn n_left_out(&self) -> usize {
        self.n_left_out.load(Ordering::Relaxed)
    }
}

/// What a choice came to.
pub struct Choice {
    /// The ways that fit, the fastest first. Behind those that were asked for, long ones are as they are foreseen.
    pub candidates: Vec<Candidate>,
    /// How many more were tried, which need more memory than there is.
    pub n_too_large: usize,
    /// The one of these that needs least, and what that is.
    pub smallest: Option<(Config, Need)>,
    /// How many were left out, or left as they are foreseen, when the time was over.
    pub n_left_out: usize,
}

/// Tries every way to train steps of `batch` samples on `cluster`: widths and depths, schedules with their
/// parameters, sizes of micro-batches, recomputation, the optimizer whole or shared out. What was said in `said` stays as it is. The `top`
/// fastest are simulated as a whole, but for those that are too long for it. When the time of `effort` is over, the
/// best of what was tried counts.
///
/// # Errors
/// If there is no such way, whatever the memory, or none was tried in time.
pub fn choose(
    said: &Config,
    batch: usize,
    cluster: &Cluster,
    top: usize,
    effort: &Effort<'_>,
) -> Result<Choice> {
    let watched = Watched::begin(effort);
    let is_survivable = match said.devices.survive {
        Survive::Off => true,
        Survive::Respawn => said.devices.shadow_every > 0,
        Survive::Narrow => false,
    };
    let is_sharing_free = is_free(said, "shard-optimizer")
        && is_survivable
        && !said.replicas.mpi_allreduce
        && !said.training.optimizer.preconditions();
    let group = || ConfigGroup::new(cluster, is_sharing_free);
    let mut choice = first_choice(said, batch, cluster, &watched, group)?;
    let simulated = || ConfigGroup::simulated(cluster, is_sharing_free);
    let refusal = choice.settle(top, &watched, simulated);
    choice.let_off(top, &watched, || simulated().letting_off());
    if is_free(said, "sync") {
        choice.start_sums(top, &watched, simulated);
    }
    choice.n_left_out = watched.n_left_out();
    if let Some(refusal) = refusal.filter(|_| choice.is_empty()) {
        return Err(refusal).context("no configuration is valid; the first was rejected");
    }
    ensure!(
        !choice.is_empty(),
        "no way to train was tried within {} s: choose a larger --search-time, or say more of the way",
        effort.time_limit.as_secs_f64()
    );
    Ok(choice)
}

/// The choice among ways of which each `group` is looked at by itself.
fn first_choice<'c>(
    said: &Config,
    batch: usize,
    cluster: &'c Cluster,
    watched: &Watched<'_>,
    group: impl Fn() -> ConfigGroup<'c> + Sync,
) -> Result<Choice> {
    said.model().check_sequence(said.model.sequence)?;
    check_schedule(said)?;
    let ways = ways(said, batch, cluster.n_ranks);
    ensure!(
        !ways.is_empty(),
        "{} rank(s) and a batch of {batch} leave no way to train a model of {} layers: {}",
        cluster.n_ranks,
        said.model.layers,
        why_none(said, cluster.n_ranks, batch, said.model.layers, None)
    );
    start_threads()?;
    let n_groups = ways.len();
    let try_all = |ways: Vec<Config>| {
        let outcomes = tried(ways, group(), cluster, watched);
        watched.tell(n_groups);
        outcomes
    };
    Choice::of(ways.into_par_iter().flat_map_iter(try_all).collect())
}

/// Refuses schedules that are none to choose from.
pub(crate) fn check_schedule(said: &Config) -> Result<()> {
    ensure!(
        said.schedule.name != Named::Auto || is_free(said, "schedule"),
        "schedule {AUTO} would search for every candidate: leave it out, or name a schedule"
    );
    if let Named::Schedule(schedule) = said.schedule.name {
        ensure!(
            is_free(said, "schedule") || is_synchronous(&schedule),
            no_flush(&said.schedule.name)
        );
    }
    Ok(())
}

impl Choice {
    /// The choice among ways of which this became.
    ///
    /// # Errors
    /// The first refusal, if no way is valid.
    pub(crate) fn of(outcomes: Vec<Result<Fit>>) -> Result<Choice> {
        let mut choice =
            Choice { candidates: Vec::new(), n_too_large: 0, smallest: None, n_left_out: 0 };
        let mut refusal: Option<Error> = None;
        for outcome in outcomes {
            match outcome {
                Ok(fit) => choice.add(fit),
                // Many schedules do not have all shapes: that is told only where nothing else is left.
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        if let Some(refusal) = refusal.filter(|_| choice.is_empty()) {
            return Err(refusal).context("no configuration is valid; the first was rejected");
        }
        choice.sort();
        Ok(choice)
    }

    /// Adds what became of a way.
    fn add(&mut self, fit: Fit) {
        match fit {
            Fit::Fits(candidate) => self.candidates.push(candidate),
            Fit::TooLarge(config, need) => self.too_large(config, need),
        }
    }

    /// The candidates without those that gain nothing over a simpler one: they take as long, up to rounding, and at
    /// least as much memory.
    pub fn distinct(&self) -> impl Iterator<Item = &Candidate> {
        let mut last: Option<(f32, f64)> = None;
        self.candidates.iter().filter(move |candidate| {
            let (step, bytes) = (candidate.step_s as f32, candidate.need.total());
            let is_new = last.is_none_or(|(of, least)| of != step || bytes < least);
            if is_new {
                last = Some((step, bytes));
            }
            is_new
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.n_too_large == 0
    }

    pub(crate) fn sort(&mut self) {
        self.candidates.sort_by(|a, b| {
            // Of ways that take as long up to rounding, a short pipeline and a whole optimizer are the simplest, and few
            // large products are faster than many small ones.
            let step = |candidate: &Candidate| candidate.step_s as f32;
            let plain = |c: &Candidate| {
                let ScheduleSettings { depth, micro_batch_size, .. } = c.config.schedule;
                let shard_optimizer = c.config.replicas.shard_optimizer;
                (depth, shard_optimizer, Reverse(micro_batch_size))
            };
            let bytes = |candidate: &Candidate| candidate.need.total();
            let fastest = step(a).total_cmp(&step(b));
            fastest.then(plain(a).cmp(&plain(b))).then(bytes(a).total_cmp(&bytes(b)))
        });
    }

    /// Simulates what is foreseen of the `top` fastest, until nothing foreseen could be among them or the time is over. Returns
    /// why the first of those that turned out to be no way at all is none.
    fn settle<'c>(
        &mut self,
        top: usize,
        watched: &Watched<'_>,
        group: impl Fn() -> ConfigGroup<'c> + Sync,
    ) -> Option<Error> {
        let mut refusal = None;
        while let Some(slowest) = self.candidates.iter().take(top).next_back() {
            let limit = slowest.step_s * (1.0 + DOUBT);
            let is_open = |c: &mut Candidate| {
                let n_cells = c.config.schedule.micro_batches * c.config.schedule.depth;
                !c.is_simulated && n_cells <= MOST_SIMULATED && c.step_s <= limit
            };
            let open: Vec<Candidate> = self.candidates.extract_if(.., is_open).collect();
            if open.is_empty() {
                break;
            }
            let simulate = |open: Candidate| {
                if watched.is_over() {
                    watched.leave_out();
                    Ok(Fit::Fits(open))
                } else {
                    group().outcome(open.config)
                }
            };
            let simulated: Vec<Result<Fit>> = open.into_par_iter().map(simulate).collect();
            for outcome in simulated {
                match outcome {
                    Ok(fit) => self.add(fit),
                    Err(error) => refusal = refusal.or(Some(error)),
                }
            }
            self.sort();
            if watched.is_over() {
                break;
            }
        }
        refusal
    }

    /// Lets stages of the `top` fastest that recompute keep their activations as far as memory allows.
    fn let_off<'c>(
        &mut self,
        top: usize,
        watched: &Watched<'_>,
        group: impl Fn() -> ConfigGroup<'c> + Sync,
    ) {
        self.improve(top, watched, |candidate| match candidate.config.passes.recompute {
            Recompute::None => None,
            _ => fitting(group(), candidate.config.clone()),
        });
    }

    /// Starts sums of the `top` fastest where steps are shorter for it. A training decides by what compute takes, since it knows of
    /// no network.
    fn start_sums<'c>(
        &mut self,
        top: usize,
        watched: &Watched<'_>,
        group: impl Fn() -> ConfigGroup<'c> + Sync,
    ) {
        self.improve(top, watched, |candidate| {
            let Candidate { config, step_s, .. } = candidate;
            let others =
                lower::Sync::ALL.into_iter().filter(|(_, sync)| *sync != config.replicas.sync);
            let others = others.filter_map(|(_, sync)| {
                let mut other = config.clone();
                other.replicas.sync = sync;
                fitting(group(), other)
            });
            let gains = others.filter(|other| other.step_s < step_s * (1.0 - WORTH_SAYING));
            gains.min_by(|a, b| a.step_s.total_cmp(&b.step_s))
        });
    }

    /// Puts what is `better` in the place of the `top` fastest that were simulated.
    fn improve(
        &mut self,
        top: usize,
        watched: &Watched<'_>,
        better: impl Fn(&Candidate) -> Option<Candidate> + Sync,
    ) {
        let shown = self.candidates.iter_mut().take(top);
        let shown: Vec<_> = shown.filter(|candidate| candidate.is_simulated).collect();
        shown.into_par_iter().filter(|_| !watched.is_over()).for_each(|candidate| {
            if let Some(better) = better(candidate) {
                *candidate = better;
            }
        });
        self.sort();
    }

    fn too_large(&mut self, config: Config, need: Need) {
        self.n_too_large += 1;
        if self.smallest.as_ref().is_none_or(|(_, least)| need.total() < least.total()) {
            self.smallest = Some((config, need));
        }
    }
}

/// A way, if it fits.
fn fitting(mut group: ConfigGroup, way: Config) -> Option<Candidate> {
    match group.outcome(way) {
        Ok(Fit::Fits(candidate)) => Some(candidate),
        _ => None,
    }
}

/// What became of ways as [`ways`] puts them together, but for those that can only be worse: who has the memory does not
/// recompute.
fn tried(
    ways: Vec<Config>,
    mut group: ConfigGroup,
    cluster: &Cluster,
    watched: &Watched<'_>,
) -> Vec<Result<Fit>> {
    let mut outcomes = Vec::new();
    let (mut fits, mut is_hopeless, mut left) = (None, false, ways.len());
    for way in ways {
        left -= 1;
        let (n, most) = (way.schedule.micro_batches, MICRO_BATCHES_PER_WORKER * way.schedule.depth);
        // The last is the smallest.
        if fits.is_some_and(|fits| fits == n || fits >= most) || is_hopeless && left > 0 {
            continue;
        }
        if watched.is_over() {
            watched.leave_out();
            continue;
        }
        let outcome = group.outcome(way);
        match &outcome {
            Ok(Fit::Fits(_)) => fits = Some(n),
            Ok(Fit::TooLarge(_, need)) => is_hopeless |= need.state > cluster.memory.most(),
            Err(_) => {}
        }
        outcomes.push(outcome);
    }
    outcomes
}

#[cfg(test)]
mod tests;

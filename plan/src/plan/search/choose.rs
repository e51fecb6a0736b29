//! The choice of the fastest configuration for some ranks, among all that fit into their memory.

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use chimera_core::lower::{self, Recompute};
use chimera_device::start_threads;
use chimera_settings::schedules::Named;
use chimera_settings::{Config, ScheduleSettings, Survive};
use rayon::prelude::*;

use super::candidate::{Candidate, Cluster, Fit, no_flush};
use super::effort::{Effort, Watched};
use super::estimate::{ConfigGroup, MOST_SIMULATED};
use super::no_way::why_none;
use super::searched::{is_searched, searched_orders};
use super::ways::{is_free, is_synchronous, ways};
use crate::plan::need::Need;

/// With this many micro-batches for each worker a pipeline idles for a few hundredths of a step at
/// most. More are only tried if memory requires smaller ones.
const MICRO_BATCHES_PER_WORKER: usize = 32;

/// The share of its time by which a configuration may be faster than estimated.
const DOUBT: f64 = 0.05;

/// The least share of a step that an option besides the pipeline's shape must save to be set.
const WORTH_SAYING: f64 = 0.001;

/// The result of a choice.
pub struct Choice {
    /// The configurations that fit, the fastest first. Long ones beyond the requested number are
    /// only estimated.
    pub candidates: Vec<Candidate>,
    /// Number of further configurations that were tried and need more memory than there is.
    pub n_too_large: usize,
    /// The configuration that needs least among those, and its memory.
    pub smallest: Option<(Config, Need)>,
    /// Number of configurations that were left out, or left as estimates, when the time was over.
    pub n_left_out: usize,
}

/// Tries every configuration for steps of `batch` samples on `cluster`: widths and depths, schedules
/// with their parameters, sizes of micro-batches, recomputation, the optimizer whole or sharded.
/// Options set in `said` are not changed. The `top` fastest are simulated as a whole, unless they are
/// too long for it. When the time of `effort` is over, the best configuration so far counts.
///
/// # Errors
/// If there is no such configuration, whatever the memory, or none was tried in time.
pub fn choose(
    said: &Config,
    batch: usize,
    cluster: &Cluster,
    top: usize,
    effort: &Effort<'_>,
) -> Result<Choice> {
    let effort = effort.of(said);
    let watched = Watched::begin(&effort);
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
    if is_searched(said) {
        let fitting = |way| fitting(simulated(), way);
        choice.search_orders(said, top, effort.time_limit, fitting);
    }
    choice.n_left_out = watched.n_left_out();
    if let Some(refusal) = refusal.filter(|_| choice.is_empty()) {
        return Err(refusal).context("no configuration is valid; the first was rejected");
    }
    ensure!(
        !choice.is_empty(),
        "no configuration was tried within {} s: choose a larger --search-time, or give more settings",
        effort.time_limit.as_secs_f64()
    );
    Ok(choice)
}

/// Returns the choice among all configurations, where each `group` is tried by itself.
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

/// Refuses schedules that cannot be chosen.
pub(crate) fn check_schedule(said: &Config) -> Result<()> {
    if let Named::Schedule(schedule) = said.schedule.name {
        ensure!(
            is_free(said, "schedule") || is_synchronous(&schedule),
            no_flush(&said.schedule.name)
        );
    }
    Ok(())
}

impl Choice {
    /// Returns the choice from the outcomes of configurations.
    ///
    /// # Errors
    /// The first refusal, if no configuration is valid.
    pub(crate) fn of(outcomes: Vec<Result<Fit>>) -> Result<Choice> {
        let mut choice =
            Choice { candidates: Vec::new(), n_too_large: 0, smallest: None, n_left_out: 0 };
        let mut refusal: Option<Error> = None;
        for outcome in outcomes {
            match outcome {
                Ok(fit) => choice.add(fit),
                // Many schedules do not have all shapes, so a refusal only matters if no configuration is valid.
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        if let Some(refusal) = refusal.filter(|_| choice.is_empty()) {
            return Err(refusal).context("no configuration is valid; the first was rejected");
        }
        choice.sort();
        Ok(choice)
    }

    /// Adds the outcome of a configuration.
    fn add(&mut self, fit: Fit) {
        match fit {
            Fit::Fits(candidate) => self.candidates.push(candidate),
            Fit::TooLarge(config, need) => self.too_large(config, need),
        }
    }

    /// Returns the candidates without those that gain nothing over a simpler one: they take as
    /// long, up to rounding, and at least as much memory.
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
            // Among configurations that take as long up to rounding, a short pipeline and an unsharded
            // optimizer are the simplest, and few large products are faster than many small ones.
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

    /// Simulates the estimated ones among the `top` fastest, until no estimate could be among them
    /// or the time is over. Returns the error of the first that turned out to be invalid.
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

    /// Lets recomputing stages of the `top` fastest keep their activations as far as memory allows.
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

    /// Moves the start of gradient reductions of the `top` fastest where that shortens steps. A
    /// training decides by the time of compute, since it does not know the network.
    fn start_sums<'c>(
        &mut self,
        top: usize,
        watched: &Watched<'_>,
        group: impl Fn() -> ConfigGroup<'c> + Sync,
    ) {
        self.improve(top, watched, |candidate| {
            let Candidate { config, step_s, .. } = candidate;
            // A sum within the backward delays everything upstream.
            let tried = |sync| sync != config.replicas.sync && sync != lower::Sync::InBackward;
            let others = lower::Sync::ALL.into_iter().filter(|(_, sync)| tried(*sync));
            let others = others.filter_map(|(_, sync)| {
                let mut other = config.clone();
                other.replicas.sync = sync;
                fitting(group(), other)
            });
            let gains = others.filter(|other| other.step_s < step_s * (1.0 - WORTH_SAYING));
            gains.min_by(|a, b| a.step_s.total_cmp(&b.step_s))
        });
    }

    /// Replaces each simulated one of the `top` fastest by the result of `better`.
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

    /// Keeps the `top` fastest shapes only, with the orders that `auto` finds for them.
    pub(crate) fn search_orders(
        &mut self,
        said: &Config,
        top: usize,
        time_limit: Duration,
        fitting: impl Fn(Config) -> Option<Candidate> + Sync,
    ) {
        self.candidates = searched_orders(&self.candidates, said, top, time_limit, fitting);
        self.sort();
    }

    fn too_large(&mut self, config: Config, need: Need) {
        self.n_too_large += 1;
        if self.smallest.as_ref().is_none_or(|(_, least)| need.total() < least.total()) {
            self.smallest = Some((config, need));
        }
    }
}

/// Returns the candidate of a configuration, if it fits.
fn fitting(mut group: ConfigGroup, way: Config) -> Option<Candidate> {
    match group.outcome(way) {
        Ok(Fit::Fits(candidate)) => Some(candidate),
        _ => None,
    }
}

/// Returns the outcomes of a group of [`ways`]. Leaves out those that can only be worse: with
/// enough memory, nothing is recomputed.
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

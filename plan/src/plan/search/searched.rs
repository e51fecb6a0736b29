//! The orders that `auto` finds for the fastest shapes of a choice.

use std::time::Duration;

use chimera_settings::Config;
use chimera_settings::schedules::Named;
use rayon::prelude::*;

use super::candidate::Candidate;
use super::ways::is_free;

/// Limits on the activations of a worker, as shares of a whole model's: each is searched within
/// when the order of the one before needs too much memory.
const SHARES: [f64; 2] = [1.0, 0.5];

/// Returns true if `auto` was asked for by name.
pub(crate) fn is_searched(said: &Config) -> bool {
    said.schedule.name == Named::Auto && !is_free(said, "schedule")
}

/// Returns the `top` first shapes of `candidates`, each with the order that `auto` finds for it
/// within `time_limit` over all of them. The orders of schedules have shown which shapes are fast:
/// a search for every shape would take too long. One worker has nothing to order.
pub(super) fn searched_orders(
    candidates: &[Candidate],
    said: &Config,
    top: usize,
    time_limit: Duration,
    fitting: impl Fn(Config) -> Option<Candidate> + Sync,
) -> Vec<Candidate> {
    let mut shapes: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        let config = searched(said, &candidate.config);
        if shapes.len() < top && shapes.iter().all(|shape| shape.config != config) {
            shapes.push(Candidate { config, ..candidate.clone() });
        }
    }
    let n_searches = shapes.len() * (1 + SHARES.len());
    let seconds = time_limit.as_secs_f64() / n_searches.max(1) as f64;
    let order = |shape: Candidate| {
        if shape.config.schedule.depth == 1 {
            return Some(shape);
        }
        let mut config = shape.config;
        config.schedule.search_time = config.schedule.search_time.min(seconds);
        let capped = caps(&config).map(|cap| {
            let mut capped = config.clone();
            capped.passes.memory_cap = Some(cap);
            capped
        });
        [config.clone()].into_iter().chain(capped).find_map(&fitting)
    };
    shapes.into_par_iter().filter_map(order).collect()
}

/// Returns the limits on activations to search within, below the one that is set.
fn caps(config: &Config) -> impl Iterator<Item = f64> {
    let depth = config.schedule.depth as f64;
    let least = config.passes.memory_cap.unwrap_or(f64::INFINITY);
    SHARES.map(|share| share * depth).into_iter().filter(move |cap| *cap < least)
}

/// Returns the settings to search for an order of a candidate's shape.
fn searched(said: &Config, way: &Config) -> Config {
    let mut config = said.clone();
    let (shape, found) = (&mut config.schedule, &way.schedule);
    shape.width = found.width;
    shape.depth = found.depth;
    shape.micro_batches = found.micro_batches;
    shape.micro_batch_size = found.micro_batch_size;
    config.passes.recompute = way.passes.recompute;
    config.replicas.shard_optimizer = way.replicas.shard_optimizer;
    config.replicas.sync = way.replicas.sync;
    config
}

//! Advice: one setting to change, with those that follow from it, so that the steps of a configuration take less time.

use anyhow::Result;
use chimera_core::lower::Recompute;
use chimera_core::schedule::SCHEDULES;
use chimera_device::start_threads;
use chimera_settings::schedules::{ALONE, Named};
use chimera_settings::{Config, Layout, ScheduleSettings};
use rayon::prelude::*;
use serde::Serialize;

use super::candidate::{Candidate, Cluster, Fit, Speed};
use super::estimate::{ConfigGroup, MOST_SIMULATED};
use super::ways::is_synchronous;

/// The least share of a step that a change must save to be worth a suggestion: predictions err by about as much.
const WORTH: f64 = 0.05;

/// Settings that may each be changed on its own, with those that follow from it.
const KEYS: [&str; 9] = [
    "width",
    "depth",
    "schedule",
    "scaling",
    "layout",
    "micro-batches",
    "micro-batch-size",
    "split-backward",
    "recompute",
];

/// A change, and its gain.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The options to change.
    pub options: String,
    /// The share of a step's time that it saves, by simulation of both.
    pub less: f64,
}

impl Advice {
    /// Returns the best change to a configuration on the ranks of a cluster, if one is worth it.
    ///
    /// # Errors
    /// If the configuration itself cannot be simulated.
    pub fn on(config: &Config, cluster: &Cluster) -> Result<Option<Advice>> {
        let present = match simulated(config, cluster)? {
            Some(present) => present,
            None => return Ok(None),
        };
        start_threads()?;
        let own = match &cluster.speed {
            Speed::Own(own) => Some(own),
            Speed::Flops(_) | Speed::Measured(_) => None,
        };
        // What the simulation of this run leaves out is taken to be left out of the others too.
        let rest = own.map_or(0.0, |own| (own.step_s - present.step_s).max(0.0));
        let has_times = |changed: &Config| own.is_none() || has_same_ops(config, changed);
        let tried = changes(config).into_par_iter().filter(has_times);
        let fits = tried.filter_map(|changed| simulated(&changed, cluster).ok().flatten());
        let best = fits.min_by(|a, b| a.step_s.total_cmp(&b.step_s));
        Ok(best.and_then(|best| {
            let less = (present.step_s - best.step_s) / (present.step_s + rest);
            let options = options(config, &best.config);
            (less >= WORTH && !options.is_empty()).then_some(Advice { options, less })
        }))
    }

    /// Returns the change as a sentence.
    pub fn sentence(&self) -> String {
        format!("{} would take {:.0} % less time a step", self.options, 100.0 * self.less)
    }
}

/// Returns true if the ops of two configurations have the same sizes, and as many workers share the
/// machine in the same way.
fn has_same_ops(a: &Config, b: &Config) -> bool {
    let sizes = |config: &Config| {
        let ScheduleSettings { width, depth, micro_batch_size, .. } = config.schedule;
        (width, depth, micro_batch_size)
    };
    sizes(a) == sizes(b)
}

/// Returns a configuration with its step, if it fits into memory and is short enough to be simulated.
fn simulated(config: &Config, cluster: &Cluster) -> Result<Option<Candidate>> {
    if config.schedule.micro_batches * config.schedule.depth > MOST_SIMULATED {
        return Ok(None);
    }
    Ok(match ConfigGroup::simulated(cluster, false).outcome(config.clone())? {
        Fit::Fits(candidate) => Some(candidate),
        Fit::TooLarge(..) => None,
    })
}

/// Returns configurations of the same steps on as many ranks that differ in one setting, and in
/// those that follow from it.
fn changes(config: &Config) -> Vec<Config> {
    let ScheduleSettings { width, depth, micro_batch_size, micro_batches, .. } = config.schedule;
    let with = |change: &dyn Fn(&mut Config)| {
        let mut changed = config.clone();
        change(&mut changed);
        changed
    };
    let mut all = vec![
        with(&|c| c.schedule.layout = Layout::Auto),
        with(&|c| c.passes.split_backward = true),
        with(&|c| c.passes.recompute = Recompute::Selective),
        with(&|c| c.passes.recompute = Recompute::None),
    ];
    if depth > 1 {
        let schedules = SCHEDULES.iter().copied().filter(is_synchronous);
        all.extend(
            schedules.map(|schedule| with(&|c| c.schedule.name = Named::Schedule(schedule))),
        );
    }
    let samples = width * micro_batch_size * micro_batches;
    let sizes = [1, 2, 4].map(|factor| micro_batch_size * factor);
    let halves = [2, 4].into_iter().filter(|part| micro_batch_size.is_multiple_of(*part));
    for size in sizes.into_iter().chain(halves.map(|part| micro_batch_size / part)) {
        if (samples / width).is_multiple_of(size) {
            let n = samples / width / size;
            all.push(with(&|c| {
                (c.schedule.micro_batch_size, c.schedule.micro_batches) = (size, n)
            }));
        }
    }
    let n_ranks = width * depth;
    for depth in (1..=config.model.layers).filter(|depth| n_ranks.is_multiple_of(*depth)) {
        let width = n_ranks / depth;
        if samples.is_multiple_of(width * micro_batch_size) {
            let n = samples / width / micro_batch_size;
            all.push(with(&|c| {
                (c.schedule.width, c.schedule.depth, c.schedule.micro_batches) = (width, depth, n);
                if depth == 1
                    && let Ok(alone) = ALONE.parse()
                {
                    c.schedule.name = alone;
                }
            }));
        }
    }
    all
}

/// Returns the options in which a configuration differs from another.
fn options(from: &Config, to: &Config) -> String {
    let changed = KEYS.iter().filter_map(|key| {
        let (value, _) = to.value(key)?;
        let is_same = from.value(key).is_some_and(|(known, _)| known == value);
        let text = match &to.schedule.layout {
            // A list: the usual separator of stages has a meaning in shells.
            Layout::Is(partition) if *key == "layout" => {
                partition.blocks().iter().map(usize::to_string).collect::<Vec<_>>().join(",")
            }
            _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        };
        (!is_same).then(|| format!("--{key} {text}"))
    });
    changed.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::Network;
    use chimera_settings::{Layers, Nothing};

    use super::*;
    use crate::plan::Speed;

    fn config(options: &str) -> Config {
        let model = "--layers 8 --hidden 64 --heads 4 --context 32 --threads 1";
        Layers::parse(&format!("{model} {options}")).unwrap().resolve(&Nothing).unwrap()
    }

    fn cluster(n_ranks: usize, memory: f64) -> Cluster {
        Cluster {
            n_ranks,
            memory: memory.into(),
            speed: Speed::Flops(1e9.into()),
            network: Network::free(n_ranks),
            topology: None,
        }
    }

    #[test]
    fn recomputation_that_memory_does_not_ask_for_is_advised_against() {
        let full = config("--depth 1 --schedule 1f1b --micro-batches 4 --recompute full");
        let advice = Advice::on(&full, &cluster(1, 1e12)).unwrap().expect("a change");
        assert_eq!(advice.options, "--recompute none");
        assert!((advice.less - 0.25).abs() < 1e-9, "{advice:?}");
        assert_eq!(advice.sentence(), "--recompute none would take 25 % less time a step");
        // GPipe holds the activations of all micro-batches unless it recomputes.
        let full = config("--depth 2 --schedule gpipe --micro-batches 8 --recompute full");
        let need = ConfigGroup::simulated(&cluster(2, 1e12), false).outcome(full.clone());
        let Ok(Fit::Fits(candidate)) = need else { panic!("it fits") };
        let tight = cluster(2, candidate.need.total());
        assert!(Advice::on(&full, &tight).unwrap().is_none_or(|a| a.options != "--recompute none"));
    }

    #[test]
    fn a_pipeline_with_a_bubble_is_advised_against_where_links_are_free() {
        let pipeline = config("--depth 4 --schedule gpipe --micro-batches 4");
        let advice = Advice::on(&pipeline, &cluster(4, 1e12)).unwrap().expect("a change");
        assert!(advice.options.contains("--width 4 --depth 1"), "{advice:?}");
        let without = config("--depth 1 --width 4 --schedule 1f1b --micro-batches 4");
        assert_eq!(Advice::on(&without, &cluster(4, 1e12)).unwrap(), None);
    }
}

//! The choice of stages that recompute, and how much, so that a step fits into memory and takes least time: the
//! knapsack of AdaPipe (Sun et al., ASPLOS 2024), by stages. A stage that keeps its activations saves time and
//! takes memory of its workers. Its gain depends on the schedule. So stages stop recomputing in groups, large ones
//! first, as long as the step fits. Then the others recompute only a part if that fits: cheap ops, or fewer layers.

use std::collections::BTreeMap;

use anyhow::Result;
use chimera_core::costs::is_shorter;
use chimera_core::ids::StageId;
use chimera_core::lower::Recompute;
use chimera_settings::{Config, RecomputedStages, StageRecompute};

use super::candidate::Fit;
use super::ways::is_free;

/// Returns the step of a configuration, if it fits into memory.
pub(crate) type StepOf<'s> = &'s mut dyn FnMut(&Config) -> Result<Option<f64>>;

/// Returns the candidate that fits while recomputing in as few stages as possible; `None` if
/// recomputation is fixed or nothing is gained. `layers` are those of each stage.
pub(crate) fn let_off(
    whole: &Config,
    layers: &[usize],
    n_tries: usize,
    outcome: &mut dyn FnMut(Config) -> Result<Fit>,
) -> Result<Option<Fit>> {
    let is_open = is_free(whole, "recompute-stages")
        || whole.passes.recompute_stages == RecomputedStages::Auto;
    if whole.passes.recompute == Recompute::None || !is_open {
        return Ok(None);
    }
    let fewer = fewest(whole, layers, (n_tries, true), &mut |config| {
        Ok(match outcome(config.clone())? {
            Fit::Fits(candidate) => Some(candidate.step_s),
            Fit::TooLarge(..) => None,
        })
    })?;
    let stages = || (0..layers.len() as u16).map(StageId);
    let gains =
        |config: &Config| stages().any(|s| config.recompute_of(s) != whole.passes.recompute);
    fewer.filter(|(config, _)| gains(config)).map(|(config, _)| outcome(config)).transpose()
}

/// Returns the configuration with the best stages to recompute, and its step; `None` if it does not
/// fit even if all recompute. `layers` are those of each stage. At most `n_tries` sets are tried
/// besides the simplest two. If `may_be`, stages may recompute a part instead of everything.
pub(crate) fn fewest(
    config: &Config,
    layers: &[usize],
    (n_tries, may_be): (usize, bool),
    step: StepOf<'_>,
) -> Result<Option<(Config, f64)>> {
    let all: Vec<u16> = (0..layers.len() as u16).collect();
    let parts = BTreeMap::new();
    let Some(least) = step(&with_stages(config, &all, &parts))? else { return Ok(None) };
    let mut found = FewestSearch { config, stages: all, parts, least, n_left: n_tries, step };
    found.let_off_groups()?;
    found.exchange(layers.len())?;
    if may_be && config.passes.recompute == Recompute::Full {
        found.keep_dear()?;
        found.keep_layers(layers)?;
    }
    Ok(Some((with_stages(config, &found.stages, &found.parts), found.least)))
}

fn with_stages(config: &Config, stages: &[u16], parts: &BTreeMap<u16, StageRecompute>) -> Config {
    let stages = stages.iter().map(|stage| (*stage, parts.get(stage).copied()));
    let mut config = config.clone();
    config.passes.recompute_stages = RecomputedStages::These(stages.collect());
    config
}

/// The state of the search: stages that recompute, those of them that do so in part, and the shortest step so far.
struct FewestSearch<'f> {
    config: &'f Config,
    stages: Vec<u16>,
    parts: BTreeMap<u16, StageRecompute>,
    least: f64,
    /// Sets that may still be tried.
    n_left: usize,
    step: StepOf<'f>,
}

impl FewestSearch<'_> {
    /// Returns the step of a set of stages, if it fits.
    fn tried(
        &mut self,
        stages: &[u16],
        parts: &BTreeMap<u16, StageRecompute>,
    ) -> Result<Option<f64>> {
        self.n_left -= 1;
        (self.step)(&with_stages(self.config, stages, parts))
    }

    /// Stops groups of stages from recomputing, large ones first.
    fn let_off_groups(&mut self) -> Result<()> {
        let all = self.stages.clone();
        let mut size = all.len().next_power_of_two();
        while size > 0 {
            // The last stages of a pipeline hold fewest activations.
            for group in all.rchunks(size) {
                let is_other = |stage: &u16| !group.contains(stage);
                let fewer: Vec<u16> = self.stages.iter().copied().filter(is_other).collect();
                if self.n_left == 0 || fewer.is_empty() || fewer.len() == self.stages.len() {
                    continue;
                }
                let took = self.tried(&fewer, &BTreeMap::new())?;
                if let Some(took) = took.filter(|took| *took <= self.least) {
                    (self.stages, self.least) = (fewer, took);
                }
            }
            size /= 2;
        }
        Ok(())
    }

    /// Exchanges one stage for another.
    fn exchange(&mut self, n_stages: usize) -> Result<()> {
        for at in 0..self.stages.len() {
            let is_free = |stage: &u16| !self.stages.contains(stage);
            for other in (0..n_stages as u16).filter(is_free).collect::<Vec<_>>() {
                if self.n_left == 0 || self.stages.contains(&other) {
                    continue;
                }
                let mut moved = self.stages.clone();
                moved[at] = other;
                moved.sort_unstable();
                let took = self.tried(&moved, &BTreeMap::new())?;
                if let Some(took) = took.filter(|took| is_shorter(*took, self.least)) {
                    (self.stages, self.least) = (moved, took);
                }
            }
        }
        Ok(())
    }

    /// Lets groups of stages keep ops that are expensive to compute, large groups first.
    fn keep_dear(&mut self) -> Result<()> {
        let stages = self.stages.clone();
        let mut size = stages.len().next_power_of_two();
        while size > 0 {
            for group in stages.rchunks(size) {
                let dear = StageRecompute::Keeps(Recompute::Selective);
                let mut more = self.parts.clone();
                more.extend(group.iter().map(|stage| (*stage, dear)));
                if self.n_left == 0 || more.len() == self.parts.len() {
                    continue;
                }
                let took = self.tried(&stages, &more)?;
                if let Some(took) = took.filter(|took| is_shorter(*took, self.least)) {
                    (self.parts, self.least) = (more, took);
                }
            }
            size /= 2;
        }
        Ok(())
    }

    /// Lets stages keep some of their layers. Recomputing fewer layers takes less time and more
    /// memory, so the fewest that fit are found by bisection.
    fn keep_layers(&mut self, layers: &[usize]) -> Result<()> {
        let stages = self.stages.clone();
        for stage in stages.iter().rev() {
            let (mut few, mut many) = (0, layers[usize::from(*stage)]);
            while self.n_left > 0 && many - few > 1 {
                let n = few + (many - few) / 2;
                let mut fewer = self.parts.clone();
                fewer.insert(*stage, StageRecompute::Layers(n as u16));
                let Some(took) = self.tried(&stages, &fewer)? else {
                    few = n;
                    continue;
                };
                many = n;
                if is_shorter(took, self.least) {
                    (self.parts, self.least) = (fewer, took);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::model::Selection;
    use chimera_settings::{Layers, Nothing};

    use super::*;

    /// Chooses among stages with a gain and a size each: those that do not recompute must fit into `room`.
    fn chosen(gains: &[f64], sizes: &[f64], room: f64) -> (Vec<u16>, f64) {
        let config = Layers::parse("--recompute full").unwrap().resolve(&Nothing).unwrap();
        let step = |stages: &[u16]| {
            let is_free = |s: &usize| !stages.contains(&(*s as u16));
            let free: Vec<usize> = (0..gains.len()).filter(is_free).collect();
            let size: f64 = free.iter().map(|s| sizes[*s]).sum();
            (size <= room).then(|| 100.0 - free.iter().map(|s| gains[*s]).sum::<f64>())
        };
        let mut of = |config: &Config| {
            let RecomputedStages::These(stages) = &config.passes.recompute_stages else {
                panic!("a set")
            };
            Ok(step(&stages.keys().copied().collect::<Vec<u16>>()))
        };
        let tries = (1000, false);
        let (config, took) =
            fewest(&config, &vec![1; gains.len()], tries, &mut of).unwrap().expect("it fits");
        let RecomputedStages::These(stages) = config.passes.recompute_stages else {
            panic!("a set")
        };
        let stages: Vec<u16> = stages.into_keys().collect();
        let sets = 1u32..1 << gains.len();
        let sets = sets.map(|set| (0..gains.len() as u16).filter(|s| set >> s & 1 == 1).collect());
        let best = sets.filter_map(|set: Vec<u16>| step(&set)).fold(f64::INFINITY, f64::min);
        assert!(took >= best, "{took} is less than can be");
        (stages, took - best)
    }

    #[test]
    fn as_few_stages_recompute_as_memory_asks_for() {
        // One pipeline: the first stage holds most, and the gains are equal.
        assert_eq!(chosen(&[1.0; 4], &[4.0, 3.0, 2.0, 1.0], 6.0), (vec![0], 0.0));
        assert_eq!(chosen(&[1.0; 4], &[4.0, 3.0, 2.0, 1.0], 2.5), (vec![0, 1, 2], 1.0 - 1.0));
        // The last stage gains most, and so keeps its activations.
        assert_eq!(chosen(&[1.0, 1.0, 1.0, 5.0], &[2.0; 4], 2.0), (vec![0, 1, 2], 0.0));
        assert_eq!(chosen(&[5.0, 1.0, 1.0, 1.0], &[2.0; 4], 2.0), (vec![1, 2, 3], 0.0));
    }

    /// With room for one and a half stages, one keeps everything, and another keeps expensive ops.
    #[test]
    fn what_is_left_of_the_memory_goes_to_a_part_of_a_stage() {
        let config = Layers::parse("--recompute full").unwrap().resolve(&Nothing).unwrap();
        let mut step = |config: &Config| {
            let held = |stage| match config.recompute_of(StageId(stage)) {
                Recompute::None => (2.0, 0.0),
                Recompute::Selective => (1.0, 0.3),
                Recompute::Full => (0.0, 1.0),
            };
            let all = (0..3).map(held).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            Ok((all.0 <= 3.0).then_some(10.0 + all.1))
        };
        let mut of = |may_be| {
            let (config, took) =
                fewest(&config, &[1; 3], (100, may_be), &mut step).unwrap().unwrap();
            (config.passes.recompute_stages.to_string(), took)
        };
        assert_eq!(of(false), ("1-2".into(), 12.0));
        assert_eq!(of(true), ("1,2:selective".into(), 11.3));
    }

    /// With stages of eight layers and room for about one and a half stages, that many fewer layers
    /// are recomputed.
    #[test]
    fn a_stage_recomputes_as_few_layers_as_fit() {
        let config = Layers::parse("--recompute full").unwrap().resolve(&Nothing).unwrap();
        let mut step = |config: &Config| {
            let again = |stage| match config.recompute_of(StageId(stage)) {
                Recompute::None => 0,
                Recompute::Full => 8,
                Recompute::Selective => {
                    match config.passes.recompute_stages.selection(StageId(stage)) {
                        Selection::InputsOf(n) => n,
                        // More expensive than recomputing everything.
                        Selection::Dear => 9,
                    }
                }
            };
            let again: usize = (0..3).map(again).sum();
            Ok((again >= 11).then_some(10.0 + again as f64))
        };
        let fewest = fewest(&config, &[8; 3], (100, true), &mut step).unwrap();
        let (config, took) = fewest.expect("it fits");
        assert_eq!((config.passes.recompute_stages.to_string(), took), ("1,2:3".into(), 21.0));
    }
}

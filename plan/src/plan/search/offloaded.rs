//! The division of stages between offloading and recomputation if a step does not fit into memory.
//! Offloading costs no time as long as it can be hidden; recomputation pays for the rest.
//!
//! Recomputing stages move nothing, and the others move what is over the limit. So sets of
//! recomputing stages are tried as without offloading, and the best of them competes with
//! offloading only and recomputing only: the result is never slower than these.

use anyhow::{Result, anyhow, bail, ensure};
use chimera_core::analyze::simulate;
use chimera_core::costs::{Costs, is_shorter};
use chimera_core::lower::{Lowering, Offloading, Recompute};
use chimera_core::request::Ordered;
use chimera_core::timetable::Timetable;
use chimera_settings::{Config, RecomputedStages};

use super::recomputed::{StepOf, fewest};
use crate::plan::step::course::recomputed_at;
use crate::plan::step::unfit::{NoRoom, is_refused};
use crate::plan::{Need, Plan};

/// Sets of stages that are tried for a run.
const N_TRIES: usize = 256;
/// Sets that are tried if a limit in micro-batches has to be found for each.
const N_TRIES_OF_LIMITS: usize = 32;

const GIB: f64 = 1_073_741_824.0;

/// The reason why there are no settings, until a try gives a better one.
const FITS_NOWHERE: &str = "a step does not fit into memory though all stages recompute";

/// Returns the settings with the best stages for `auto`, by plans of them.
pub(crate) fn with_recomputed(
    config: Config,
    plan: &mut dyn FnMut(Config) -> Result<Plan>,
) -> Result<Config> {
    if config.passes.recompute_stages != RecomputedStages::Auto {
        return Ok(config);
    }
    let mut all = config.clone();
    all.passes.recompute_stages = RecomputedStages::All;
    if config.passes.recompute == Recompute::None {
        return Ok(all);
    }
    let has_bytes = config.passes.rank_memory.is_some();
    if config.passes.rank_memory.or(config.passes.memory_cap).is_none() {
        bail!(
            "recompute-stages auto needs a memory limit: give the memory of a rank with \
             --rank-memory, or a --memory-cap"
        )
    }
    let most = config.passes.rank_memory.map_or(f64::INFINITY, |gib| gib * GIB);
    let mut uncapped = all.clone();
    (uncapped.passes.memory_cap, uncapped.passes.offload) = (None, Offloading::None);
    let layers: Vec<usize> = plan(uncapped)?.cuts.iter().map(|cut| cut.blocks.len()).collect();
    let mut why = anyhow!(FITS_NOWHERE);
    let mut step = |config: &Config| -> Result<Option<f64>> {
        let plan = match plan(config.clone()) {
            Err(error) if is_refused(&error) => {
                why = error;
                return Ok(None);
            }
            plan => plan?,
        };
        if let Some(over) = NoRoom::of(plan.needs.iter().map(Need::total), most) {
            why = over.into();
            return Ok(None);
        }
        plan.priced.makespan(config, &plan.cuts, &plan.course.program).map(Some)
    };
    least_within(&config, &layers, has_bytes, &mut step)?.ok_or(why)
}

/// Returns the settings with the best stages for `auto` if workers hold as many micro-batches as
/// `how` allows. Simulates a timetable that does not recompute yet.
///
/// # Errors
/// If `how` does not limit the micro-batches, or the [`Refusal`](chimera_core::analyze::Refusal) of
/// a step that does not fit even if all stages recompute.
pub fn recomputed_within_cap(
    config: &Config,
    timetable: &Timetable,
    how: &Lowering,
    costs: &impl Costs,
) -> Result<Config> {
    ensure!(
        how.max_peak.is_some(),
        "recompute-stages auto needs a memory limit: give the micro-batches that a worker may hold \
         with --memory-cap, or name stages, such as 0,2-3"
    );
    let mut why = anyhow!(FITS_NOWHERE);
    let mut step = |config: &Config| -> Result<Option<f64>> {
        let timetable = timetable.clone();
        let ordered = Ordered { timetable, passes: config.passes(), search: None };
        let program =
            recomputed_at(config, ordered, costs).and_then(|o| Ok(o.program(how, costs)?));
        match program {
            Err(error) if is_refused(&error) => {
                why = error;
                Ok(None)
            }
            program => Ok(Some(simulate(&program?, costs).makespan())),
        }
    };
    // The time of a part of a stage is unknown.
    let layers = vec![1; timetable.placement.n_stages()];
    least_within(config, &layers, false, &mut step)?.ok_or(why)
}

/// Returns the settings with as little recomputation as fits, besides offloading if that is requested; `None` if
/// none fits. Selective recomputation is tried if memory is counted in bytes, since it still keeps some of them.
fn least_within(
    config: &Config,
    layers: &[usize],
    has_bytes: bool,
    step: StepOf<'_>,
) -> Result<Option<Config>> {
    let mut none = config.clone();
    (none.passes.recompute_stages, none.passes.recompute) =
        (RecomputedStages::All, Recompute::None);
    none.passes.offload = Offloading::None;
    if step(&none)?.is_some() {
        return Ok(Some(none));
    }
    let tries = (N_TRIES, has_bytes);
    match config.passes.offload {
        Offloading::Auto => offloaded_or_recomputed(config, layers, tries, step),
        Offloading::None => Ok(fewest(config, layers, tries, step)?.map(|(config, _)| config)),
    }
}

/// Returns the settings of the shortest step that fits among those that offload, recompute, or do
/// both; `None` if none fits. At most `n_tries` sets of stages are tried for each.
fn offloaded_or_recomputed(
    config: &Config,
    layers: &[usize],
    (n_tries, has_bytes): (usize, bool),
    step: StepOf<'_>,
) -> Result<Option<Config>> {
    let mut kept = config.clone();
    (kept.passes.recompute, kept.passes.recompute_stages) =
        (Recompute::None, RecomputedStages::All);
    let mut here = config.clone();
    here.passes.offload = Offloading::None;
    let needs_limit = has_bytes && config.passes.memory_cap.is_none();
    let n_of_both = if needs_limit { n_tries.min(N_TRIES_OF_LIMITS) } else { n_tries };
    let mut takes = |config: &Config| {
        if needs_limit { Ok(limited(config, step)?.map(|(_, takes)| takes)) } else { step(config) }
    };
    let alone = takes(&kept)?.map(|takes| (kept, takes));
    let both = fewest(config, layers, (n_of_both, has_bytes), &mut takes)?;
    let recomputed = fewest(&here, layers, (n_tries, has_bytes), step)?;
    let mut best: Option<(Config, f64)> = None;
    for (config, takes) in [alone, both, recomputed].into_iter().flatten() {
        if best.as_ref().is_none_or(|(_, least)| is_shorter(takes, *least)) {
            best = Some((config, takes));
        }
    }
    let Some((best, _)) = best else { return Ok(None) };
    if needs_limit && best.passes.offload != Offloading::None {
        return Ok(limited(&best, step)?.map(|(config, _)| config));
    }
    Ok(Some(best))
}

/// Returns the settings with the most micro-batches that a worker may hold within its bytes, and
/// their step. The other micro-batches are moved.
fn limited(config: &Config, step: StepOf<'_>) -> Result<Option<(Config, f64)>> {
    let (mut fits, mut too_many, mut found) = (0, config.schedule.micro_batches + 1, None);
    while too_many - fits > 1 {
        let middle = fits.midpoint(too_many);
        let mut limited = config.clone();
        limited.passes.memory_cap = Some(middle as f64);
        match step(&limited)? {
            Some(takes) => (fits, found) = (middle, Some((limited, takes))),
            None => too_many = middle,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use chimera_core::costs::{StageCosts, UniformCosts};
    use chimera_core::lower::lower_at;
    use chimera_core::schedule::{Shape, find};
    use chimera_settings::{Layers, Nothing};
    use proptest::prelude::*;

    use super::*;

    /// Returns the shortest step within the cap by these options, and the peak of its workers.
    fn step(
        options: &str,
        timetable: &Timetable,
        cap: f64,
        costs: &StageCosts,
    ) -> Option<(f64, f64)> {
        let layers = Layers::parse(&format!("{options} --memory-cap {cap}")).expect("options");
        let mut config = layers.resolve(&Nothing).expect("settings");
        let how = Lowering { max_peak: Some(cap), ..Lowering::default() };
        if config.passes.recompute_stages == RecomputedStages::Auto {
            config = recomputed_within_cap(&config, timetable, &how, costs).ok()?;
        }
        let ordered =
            Ordered { timetable: timetable.clone(), passes: config.passes(), search: None };
        let ordered = recomputed_at(&config, ordered, costs).ok()?;
        let moved = ordered.passed(&how, costs).ok()?;
        let program = lower_at(&moved, &how, costs).ok()?;
        Some((simulate(&program, costs).makespan(), program.peak()))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn both_together_are_never_longer_than_the_better_of_the_two_and_within_the_cap(
            schedule in prop::sample::select(vec!["1f1b", "gpipe", "interleaved", "chimera"]),
            (depth, rounds, cap) in (1usize..=3, 1u32..=3, 1u32..=4),
            transfers in prop::collection::vec(0.0f64..2.0, 12),
            again in prop::collection::vec(0.1f64..1.5, 12),
            occupies in prop::sample::select(vec![0.0, 1.0]),
        ) {
            let depth = 2 * depth;
            let shape = Shape::new(depth, rounds * depth as u32);
            let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
            let stage = |s: usize| UniformCosts {
                recompute: again[s],
                transfer: transfers[s],
                transfer_occupies: occupies * transfers[s],
                ..UniformCosts::new(1.0, 2.0, 0.25)
            };
            let n_stages = timetable.placement.n_stages();
            let costs = StageCosts::new((0..n_stages).map(stage).collect());
            let of = |options| step(options, &timetable, f64::from(cap), &costs);
            let offloaded = of("--offload auto").map(|(takes, _)| takes);
            let recomputed = of("--recompute auto").map(|(takes, _)| takes);
            let better = offloaded.unwrap_or(f64::INFINITY).min(recomputed.unwrap_or(f64::INFINITY));
            match of("--offload auto --recompute auto") {
                Some((takes, peak)) => {
                    prop_assert!(takes <= better * (1.0 + 1e-9), "{takes}: {offloaded:?}, {recomputed:?}");
                    prop_assert!(peak <= f64::from(cap) + 1e-6, "{peak} of {cap}");
                }
                None => prop_assert!(better.is_infinite(), "{offloaded:?}, {recomputed:?}"),
            }
        }
    }

    /// If all moves are hidden they cost less than recomputation; long ones cost more. Between the
    /// two, both are needed.
    #[test]
    fn what_can_be_hidden_is_offloaded_and_recomputation_pays_for_the_rest() {
        let timetable = find("1f1b").expect("known").timetable(&Shape::new(4, 12)).expect("fits");
        let of = |options, transfer| {
            let costs = UniformCosts { transfer, ..UniformCosts::new(1.0, 2.0, 0.0) };
            step(options, &timetable, 2.0, &StageCosts::new(vec![costs; 4])).expect("fits").0
        };
        let (offload, recompute) = ("--offload auto", "--recompute auto");
        let both = "--offload auto --recompute auto";
        assert_eq!(of(both, 0.5), of(offload, 0.5));
        assert_eq!(of(both, 50.0), of(recompute, 50.0));
        assert!(of(both, 0.5) < of(recompute, 0.5) && of(both, 50.0) < of(offload, 50.0));
        assert!(of(both, 1.8) <= of(recompute, 1.8).min(of(offload, 1.8)));
    }
}

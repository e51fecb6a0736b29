//! The layout `auto`: the partition of a model's layers into stages that makes the step shortest.

pub(crate) mod relaid;

use anyhow::Result;
use chimera_core::costs::is_shorter;
use chimera_core::ids::StageId;
use chimera_core::lower::{Passes, Recompute};
use chimera_core::model::{Cut, Partition};
use chimera_core::partition::{balanced, improved};
use chimera_core::program::Program;
use chimera_core::request::Ordered;
use chimera_core::timetable::Timetable;
use chimera_device::{AnyKernels, Device, OpenedBy};
use chimera_settings::schedules::Named;
use chimera_settings::{Config, Layout};

use crate::plan::Priced;
use crate::plan::step::course::{order, proven, timetable, with_scaling};
use crate::plan::step::units::Units;

/// The most ops that are simulated to find a layout: about a second.
const MOST_OPS: usize = 1 << 22;

/// The cost of a partition that does not fit into memory: more than any that fits, and less the less memory it needs.
const TOO_LARGE: f64 = 1e100;

/// Returns the bytes of a partition beyond the available memory, or 0.
pub(crate) type Excess<'e> = &'e dyn Fn(&[Cut], &Program) -> Result<f64>;

/// Returns the settings with the best layout for `auto`, by the order that a search elsewhere has `found`, if any.
pub fn with_layout(config: Config, priced: &Priced, found: Option<&Timetable>) -> Result<Config> {
    if config.schedule.layout != Layout::Auto {
        return Ok(config);
    }
    let mut config = with_scaling(config, priced)?;
    let window =
        config.shape().window.min(u32::try_from(config.training.steps).unwrap_or(u32::MAX));
    let ordered = match found {
        Some(timetable) => {
            let passes = Passes::default();
            Ordered { timetable: timetable.clone(), passes, search: None }
        }
        None => order(&config, window, priced)?,
    };
    config.schedule.layout =
        Layout::Is(shortest(&config, priced, ordered, MOST_OPS, &|_, _| Ok(0.0))?);
    Ok(config)
}

/// Returns the layout that settings lead to, if that is known without a search for a schedule.
pub fn layout_of<K: AnyKernels>(config: &Config) -> Option<Partition>
where
    Device: OpenedBy<K>,
{
    if config.schedule.name == Named::Auto || config.schedule.depth > config.model.layers {
        return None;
    }
    let model = config.model();
    let priced = Priced::by_settings::<K>(config, &model).ok()?;
    let mut config = with_layout(config.clone(), &priced, None).ok()?;
    if !matches!(config.schedule.name, Named::File(_)) {
        // A short step has the same number of stages.
        config.schedule.micro_batches =
            config.schedule.micro_batches.min(4 * config.schedule.depth);
    }
    let n_stages = timetable(&config, &priced).ok()?.placement.n_stages();
    Some(Partition::of(&config.cuts(&model, n_stages).ok()?))
}

/// Returns the partition with the shortest simulated step. Starts from stages of equal work, or from workers of equal
/// work, and simulates at most `most_ops` ops. While partitions have an `excess` of memory, the least excess counts.
pub(crate) fn shortest(
    config: &Config,
    priced: &Priced,
    ordered: Ordered,
    most_ops: usize,
    excess: Excess<'_>,
) -> Result<Partition> {
    let placement = ordered.timetable.placement.clone();
    let (n_stages, model) = (placement.n_stages(), priced.model());
    let by_stages = Partition::of(&config.cuts(model, n_stages)?).blocks().to_vec();
    let by_workers = balanced(&layers(config, priced)?, &placement, &config.worker_speeds());
    let n_tries = most_ops / ordered.timetable.n_ops().max(1);
    let program = proven(config, priced, ordered)?;
    let mut least = f64::INFINITY;
    let mut step = |blocks: &[usize]| -> Result<f64> {
        let cuts = Partition::new(blocks.to_vec())?.cuts(model, n_stages)?;
        let took = priced.makespan(config, &cuts, &program)?;
        // It does not matter whether a longer step fits.
        if took < least {
            let excess = excess(&cuts, &program)?;
            if excess > 0.0 {
                return Ok(TOO_LARGE * excess);
            }
            least = took;
        }
        Ok(took)
    };
    let begin = match by_workers {
        // Stages of equal work are the default: they stay if nothing is gained.
        Some(blocks) if is_shorter(step(&blocks)?, step(&by_stages)?) => blocks,
        _ => by_stages,
    };
    Ok(Partition::new(improved(begin, n_tries, &mut step)?)?)
}

/// Returns the cost of each block of the model, the first with the embedding, the last with the head.
fn layers(config: &Config, priced: &Priced) -> Result<Vec<f64>> {
    let part = |n_blocks, first, last| Cut { blocks: 0..n_blocks, first, last, ..Cut::default() };
    let parts = [part(0, true, false), part(1, false, false), part(0, false, true)];
    let is_selective = |_: StageId| config.passes.recompute == Recompute::Selective;
    let costs = priced.stages(config, &parts, Units::WHOLE, is_selective)?;
    let cost = |part: usize| {
        let again =
            if config.passes.recompute == Recompute::None { 0.0 } else { costs[part].recompute };
        costs[part].forward + costs[part].input + costs[part].weight + again
    };
    let mut layers = vec![cost(1); config.model.layers];
    layers[0] += cost(0);
    layers[config.model.layers - 1] += cost(2);
    Ok(layers)
}

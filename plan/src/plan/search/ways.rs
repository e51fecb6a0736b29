//! Enumeration of all configurations for steps of a given size on some ranks.

use chimera_core::lower::Recompute;
use chimera_core::schedule::Scaling::Direct;
use chimera_core::schedule::{self, Parameter, SCHEDULES, Schedule, Shape, find};
use chimera_core::update::Update;
use chimera_settings::schedules::{ALONE, Named};
use chimera_settings::{Config, RecomputedStages, Scaling};

/// The most forward cells of a timetable that is tried: a training would take too long to prove longer ones.
pub(crate) const MOST_CELLS: usize = 1 << 18;

/// Recomputations in ascending order.
const RECOMPUTES: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

/// Numbers of pipes to try: more of them cost more memory for copies of stages than they save of the bubble.
const PIPES: [usize; 3] = [2, 4, 8];
/// The most stages per worker of one pipe: more of them cost more messages than they save of the bubble.
const MOST_CHUNKS: usize = 8;
/// Numbers of slices to try: with more, products have few rows.
const SLICES: [usize; 3] = [2, 4, 8];
/// The most forwards in turn.
const MOST_IN_TURN: usize = 4;

/// Returns all configurations with these ranks and this batch, in groups that differ only in
/// micro-batches and recomputation. Within a group the largest micro-batches come first, and among
/// these the least recomputation. Whether schedules have the shape is not checked.
pub(crate) fn ways(said: &Config, batch: usize, n_ranks: usize) -> Vec<Vec<Config>> {
    let keeps = |key: &str, is_said: bool| is_said || is_free(said, key);
    // Memory decides what forwards keep: as much as was set, or more.
    let least_kept =
        (said.passes.recompute_stages == RecomputedStages::Auto).then_some(said.passes.recompute);
    let keeps_enough = |way: &Config| {
        let position = |kind| RECOMPUTES.iter().position(|known| *known == kind);
        least_kept.is_some_and(|least| position(way.passes.recompute) <= position(least))
    };
    let mut ways = Vec::new();
    for width in divisors(n_ranks).filter(|width| batch.is_multiple_of(*width)) {
        let (depth, samples) = (n_ranks / width, batch / width);
        let is_kept = keeps("width", width == said.schedule.width)
            && keeps("depth", depth == said.schedule.depth);
        if !is_kept || depth > said.model.layers {
            continue;
        }
        for order in orders(depth, said) {
            let is_direct = order.schedule.scaling == Scaling::Is(Direct);
            let of_size = |size: usize| {
                RECOMPUTES.map(|recompute| {
                    let mut way = order.clone();
                    (way.schedule.width, way.schedule.depth, way.passes.recompute) =
                        (width, depth, recompute);
                    (way.schedule.micro_batch_size, way.schedule.micro_batches) =
                        (size, samples / size);
                    way
                })
            };
            let is_kept = |way: &Config| {
                way.schedule.micro_batches * depth <= MOST_CELLS
                    && keeps(
                        "micro-batch-size",
                        way.schedule.micro_batch_size == said.schedule.micro_batch_size,
                    )
                    && keeps(
                        "micro-batches",
                        way.schedule.micro_batches == said.schedule.micro_batches,
                    )
                    && (keeps_enough(way)
                        || keeps("recompute", way.passes.recompute == said.passes.recompute))
                    && (is_direct
                        || way.schedule.scaling == said.schedule.scaling
                        || way.schedule.micro_batches > depth)
            };
            let sizes = divisors(samples).collect::<Vec<_>>().into_iter().rev();
            ways.push(sizes.flat_map(of_size).filter(is_kept).collect());
        }
    }
    ways.retain(|ways: &Vec<Config>| !ways.is_empty());
    ways
}

/// Returns true if the user has not set `key`.
pub(crate) fn is_free(said: &Config, key: &str) -> bool {
    said.value(key).is_none_or(|(_, origin)| origin.is_default())
}

/// Returns true if it updates at a flush, judged by its smallest timetable.
pub(crate) fn is_synchronous(schedule: &&'static dyn Schedule) -> bool {
    let timetable = schedule.timetable(&Shape::new(2, 4));
    timetable.is_ok_and(|timetable| timetable.update == Update::Flush)
}

/// Returns the settings with each schedule for a depth, and with each of the values of its parameters.
fn orders(depth: usize, said: &Config) -> Vec<Config> {
    let names = if is_free(said, "schedule") || said.schedule.name == Named::Auto {
        if depth == 1 {
            // One worker has nothing to order.
            find(ALONE).map(Named::Schedule).into_iter().collect()
        } else {
            let schedules = SCHEDULES.iter().copied().filter(is_synchronous);
            schedules.map(Named::Schedule).collect()
        }
    } else {
        vec![said.schedule.name.clone()]
    };
    let is_open = is_free(said, "scaling") || said.schedule.scaling == Scaling::Auto;
    let of_name = |schedule: Named| {
        let parameters = schedule.reads();
        let mut order = said.clone();
        if is_open && matches!(schedule, Named::Schedule(_)) {
            order.schedule.scaling = Scaling::Is(Direct);
        }
        order.schedule.name = schedule;
        let open = parameters.iter().filter(|parameter| match parameter {
            Parameter::Scaling => is_open,
            _ => is_free(said, parameter.name()),
        });
        open.fold(vec![order], |orders, open| {
            orders.into_iter().flat_map(|order| with_each(*open, depth, order)).collect()
        })
    };
    names.into_iter().flat_map(of_name).collect()
}

/// Returns `order` with each value of a parameter that is worth a try at this depth; unchanged if none is.
fn with_each(parameter: Parameter, depth: usize, order: Config) -> Vec<Config> {
    let most_chunks = MOST_CHUNKS.min(order.model.layers / depth);
    if parameter == Parameter::Scaling && depth > 1 {
        let scaled = |(_, scaling)| {
            let mut order = order.clone();
            order.schedule.scaling = Scaling::Is(scaling);
            order
        };
        return schedule::Scaling::ALL.map(scaled).into();
    }
    let values: Vec<usize> = match parameter {
        _ if depth == 1 => Vec::new(),
        Parameter::Pipes => PIPES.into_iter().filter(|n| depth.is_multiple_of(*n)).collect(),
        Parameter::Chunks => (2..=most_chunks).collect(),
        Parameter::Waves => (1..=most_chunks / 2).collect(),
        Parameter::InTurn => (1..=MOST_IN_TURN.min(depth)).collect(),
        // The first is the schedule's own.
        Parameter::InFlight => [0, 1, 2, 3, 4].map(|halves| halves * depth / 2).into(),
        Parameter::Slices => SLICES.into(),
        _ => Vec::new(),
    };
    if values.is_empty() {
        return vec![order];
    }
    let with = |value: usize| {
        let mut order = order.clone();
        order.set(parameter, (value > 0).then_some(value as u32));
        order
    };
    values.into_iter().map(with).collect()
}

fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |divisor| n.is_multiple_of(*divisor))
}

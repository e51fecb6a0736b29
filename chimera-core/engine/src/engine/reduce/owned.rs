//! Sizes of the shards that ranks own: optimizer state, and sums of gradients.

use chimera_schedule::analyze::{GradientSizes, WeightSizes};
use chimera_schedule::ids::{StageId, WorkerId};
use chimera_schedule::program::Program;

use crate::engine::Optimizer;
use crate::engine::reduce::shards::{layout, owners};
use crate::stage::Param;

/// Returns, by rank, the number of elements in `optimizer`'s state for the tensors that the rank
/// owns, for stages with these parameters. Each of a tensor's places counts.
pub fn owned_elements(
    program: &Program,
    width: usize,
    params: &[Vec<Param>],
    optimizer: &Optimizer,
) -> Vec<u64> {
    let placement = program.placement();
    let workers = (0..placement.n_workers()).map(|w| placement.stages_of(WorkerId(w as u16)));
    let held: Vec<Vec<StageId>> = workers.collect();
    let all = |stage: StageId| Some(params[stage.index()].as_slice());
    let layout = layout(program, all, false);
    let owners = owners(program, width, &layout, all);
    let mut owned = vec![0; width * placement.n_workers()];
    for (places, owner) in layout.iter().flatten().zip(owners.iter().flatten()) {
        let (_, worker) = placement.group_and_worker(*owner);
        let its = places.iter().filter(|(stage, _)| held[worker.index()].contains(stage));
        let params = its.map(|(stage, index)| &params[stage.index()][*index]);
        let kept = params.map(|param| optimizer.n_state_elements(param) as u64);
        owned[owner.index()] += kept.sum::<u64>();
    }
    owned
}

/// Returns the numbers of elements of gradients, if only its owner keeps the sum of a tensor, and
/// of weights, if replicas share them, for stages with these parameters. Counts a worker's elements
/// in one `group`, or their mean over all groups.
pub fn shard_elements(
    program: &Program,
    width: usize,
    params: &[Vec<Param>],
    group: Option<usize>,
) -> GradientSizes {
    let placement = program.placement();
    let all = |stage: StageId| Some(params[stage.index()].as_slice());
    let size =
        |(stage, index): &(StageId, usize)| params[stage.index()][*index].n_elements() as f64;
    let layout = layout(program, all, false);
    let owners = owners(program, width, &layout, all);
    let mut whole = vec![Vec::<(StageId, f64)>::new(); layout.len()];
    let mut kept = vec![vec![0.0; layout.len()]; placement.n_workers()];
    let mut shards = vec![vec![0.0; params.len()]; placement.n_workers()];
    let part = if group.is_some() { 1.0 } else { 1.0 / width as f64 };
    for (bucket, (tensors, owners)) in layout.iter().zip(&owners).enumerate() {
        for (places, owner) in tensors.iter().zip(owners) {
            for place in places {
                match whole[bucket].iter_mut().find(|(stage, _)| *stage == place.0) {
                    Some((_, total)) => *total += size(place),
                    None => whole[bucket].push((place.0, size(place))),
                }
            }
            let (of_group, worker) = placement.group_and_worker(*owner);
            if group.is_some_and(|group| group != of_group) {
                continue;
            }
            kept[worker.index()][bucket] += places.first().map_or(0.0, size) * part;
            let stages = placement.stages_of(worker);
            for place in places.iter().filter(|(stage, _)| stages.contains(stage)) {
                shards[worker.index()][place.0.index()] += size(place) * part;
            }
        }
    }
    let trained = |params: &Vec<Param>| {
        let trained = params.iter().filter(|param| !param.frozen);
        trained.map(|param| param.n_elements() as f64).sum()
    };
    let weights = program
        .shards_weights()
        .then(|| WeightSizes { whole: params.iter().map(trained).collect(), kept: shards });
    GradientSizes { whole, kept, weights }
}

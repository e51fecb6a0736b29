//! The simulated time of a step on the ranks and links of a cluster.

use anyhow::Result;
use chimera_core::analyze::{
    IdleTime, Network, NetworkCosts, ReductionAlgorithm, Timeline, behind_makespan, bubble_ratio,
    simulate, simulate_on, simulated_idle,
};
use chimera_core::costs::{Costs, StageCosts, UnevenCosts};
use chimera_core::lower::Moves;
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_device::Precision;
use chimera_settings::Config;

use super::candidate::{Cluster, Speed};
use crate::plan::costs::predict::beside_others;
use crate::plan::costs::priced::Stages;
use crate::plan::step::units::Units;
use crate::plan::{Course, Plan, costs_by_flops};
use crate::profile::ProfiledTimes;

/// The time of a step.
pub(super) struct StepTime {
    pub(super) makespan: f64,
    /// The step sync, unless it lies within the makespan.
    pub(super) agree: f64,
    /// Busy time by worker.
    pub(super) busy: Vec<f64>,
    /// Shares of the idle time by cause, if they were asked for.
    pub(super) idle: Option<IdleTime>,
}

/// Simulates a plan with the micro-batches of a configuration, and perhaps finds the causes of idle time.
pub(super) fn taken(
    plan: &Plan,
    way: &Config,
    cluster: &Cluster,
    has_causes: bool,
) -> Result<StepTime> {
    let Plan { course: Course { program, .. }, model, cuts, .. } = plan;
    let stages = Stages { config: way, model, cuts };
    let times = match &cluster.speed {
        Speed::Measured(times) => times,
        Speed::Flops(rate) => {
            let is_selective = |stage| program.rules().is_selective_somewhere(stage);
            let (size, units) = (way.schedule.micro_batch_size as f64, Units::of(program));
            let flops = rate.at(size * way.model.sequence as f64);
            let of_sample = (flops / size, units);
            let stages = costs_by_flops(model, way.model.sequence, cuts, of_sample, is_selective);
            return simulated(plan, way, cluster, StageCosts::new(stages), has_causes);
        }
        Speed::Own(times) => {
            let costs = stages.own_costs(times, program);
            return simulated(plan, way, cluster, costs, has_causes);
        }
    };
    let at = |times: &ProfiledTimes| -> Result<StepTime> {
        simulated(plan, way, cluster, stages.step_costs(times, program)?, has_causes)
    };
    beside_others(times, way.schedule.width * way.schedule.depth, at, |taken| {
        1.0 - bubble_ratio(&taken.busy, taken.makespan)
    })
}

/// Simulates a plan with some costs of compute.
fn simulated<C: Costs>(
    plan: &Plan,
    way: &Config,
    cluster: &Cluster,
    compute: C,
    has_causes: bool,
) -> Result<StepTime> {
    let Plan { course: Course { program, .. }, model, cuts, memory, .. } = plan;
    let (size, units) = (way.schedule.micro_batch_size as f64, program.units_per_micro());
    let activations: Vec<f64> = memory.iter().map(|stage| stage.sample.output * size).collect();
    let params: Vec<Vec<Param>> = cuts.iter().map(|cut| model.params(cut)).collect();
    let element = if way.replicas.reduce_precision == Precision::Bf16 { 2.0 } else { 4.0 };
    let gradients = |params: &Vec<Param>, tied: bool| -> Vec<f64> {
        let tensors = params.iter().filter(|param| param.tied == tied);
        tensors.map(|param| param.n_elements() as f64 * element).collect()
    };
    let own: Vec<Vec<f64>> = params.iter().map(|params| gradients(params, false)).collect();
    let tied = params.first().map_or(Vec::new(), |first| gradients(first, true));
    let placement = program.placement();
    let mut network = Network { width: way.schedule.width, ..cluster.network };
    if way.replicas.reduce_within as usize == network.ranks_per_node {
        network.reductions = ReductionAlgorithm::Nodes;
    }
    let compute = UnevenCosts::new(compute, way.worker_speeds());
    let saved: Vec<f64> = match way.passes().moves {
        Moves::Bpipe => memory.iter().map(|stage| stage.sample.saved * size).collect(),
        Moves::None | Moves::Offload => Vec::new(),
    };
    let costs = NetworkCosts::of_messages(compute, network, placement, units, &activations)
        .compressed(&way.devices.wire)
        .with_saved(&saved)
        .with_sums(program, &own, &tied);
    let Some(topology) = &cluster.topology else {
        return Ok(step(program, &simulate(program, &costs), &costs, has_causes));
    };
    let width = way.schedule.width;
    let linked = simulate_on(program, &costs, &costs.traffic(), topology, width)?;
    Ok(step(program, &linked.timeline, &linked.costs(&costs), has_causes))
}

/// Returns the times of a simulated step.
fn step(program: &Program, timeline: &Timeline, costs: &impl Costs, has_causes: bool) -> StepTime {
    let makespan = timeline.makespan();
    let idle = || IdleTime::shares(&simulated_idle(program, timeline, costs), makespan);
    StepTime {
        makespan,
        agree: behind_makespan(program, timeline, costs),
        busy: timeline.busy(),
        idle: has_causes.then(idle),
    }
}

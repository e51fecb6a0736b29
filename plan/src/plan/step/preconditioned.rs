//! The program of a training whose gradients are preconditioned.

use anyhow::Result;
use chimera_core::costs::{Costs, PerStage, StageCosts, UnevenCosts, WithOwnWork};
use chimera_core::engine::kfac_work;
use chimera_core::ids::WorkerId;
use chimera_core::lower::{Lowering, fill};
use chimera_core::op::Op;
use chimera_core::program::Program;
use chimera_core::stage::Param;
use chimera_settings::Config;

/// Returns the program with K-FAC's factors and inverses in its idle time.
pub(crate) fn with_kfac(
    config: &Config,
    params: &[Vec<Param>],
    program: &Program,
    how: &Lowering,
    costs: &StageCosts,
) -> Result<Program> {
    let units = program.units_per_micro() as usize;
    let rows = config.schedule.micro_batch_size * config.model.sequence / units;
    let (works, forwards) = kfac_work(params, rows as f64);
    let forward = |stage| costs.op(WorkerId(0), &Op::forward(0, stage, 0));
    let takes = |of: Vec<f64>| {
        PerStage((0..).zip(of).map(|(stage, forwards)| forwards * forward(stage)).collect())
    };
    let costs = WithOwnWork::new(costs, forwards.into_iter().map(takes).collect());
    let costs = UnevenCosts::new(costs, config.worker_speeds());
    Ok(fill(program, &works, how, &costs)?)
}

//! The stages that a program is planned for.

use anyhow::{Result, ensure};
use chimera_core::costs::{SliceGrowth, StageCosts, UniformCosts};
use chimera_core::ids::StageId;
use chimera_core::lower::Recompute;
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::stage::Param;
use chimera_core::timetable::Timetable;
use chimera_settings::Config;

use super::units::Units;

/// The properties of a model that its program depends on.
pub trait Chain {
    /// Returns the costs of its stages, cut for a timetable.
    fn costs(&self, config: &Config, timetable: &Timetable) -> Result<StageCosts>;

    /// Returns groups of stages that share a tensor.
    fn tied(&self, n_stages: usize) -> Vec<Vec<StageId>>;

    /// Returns the stages of which nothing is trained.
    ///
    /// # Errors
    /// If nothing of the model is trained.
    fn frozen(&self, config: &Config, n_stages: usize) -> Result<Vec<StageId>> {
        frozen_stages(&self.params(config, n_stages)?)
    }

    /// Returns the parameters of each stage; none if only costs are known.
    fn params(&self, _config: &Config, _n_stages: usize) -> Result<Vec<Vec<Param>>> {
        Ok(Vec::new())
    }
}

impl Chain for ModelConfig {
    /// Costs follow from the products of stages: a forward of the mean stage takes 1, and a backward two forwards.
    fn costs(&self, config: &Config, timetable: &Timetable) -> Result<StageCosts> {
        let n_stages = timetable.placement.n_stages();
        let cuts = config.cuts(self, n_stages)?;
        let flops = |cut: &Cut| self.forward_flops(cut, config.model.sequence);
        let mean = cuts.iter().map(flops).sum::<f64>() / n_stages as f64;
        let units = Units::of_timetable(timetable);
        let is_selective = is_selective(config, timetable);
        let costs = costs_by_flops(self, config.model.sequence, &cuts, (mean, units), is_selective);
        Ok(StageCosts::new(costs))
    }

    fn tied(&self, n_stages: usize) -> Vec<Vec<StageId>> {
        let ends = vec![StageId(0), StageId(n_stages as u16 - 1)];
        if self.tied && n_stages > 1 { vec![ends] } else { Vec::new() }
    }

    fn frozen(&self, config: &Config, n_stages: usize) -> Result<Vec<StageId>> {
        if config.model.freeze.is_none() && config.model.lora.is_none() {
            return Ok(Vec::new());
        }
        frozen_stages(&Chain::params(self, config, n_stages)?)
    }

    fn params(&self, config: &Config, n_stages: usize) -> Result<Vec<Vec<Param>>> {
        Ok(config.cuts(self, n_stages)?.iter().map(|cut| self.params(cut)).collect())
    }
}

/// Returns the costs of stages, in units of the time for `flops` floating-point operations of a
/// sample, if micro-batches are cut into `units`.
pub fn costs_by_flops(
    model: &ModelConfig,
    sequence: usize,
    cuts: &[Cut],
    (flops, units): (f64, Units),
    is_selective: impl Fn(StageId) -> bool,
) -> Vec<UniformCosts> {
    let stage = |(stage, cut): (u16, &Cut)| {
        let forward = model.forward_flops(cut, sequence) / flops;
        let grows = model.growing_flops(cut, sequence) / flops;
        let growth = SliceGrowth { forward: grows, input: grows, weight: grows, recompute: grows };
        let mut costs = UniformCosts { growth, ..UniformCosts::new(forward, 2.0 * forward, 0.0) };
        costs.weight *= model.trained_part(cut);
        if is_selective(StageId(stage)) {
            costs.recompute = model.selective_flops(cut, sequence) / flops;
            costs.growth.recompute = 0.0;
        }
        units.cut(costs)
    };
    (0..).zip(cuts).map(stage).collect()
}

/// Returns a function that is true for stages that recompute selectively, by the settings or by the timetable.
pub(crate) fn is_selective(config: &Config, timetable: &Timetable) -> impl Fn(StageId) -> bool {
    move |stage| {
        let mut stages = timetable.selective.iter().map(|(_, stage)| *stage);
        config.recompute_of(stage) == Recompute::Selective
            || stages.any(|selective| selective == stage)
    }
}

/// Returns the stages that have parameters, all of which are frozen.
///
/// # Errors
/// If all parameters of all stages are frozen.
fn frozen_stages(params: &[Vec<Param>]) -> Result<Vec<StageId>> {
    let mut all = params.iter().flatten().peekable();
    ensure!(
        all.peek().is_none() || !all.all(|param| param.frozen),
        "freeze leaves nothing to train, or lora-targets names no linear layer of the blocks"
    );
    let is_frozen =
        |params: &[Param]| !params.is_empty() && params.iter().all(|param| param.frozen);
    let stages = (0..).map(StageId).zip(params);
    Ok(stages.filter(|(_, params)| is_frozen(params)).map(|(stage, _)| stage).collect())
}

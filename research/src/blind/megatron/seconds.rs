//! Seconds of a step of Megatron-LM. Small layers take as long as the host needs to launch them.

use anyhow::Result;
use chimera_core::analyze::{Link, simulate};
use chimera_core::costs::{StageCosts, UniformCosts};
use chimera_core::program::Program;
use chimera_device::Precision;
use chimera_plan::plan::{EFFICIENCIES, Hardware};

use super::bytes;
use super::run::{Recompute, Run};

/// The machine of all runs.
pub(super) struct Machine {
    /// Floating-point operations per second that training is assumed to reach.
    flops: f64,
    link: Link,
    /// Seconds in which the host launches one pass of a layer; fitted.
    pub(super) launch_s: f64,
}

impl Machine {
    /// A machine by its data sheet, whose host is not known yet.
    pub(super) fn h100() -> Result<Machine> {
        let sheet = Hardware::find("h100-sxm")?;
        let [_, middle, _] = EFFICIENCIES;
        let flops = sheet.peak_flops(Precision::Bf16)? * middle;
        let [link, _] = sheet.links();
        Ok(Machine { flops, link, launch_s: 0.0 })
    }

    /// Finds the time of a launch that makes a step as long as it was measured.
    pub(super) fn fit(&mut self, run: &Run, program: &Program, measured_s: f64) {
        let (mut low, mut high) = (0.0, measured_s);
        for _ in 0..60 {
            self.launch_s = f64::midpoint(low, high);
            if self.step_s(run, program) < measured_s {
                low = self.launch_s;
            } else {
                high = self.launch_s;
            }
        }
    }

    /// Returns the seconds of a step, without the optimizer's update. Reductions follow it.
    pub(super) fn step_s(&self, run: &Run, program: &Program) -> f64 {
        let boundary = run.precision.element * run.model.hidden as f64 * run.tokens();
        let message = self.link.alpha + self.link.beta * boundary;
        let again = if matches!(run.recompute, Recompute::Uniform(_) | Recompute::Block(_)) {
            1.0
        } else {
            0.0
        };
        let costs = |stage| {
            let (device, launch) = (flops(run, stage) / self.flops, self.launch(run, stage));
            let forward = device.max(launch);
            let backward = ((2.0 + again) * device).max((1.0 + again) * launch);
            UniformCosts::new(forward, backward, message)
        };
        let costs = StageCosts::new((0..run.n_stages()).map(costs).collect());
        simulate(program, &costs).makespan() + self.reduction_s(run)
    }

    /// A layer, the embedding and the head take one launch each.
    fn launch(&self, run: &Run, stage: usize) -> f64 {
        let ends = u8::from(stage == 0) + u8::from(stage + 1 == run.n_stages());
        self.launch_s * (run.blocks[stage] as f64 + f64::from(ends))
    }

    /// A ring over the replicas of the rank with the most weights.
    fn reduction_s(&self, run: &Run) -> f64 {
        let of_rank = |rank| {
            let stages = (rank..run.n_stages()).step_by(run.depth);
            stages.map(|stage| bytes::weights(run, stage)).sum::<f64>()
        };
        let most = (0..run.depth).map(of_rank).fold(0.0, f64::max) * run.precision.gradient;
        let n = run.width as f64;
        2.0 * (n - 1.0) * (self.link.alpha + self.link.beta * most / n)
    }
}

/// Floating-point operations of a forward. Flash attention leaves out what a causal mask hides.
fn flops(run: &Run, stage: usize) -> f64 {
    let model = &run.model;
    let (first, last) = (stage == 0, stage + 1 == run.n_stages());
    let table = (model.words * model.hidden) as f64;
    // A table of words is looked up, and multiplied only in the head.
    let looked_up = if first { table + (model.positions * model.hidden) as f64 } else { 0.0 };
    let head = if first && last && model.is_tied { table } else { 0.0 };
    let products = bytes::weights(run, stage) - looked_up + head;
    let seen = run.sequence as f64 * if run.kernels.is_flash && !model.is_bert { 0.5 } else { 1.0 };
    let attention = run.blocks[stage] as f64 * 4.0 * seen * (model.heads * model.channels) as f64;
    run.tokens() * (2.0 * products + attention)
}

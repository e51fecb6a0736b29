//! Validation of windows without a border between steps.
//!
//! In such a window a stage is updated before the norm of all gradients is known, as if nothing had
//! to be clipped and all were finite. At the end of the window all ranks know whether that was so.
//! If not, each goes back to the weights and optimizer state from before the window, and trains its
//! steps again, one by one, with a border. Weights, losses and norms are therefore always those of
//! steps with a border. (After the post-validation of Zero Bubble Pipeline Parallelism, ICLR 2024,
//! section 4, which validates each step and rolls one update back.)

use std::sync::Arc;

use chimera_schedule::program::Program;

use crate::comm::{Comm, Endpoint};
use crate::device::{Device, Result};
use crate::engine::rank::worker::{StepReport, Worker};
use crate::engine::report::timing::StepTimeline;
use crate::engine::state::held_stage::{Held, copy};
use crate::engine::state::rank_state::StageOn;
use crate::fault::Fault;

/// Fraction of the limit below which a norm is not clipped, whatever the rounding of sums.
const SURELY: f64 = 1.0 - 1e-9;

/// The tensors of a stage that updates overwrite.
struct Overwritten<T> {
    weights: Vec<T>,
    state: Vec<Option<Vec<T>>>,
}

/// Combines the report of a repeated step with that of the lost pass: time and idle time are those
/// of both passes, and bytes are those of the higher peak.
fn add_lost(report: &mut StepReport, lost: &StepReport) {
    let (again, both) = (report.step_s, report.step_s + lost.step_s);
    for (load, lost_load) in report.ranks.iter_mut().zip(&lost.ranks) {
        load.bytes = load.bytes.max(lost_load.bytes);
        if both > 0.0 {
            let idle = load.bubble_ratio * again + lost_load.bubble_ratio * lost.step_s;
            load.bubble_ratio = idle / both;
        }
    }
    (report.step_s, report.copy_s) = (both, report.copy_s + lost.copy_s);
}

impl<'j, S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'j, S, D, C> {
    /// Trains a window from step `first`, and again with a border if an update was wrong.
    pub(crate) fn run_validated(
        &mut self,
        first: u64,
        bordered: &'j Program,
    ) -> std::result::Result<Vec<StepReport>, Fault> {
        if self.validation.begin() {
            return self.run_bordered(first, bordered);
        }
        let rank = self.state.comm.rank();
        let kept = self.overwritten().map_err(|e| e.into_fault(rank))?;
        let (next, n_updates) = (self.next, self.state.steps.n_updates);
        let window = self.run_program(first)?;
        if window.is_empty() {
            return Ok(window);
        }
        let is_sound = self.state.sync.is_sound() && window.iter().all(|r| self.is_unclipped(r));
        if is_sound {
            self.validation.right();
            return Ok(window);
        }
        self.timeline()?; // kernels of this window do not belong to the steps that follow
        self.put_back(kept);
        (self.next, self.state.steps.n_updates) = (next, n_updates);
        self.validation.wrong();
        let mut reports = self.run_bordered(first, bordered)?;
        // The time of the window is added to that of the repeated steps.
        reports.iter_mut().zip(&window).for_each(|(report, lost)| add_lost(report, lost));
        Ok(reports)
    }

    fn run_bordered(
        &mut self,
        first: u64,
        bordered: &'j Program,
    ) -> std::result::Result<Vec<StepReport>, Fault> {
        let window = self.program();
        self.set_program(bordered)?;
        let mut reports = Vec::new();
        for step in first..first + u64::from(window.window().n_steps()) {
            let trained = self.run_program(step)?;
            let is_over = trained.last().is_none_or(|report| report.stop);
            if !trained.is_empty() {
                let (events, waits, kernels) = self.timeline()?;
                let (events, waits, kernels) = (events.to_vec(), waits.to_vec(), kernels.to_vec());
                self.bordered_steps.push(StepTimeline { events, waits, kernels });
            }
            reports.extend(trained);
            if is_over {
                break;
            }
        }
        self.set_program(window)?;
        for report in &mut reports {
            (report.is_bordered, report.n_repeated) = (true, self.validation.n_repeated());
        }
        Ok(reports)
    }

    /// The timeline of this rank in each step of the last run, if that was a window trained step by
    /// step with a border; empty after any other run. The [timeline](Worker::timeline) of the run
    /// then has only the last step.
    pub fn bordered_steps(&self) -> &[StepTimeline] {
        &self.bordered_steps
    }

    /// Returns true if a step's gradient needed no clipping.
    fn is_unclipped(&self, report: &StepReport) -> bool {
        let clip = self.state.job.training.clip;
        clip.is_none_or(|clip| report.grad_norm <= SURELY * clip)
    }

    /// Copies everything that the updates of a window overwrite.
    fn overwritten(&self) -> Result<Vec<Overwritten<D::Tensor>>> {
        let device = &self.state.device;
        let copies = |all: &[S::Tensor]| all.iter().map(|t| copy(device, t)).collect::<Result<_>>();
        let of_stage = |held: &Held<S>| {
            let state = held.state.iter().map(|kept| kept.as_deref().map(copies).transpose());
            Ok(Overwritten {
                weights: copies(&held.weights)?,
                state: state.collect::<Result<_>>()?,
            })
        };
        self.state.stages.iter().map(of_stage).collect()
    }

    fn put_back(&mut self, kept: Vec<Overwritten<D::Tensor>>) {
        for (held, Overwritten { weights, state }) in self.state.stages.iter_mut().zip(kept) {
            (held.weights, held.state) = (Arc::new(weights), state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::report::load::Load;
    use crate::engine::state::recoveries::Recoveries;

    fn report(step_s: f64, copy_s: f64, loads: [(f64, u64); 2]) -> StepReport {
        StepReport {
            step: 0,
            loss: 1.0,
            has_targets: true,
            grad_norm: 1.0,
            lr: 0.1,
            step_s,
            copy_s,
            ranks: loads
                .map(|(bubble_ratio, bytes)| Load { bubble_ratio, bytes, ..Load::default() })
                .to_vec(),
            validation_loss: None,
            skipped: None,
            n_skipped: 0,
            is_bordered: true,
            n_repeated: 1,
            recoveries: Recoveries::default(),
            stop: false,
        }
    }

    #[test]
    fn time_and_idle_time_are_of_the_same_passes() {
        let mut again = report(3.0, 0.5, [(0.5, 7), (0.0, 1)]);
        add_lost(&mut again, &report(1.0, 0.25, [(0.0, 2), (0.5, 9)]));
        assert_eq!(again, report(4.0, 0.75, [(0.375, 7), (0.125, 9)]));
        let mut instant = report(0.0, 0.0, [(0.5, 1), (0.5, 1)]);
        add_lost(&mut instant, &report(0.0, 0.0, [(0.0, 1), (0.0, 1)]));
        assert_eq!(instant.bubble_ratio(), 0.5, "no time has no other share");
    }
}

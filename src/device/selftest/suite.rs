//! The environment that all parts share, which collects their results.

use std::fmt;
use std::sync::mpsc::Sender;

use anyhow::Result;
use chimera_core::layers::Layers;
use chimera_testkit::equivalence::{TrialResult, TrialRun};

use super::report::{Check, Found, Measurement};
use super::size::Size;
use crate::device::Precision;

/// Largest relative difference of a loss from the loss on the CPU.
const LOSS_TOLERANCES: [(Precision, f64); 3] =
    [(Precision::F32, 1e-4), (Precision::Tf32, 1e-3), (Precision::Bf16, 1e-2)];

/// The environment of a part: its precision, its size, and the receiver of its results.
pub(super) struct Suite {
    pub(super) precision: Precision,
    pub(super) size: Size,
    pub(super) sender: Sender<Found>,
}

impl Suite {
    pub(super) fn check(&mut self, what: String, value: f64, limit: f64, at: String) {
        let what = format!("{what}, {}", self.precision);
        self.tell(Found::Check(Check::new(what, value, limit, at)));
    }

    pub(super) fn fail(&mut self, what: &str, reason: &dyn fmt::Display) {
        self.check(what.to_string(), f64::INFINITY, 0.0, reason.to_string());
    }

    pub(super) fn measure(&mut self, what: &str, value: f64, unit: &'static str) {
        let what = format!("{what}, {}", self.precision);
        self.tell(Found::Measurement(Measurement { what, value, unit }));
    }

    pub(super) fn note(&mut self, note: &str) {
        self.tell(Found::Note(note.to_string()));
    }

    fn tell(&self, found: Found) {
        let heard = self.sender.send(found);
        let _ = heard; // no receiver is left if the part took too long
    }

    pub(super) fn done(&mut self, done: Result<()>) {
        if let Err(e) = done {
            self.fail("devices", &e);
        }
    }

    /// Checks that losses match the expected ones.
    pub(super) fn compare(&mut self, what: String, got: &[f64], expected: &[f64]) {
        let limit = LOSS_TOLERANCES.into_iter().find(|(p, _)| *p == self.precision);
        let limit = limit.map_or(0.0, |(_, limit)| limit);
        // A NaN loss is never the maximum, but must not pass.
        let is_whole = got.len() == expected.len() && got.iter().all(|loss| loss.is_finite());
        let errors = got.iter().zip(expected).map(|(a, b)| ((a - b) / b).abs());
        let worst = if is_whole { errors.fold(0.0, f64::max) } else { f64::INFINITY };
        self.check(what, worst, limit, format!("{got:?} instead of {expected:?}"));
    }

    /// Returns the losses of a run; a run that fails becomes a failed check.
    pub(super) fn train<K: Layers>(
        &mut self,
        what: &str,
        run: &TrialRun,
        by_rank: &[K],
    ) -> Option<TrialResult> {
        let trained = run.train(|rank| Ok(by_rank[rank.index() % by_rank.len()].clone()));
        trained.map_err(|e| self.fail(what, &e)).ok()
    }
}

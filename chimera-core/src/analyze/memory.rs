//! How many micro-batches' residuals each worker holds.

use crate::effects::{Rules, Token, TokenKind};
use crate::ids::WorkerId;
use crate::op::Cell;
use crate::placement::Placement;

/// Counts residuals, worker by worker, as cells run.
///
/// The unit is one micro-batch through all stages that a worker holds of one pipe: with `v` stages of a
/// pipe on a worker each counts `1/v`. Deferred weight work counts like the residuals it came from.
#[derive(Clone, Debug)]
pub(crate) struct Residuals {
    /// By worker and pipe: what one unit of one stage counts.
    weights: Vec<Vec<f64>>,
    held: Vec<f64>,
    peaks: Vec<f64>,
}

impl Residuals {
    pub(crate) fn new(placement: &Placement, units_per_micro: u32) -> Residuals {
        let n_workers = placement.n_workers();
        let mut weights = vec![vec![0.0; placement.n_pipes()]; n_workers];
        for (p, pipe) in placement.pipes().iter().enumerate() {
            for worker in pipe {
                weights[worker.index()][p] += f64::from(units_per_micro);
            }
        }
        weights.iter_mut().flatten().for_each(|n| *n = 1.0 / *n);
        Residuals { weights, held: vec![0.0; n_workers], peaks: vec![0.0; n_workers] }
    }

    /// Counts one cell and returns the most that are held meanwhile. What it makes is there before what
    /// it eats is freed, but the halves of a split backward hand the same residuals on.
    pub(crate) fn run(&mut self, worker: WorkerId, cell: &Cell, rules: &Rules) -> f64 {
        let (more, less) = self.change(worker, cell, rules);
        let (held, peak) = (&mut self.held[worker.index()], &mut self.peaks[worker.index()]);
        let meanwhile = *held + more;
        *peak = peak.max(meanwhile);
        *held = meanwhile - less;
        meanwhile
    }

    /// What a cell adds while it runs, and what it frees at its end.
    pub(crate) fn change(&self, worker: WorkerId, cell: &Cell, rules: &Rules) -> (f64, f64) {
        let weights = &self.weights[worker.index()];
        let count = |tokens: &[Token]| {
            let residuals =
                tokens.iter().filter(|t| matches!(t.kind, TokenKind::Saved | TokenKind::Deferred));
            residuals.map(|t| weights[t.pipe.index()]).sum::<f64>()
        };
        let (mut more, mut less) = (0.0, 0.0);
        for op in cell.ops() {
            let effects = rules.effects(&op);
            let change = count(&effects.makes) - count(&effects.eats);
            if change > 0.0 { more += change } else { less -= change }
        }
        (more, less)
    }

    /// The most each worker held so far, rounded to a millionth (shares such as 1/3 do not add up).
    pub(crate) fn peaks(&self) -> Vec<f64> {
        self.peaks.iter().map(|p| (p * 1e6).round() / 1e6).collect()
    }
}

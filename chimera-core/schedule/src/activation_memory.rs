//! Activation memory: the values that each worker holds for later backwards.

use rustc_hash::FxHashMap;

use crate::effects::{Effects, Rules, Token, TokenKind};
use crate::ir::ids::{PipeId, WorkerId};
use crate::ir::op::{Cell, Op};
use crate::ir::placement::Placement;

/// Kinds of tokens that hold saved activations.
const SAVED: [TokenKind; 4] =
    [TokenKind::Saved, TokenKind::Deferred, TokenKind::Reloaded, TokenKind::Guest];

/// Counts saved activations, worker by worker, as cells run.
///
/// The unit is one micro-batch through all stages that a worker holds of one pipe: with `v` stages
/// of a pipe on a worker each counts `1/v`, also where fewer workers hold more stages since others
/// are dead. Deferred weight work counts like the saved activations it came from; what a forward
/// keeps for a recomputation is counted apart.
#[derive(Clone, Debug)]
pub(crate) struct ActivationMemory {
    /// By worker: its pipes in order, each with the amount that one unit on one stage adds.
    weights: Vec<Vec<(PipeId, f64)>>,
    placement: Placement,
    held: HeldMemory,
}

impl ActivationMemory {
    pub(crate) fn new(placement: &Placement, units_per_micro: u32) -> ActivationMemory {
        let n_workers = placement.n_workers();
        let mut held: Vec<FxHashMap<PipeId, usize>> = vec![FxHashMap::default(); n_workers];
        for (p, pipe) in (0..).map(PipeId).zip(placement.pipes()) {
            for worker in pipe {
                *held[worker.index()].entry(p).or_default() += 1;
            }
        }
        let weight = |n_held| 1.0 / (placement.counted(n_held) as f64 * f64::from(units_per_micro));
        let sorted = |held: FxHashMap<PipeId, usize>| {
            let mut weights: Vec<_> =
                held.into_iter().map(|(pipe, n_held)| (pipe, weight(n_held))).collect();
            weights.sort_unstable_by_key(|(pipe, _)| *pipe);
            weights
        };
        let weights = held.into_iter().map(sorted).collect();
        ActivationMemory { weights, placement: placement.clone(), held: HeldMemory::new(n_workers) }
    }

    /// The amount that a cell adds while it runs, and the amount that it frees at its end.
    pub(crate) fn change(&self, worker: WorkerId, cell: &Cell, rules: &Rules) -> (f64, f64) {
        self.count(worker, cell, rules, &SAVED)
    }

    /// Like [`change`](Self::change), for what forwards keep for recomputations, in micro-batches.
    pub(crate) fn kept_change(&self, worker: WorkerId, cell: &Cell, rules: &Rules) -> (f64, f64) {
        self.count(worker, cell, rules, &[TokenKind::Kept])
    }

    /// The change in deferred weight work that a cell causes.
    pub(crate) fn deferred_change(&self, worker: WorkerId, cell: &Cell, rules: &Rules) -> f64 {
        let (more, less) = self.count(worker, cell, rules, &[TokenKind::Deferred]);
        more - less
    }

    /// The amount that the saved activations of a move count.
    pub(crate) fn moved(&self, op: &Op) -> f64 {
        let Op { pipe, stage, span, .. } = *op;
        let token = Token { kind: TokenKind::Guest, pipe, stage, to: stage, span };
        self.size(self.placement.worker(pipe, stage), &token, &SAVED) * f64::from(span.len)
    }

    fn count(
        &self,
        worker: WorkerId,
        cell: &Cell,
        rules: &Rules,
        kinds: &[TokenKind],
    ) -> (f64, f64) {
        change(cell, rules, |token| self.size(worker, token, kinds))
    }

    /// The amount that a token counts, if it is one of these kinds.
    fn size(&self, worker: WorkerId, token: &Token, kinds: &[TokenKind]) -> f64 {
        if !kinds.contains(&token.kind) {
            return 0.0;
        }
        // Activations kept for another worker count as much as they do there.
        let worker = match token.kind {
            TokenKind::Guest => self.placement.worker(token.pipe, token.stage),
            _ => worker,
        };
        let weights = &self.weights[worker.index()];
        let at = weights.binary_search_by_key(&token.pipe, |(pipe, _)| *pipe);
        at.map_or(0.0, |at| weights[at].1)
    }

    /// Counts one cell, which has these `effects`, and returns the most that are held meanwhile.
    pub(crate) fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        rules: &Rules,
    ) -> f64 {
        let change = match cell {
            Cell::One(_) => {
                let size = |token: &Token| self.size(worker, token, &SAVED);
                split(net(effects, size))
            }
            Cell::Pair(..) => self.change(worker, cell, rules),
        };
        self.held.run(worker, change)
    }

    /// The most each worker held so far, rounded to a millionth, see [`ROUNDING`].
    pub(crate) fn peaks(&self) -> Vec<f64> {
        self.held.peaks.iter().copied().map(rounded).collect()
    }
}

/// A share, rounded to a millionth, see [`ROUNDING`].
pub(crate) fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

/// Rounding error of sums of shares: shares such as 1/3 do not add up.
pub(crate) const ROUNDING: f64 = 1e-6;

/// Returns true if `held` is no more than a limit, up to rounding.
pub(crate) fn is_within(held: f64, limit: Option<f64>) -> bool {
    limit.is_none_or(|limit| held <= limit + ROUNDING)
}

/// The amounts that a cell adds and frees. The results of an op exist before its inputs are freed,
/// except that the halves of a split backward pass the same saved activations on.
pub(crate) fn change(cell: &Cell, rules: &Rules, size: impl Fn(&Token) -> f64) -> (f64, f64) {
    let of_ops = cell.ops().map(|op| split(net(&rules.effects(&op), &size)));
    of_ops.fold((0.0, 0.0), |(more, less), (adds, frees)| (more + adds, less + frees))
}

/// The amount by which an op's end leaves more than its start.
fn net(effects: &Effects, size: impl Fn(&Token) -> f64) -> f64 {
    let count = |tokens: &[Token]| tokens.iter().map(&size).sum::<f64>();
    count(&effects.makes) - count(&effects.eats)
}

/// Splits a net change into what is added and what is freed.
fn split(net: f64) -> (f64, f64) {
    (net.max(0.0), (-net).max(0.0))
}

/// The amount that each worker holds, and the most that it has held.
#[derive(Clone, Debug)]
pub(crate) struct HeldMemory {
    now: Vec<f64>,
    pub(crate) peaks: Vec<f64>,
}

impl HeldMemory {
    pub(crate) fn new(n_workers: usize) -> HeldMemory {
        HeldMemory { now: vec![0.0; n_workers], peaks: vec![0.0; n_workers] }
    }

    /// Adds, records the peak, and frees. Returns the amount held in between.
    pub(crate) fn run(&mut self, worker: WorkerId, (more, less): (f64, f64)) -> f64 {
        let (now, peak) = (&mut self.now[worker.index()], &mut self.peaks[worker.index()]);
        let meanwhile = *now + more;
        *peak = peak.max(meanwhile);
        *now = meanwhile - less;
        meanwhile
    }
}

//! How much memory each worker needs for backwards to come, and while an op runs.

use crate::effects::{Rules, Token, TokenKind};
use crate::ids::WorkerId;
use crate::lower::{Instr, Program};
use crate::op::{Cell, Kind, Op};
use crate::residuals::{Held, Residuals, change, rounded};

/// Bytes of what one sample leaves at a stage, and of what its ops use while they run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageBytes {
    /// Residuals.
    pub saved: f64,
    /// The part of them that selective recomputation keeps.
    pub selected: f64,
    /// The input, which full recomputation keeps. None of the first stage: its ids come with the micro-batch.
    pub input: f64,
    /// What the weight half of a backward needs of its input half.
    pub deferred: f64,
    /// What the forward makes: the next stage's input, or the gradient that the loss begins with.
    pub output: f64,
    /// What the backward makes: the gradient of the input.
    pub gradient: f64,
    /// By kind of op: the most that is used at once while it runs, beyond what was there before.
    pub forward: f64,
    /// As `forward`.
    pub recompute: f64,
    /// As `forward`, of a recomputation from selected residuals.
    pub restore: f64,
    /// As `forward`.
    pub backward: f64,
    /// As `forward`.
    pub backward_input: f64,
    /// As `forward`.
    pub backward_weight: f64,
}

impl StageBytes {
    /// Of what is kept of a sample for a recomputation.
    fn kept(&self, rules: &Rules, token: &Token) -> f64 {
        if rules.is_selective(token.pipe, token.stage) { self.selected } else { self.input }
    }

    /// While an op on some units runs, of which each has so many samples.
    fn working(&self, rules: &Rules, op: &Op, samples: f64) -> f64 {
        let (unit, left) = match op.kind {
            // All units at once.
            Kind::Forward => return self.forward * samples * f64::from(op.span.len),
            Kind::Recompute if rules.is_selective(op.pipe, op.stage) => {
                (self.restore, self.saved - self.selected)
            }
            Kind::Recompute => (self.recompute, self.saved - self.input),
            Kind::Backward => (self.backward, 0.0),
            Kind::BackwardInput => (self.backward_input, self.deferred - self.saved),
            Kind::BackwardWeight => (self.backward_weight, 0.0),
        };
        // One unit after another, on top of what those before left.
        (unit + left.max(0.0) * f64::from(op.span.len.saturating_sub(1))) * samples
    }
}

/// The most bytes that each worker of `program` holds at once of kept values (residuals, kept inputs, deferred
/// weight work), where a unit of a micro-batch has so many samples.
pub fn peak_bytes(program: &Program, stages: &[StageBytes], samples: f64) -> Vec<f64> {
    let size = |token: &Token| match token.kind {
        TokenKind::Activation | TokenKind::Gradient | TokenKind::Version => 0.0,
        TokenKind::Saved | TokenKind::Kept | TokenKind::Deferred => {
            token_bytes(program.rules(), stages, samples, token)
        }
    };
    most_held(program, |_, cell| change(cell, program.rules(), size))
}

/// The most bytes that each worker of `program` uses at once: kept values, activations and gradients until the next
/// op takes them or they are sent, and what an op uses while it runs. Messages under way are not counted.
pub fn peak_working_bytes(program: &Program, stages: &[StageBytes], samples: f64) -> Vec<f64> {
    let rules = program.rules();
    let size = |token: &Token| token_bytes(rules, stages, samples, token);
    let peak = |row: &Vec<Instr>| {
        let (mut now, mut peak) = (0.0f64, 0.0f64);
        for instr in row {
            match instr {
                Instr::Run(cell) => {
                    for op in cell.ops() {
                        peak =
                            peak.max(now + stages[op.stage.index()].working(rules, &op, samples));
                        let effects = rules.effects(&op);
                        now += effects.makes.iter().map(size).sum::<f64>();
                        now -= effects.eats.iter().map(size).sum::<f64>();
                    }
                }
                Instr::Send(token, _) => now -= size(token),
                Instr::Recv(token, _) => now += size(token),
                _ => {}
            }
            peak = peak.max(now);
        }
        peak
    };
    program.rows().iter().map(peak).collect()
}

fn token_bytes(rules: &Rules, stages: &[StageBytes], samples: f64, token: &Token) -> f64 {
    let stage = stages.get(token.stage.index()).copied().unwrap_or_default();
    let sample = match token.kind {
        TokenKind::Activation => stage.output,
        // That of the stage behind the last is the loss's own.
        TokenKind::Gradient if token.stage.index() == stages.len() => {
            stages.last().map_or(0.0, |last| last.output)
        }
        TokenKind::Gradient => stage.gradient,
        TokenKind::Saved => stage.saved,
        TokenKind::Kept => stage.kept(rules, token),
        TokenKind::Deferred => stage.deferred,
        TokenKind::Version => 0.0,
    };
    sample * samples * f64::from(token.span.len)
}

/// The most micro-batches of which each worker of `program` holds at once what forwards keep for
/// recomputations, counted like residuals: with `v` stages of a pipe on a worker each counts `1/v`.
pub fn peak_kept(program: &Program) -> Vec<f64> {
    let residuals = Residuals::new(program.placement(), program.units_per_micro());
    let kept = |worker, cell: &Cell| residuals.kept_change(worker, cell, program.rules());
    most_held(program, kept).into_iter().map(rounded).collect()
}

/// The most that each worker holds, where `change` says what a cell adds and frees.
fn most_held(program: &Program, change: impl Fn(WorkerId, &Cell) -> (f64, f64)) -> Vec<f64> {
    let mut held = Held::new(program.rows().len());
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        for instr in row {
            if let Instr::Run(cell) = instr {
                held.run(worker, change(worker, cell));
            }
        }
    }
    held.peaks
}

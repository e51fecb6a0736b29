//! Memory of each worker: for later backwards, and while an op runs.

use crate::activation_memory::{ActivationMemory, HeldMemory, change, rounded};
use crate::costs::StageBytes;
use crate::effects::{Rules, Token, TokenKind};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Op};
use crate::program::{Instr, Program};

/// The most bytes of kept values (saved activations, checkpointed inputs, deferred weight work)
/// that each worker of `program` holds at once, with `samples` samples in a unit of a micro-batch.
pub fn peak_bytes(program: &Program, stages: &[StageBytes], samples: f64) -> Vec<f64> {
    most_held(program, |_, cell| kept_bytes_change(program, stages, samples, cell))
}

/// The bytes of kept values that a cell adds while it runs, and frees at its end.
pub(crate) fn kept_bytes_change(
    program: &Program,
    stages: &[StageBytes],
    samples: f64,
    cell: &Cell,
) -> (f64, f64) {
    let size = |token: &Token| match token.kind {
        TokenKind::Activation
        | TokenKind::Gradient
        | TokenKind::Version
        | TokenKind::RecomputedVersion
        | TokenKind::Past
        | TokenKind::PastGradient
        | TokenKind::Away
        | TokenKind::Back
        | TokenKind::Memory(..)
        | TokenKind::Shown(_) => 0.0,
        TokenKind::Saved
        | TokenKind::Kept
        | TokenKind::Deferred
        | TokenKind::Guest
        | TokenKind::Reloaded => token_bytes(program.rules(), stages, samples, token),
    };
    change(cell, program.rules(), size)
}

/// The bytes of the saved activations that a move moves.
pub(crate) fn saved_bytes(program: &Program, stages: &[StageBytes], samples: f64, op: &Op) -> f64 {
    let saved = stages.get(op.stage.index()).map_or(0.0, |stage| stage.saved);
    saved * samples * f64::from(op.span.len) * f64::from(u8::from(program.rules().is_transfer(op)))
}

/// The most bytes that each worker of `program` uses at once: kept values, activations and
/// gradients until the next op takes them or they are sent, and working memory of ops. Messages in
/// flight are not counted.
pub fn peak_working_bytes(program: &Program, stages: &[StageBytes], samples: f64) -> Vec<f64> {
    let peak = |row: &Vec<Instr>| {
        let mut peak = 0.0f64;
        for_used(program, row, (stages, samples), |_, used| peak = peak.max(used));
        peak
    };
    program.rows().iter().map(peak).collect()
}

/// A moment in a row.
pub(crate) enum Moment<'r> {
    /// While an op runs.
    During(&'r Op),
    /// After an instruction.
    After(&'r Instr),
}

/// Calls `visit` with each moment of a row and the bytes in use then, as [`peak_working_bytes`]
/// counts them.
pub(crate) fn for_used(
    program: &Program,
    row: &[Instr],
    (stages, samples): (&[StageBytes], f64),
    mut visit: impl FnMut(Moment<'_>, f64),
) {
    let rules = program.rules();
    let size = |token: &Token| token_bytes(rules, stages, samples, token);
    let mut used = 0.0f64;
    for instr in row {
        match instr {
            Instr::Run(cell) => {
                for op in cell.ops() {
                    let working = stages[op.stage.index()].working(rules, &op, samples);
                    visit(Moment::During(&op), used + working);
                    let effects = rules.effects(&op);
                    used += effects.makes.iter().map(size).sum::<f64>();
                    used -= effects.eats.iter().map(size).sum::<f64>();
                }
            }
            Instr::Send(token, _) => used -= size(token),
            Instr::Recv(token, _) => used += size(token),
            _ => {}
        }
        visit(Moment::After(instr), used);
    }
}

/// The bytes of a token, with `samples` samples in a unit of a micro-batch.
pub(crate) fn token_bytes(
    rules: &Rules,
    stages: &[StageBytes],
    samples: f64,
    token: &Token,
) -> f64 {
    let stage = stages.get(token.stage.index()).copied().unwrap_or_default();
    let sample = match token.kind {
        TokenKind::Activation => stage.output,
        // With several inputs, a gradient is as large as its activation; a loss's gradient has a
        // size of its own.
        TokenKind::Gradient if rules.graph().inputs(token.stage).len() != 1 => {
            stages.get(token.to.index()).map_or(0.0, |made| made.output)
        }
        TokenKind::Gradient => stage.gradient,
        TokenKind::Saved | TokenKind::Guest | TokenKind::Reloaded => stage.saved,
        TokenKind::Kept => stage.kept(rules, token),
        TokenKind::Deferred => stage.deferred,
        // Values left by earlier slices are part of what they saved or keep.
        TokenKind::Version | TokenKind::RecomputedVersion | TokenKind::Past => 0.0,
        // Activations in transit count at their source until they have left, and then at their
        // destination.
        TokenKind::Away | TokenKind::Back | TokenKind::Memory(..) | TokenKind::Shown(_) => 0.0,
        // The values of its own slice and of all before it.
        TokenKind::PastGradient => stage.past * f64::from(token.span.start % rules.n_slices() + 1),
    };
    sample * samples * f64::from(token.span.len)
}

/// The most checkpointed inputs that each worker of `program` holds at once, in micro-batches. They
/// count like saved activations: with `v` stages of a pipe on a worker each counts `1/v`.
pub fn peak_kept(program: &Program) -> Vec<f64> {
    let activations = ActivationMemory::new(program.placement(), program.units_per_micro());
    let kept = |worker, cell: &Cell| activations.kept_change(worker, cell, program.rules());
    most_held(program, kept).into_iter().map(rounded).collect()
}

/// The peak of each worker, where `change` returns the amounts that a cell adds and frees.
fn most_held(program: &Program, change: impl Fn(WorkerId, &Cell) -> (f64, f64)) -> Vec<f64> {
    let mut held = HeldMemory::new(program.rows().len());
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        for instr in row {
            if let Instr::Run(cell) = instr {
                held.run(worker, change(worker, cell));
            }
        }
    }
    held.peaks
}

//! How much memory each worker needs for backwards to come.

use crate::effects::{Token, TokenKind};
use crate::ids::WorkerId;
use crate::lower::{Instr, Program};
use crate::residuals::{Held, Residuals, change, rounded};

/// The most bytes of kept values (residuals, kept inputs, deferred weight work) that each worker of
/// `program` holds at once, where `bytes` says how much a token carries.
pub fn peak_bytes(program: &Program, bytes: impl Fn(WorkerId, &Token) -> f64) -> Vec<f64> {
    let mut held = Held::new(program.rows().len());
    for (w, row) in program.rows().iter().enumerate() {
        let worker = WorkerId(w as u16);
        let size = |token: &Token| match token.kind {
            TokenKind::Activation | TokenKind::Gradient | TokenKind::Version => 0.0,
            TokenKind::Saved | TokenKind::Kept | TokenKind::Deferred => bytes(worker, token),
        };
        for instr in row {
            if let Instr::Run(cell) = instr {
                held.run(worker, change(cell, program.rules(), size));
            }
        }
    }
    held.peaks
}

/// The most micro-batches of which each worker of `program` holds at once what forwards keep for
/// recomputations, counted like residuals: with `v` stages of a pipe on a worker each counts `1/v`.
pub fn peak_kept(program: &Program) -> Vec<f64> {
    let residuals = Residuals::new(program.placement(), program.units_per_micro());
    let mut held = Held::new(program.rows().len());
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        for instr in row {
            if let Instr::Run(cell) = instr {
                held.run(worker, residuals.kept_change(worker, cell, program.rules()));
            }
        }
    }
    held.peaks.into_iter().map(rounded).collect()
}

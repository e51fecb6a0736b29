//! A program as CSV that PyTorch's pipelining runtime loads with `_load_csv(path, format="compute_comms")` (torch 2.15).
//!
//! ```text
//! 0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_SEND_F0
//! 1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0
//! ```
//!
//! PyTorch's messages have no tags: what two ranks exchange arrives in the order in which it was sent. So messages stand
//! in the program's one order, which PyTorch's own lowering of `compute_only` does not know. A reduction is waited for
//! before the next one begins, as PyTorch asks. Updates are left to whoever calls the runtime.

use super::{Inexpressible, action};
use crate::analyze::rows_in_one_order;
use crate::effects::{Token, TokenKind};
use crate::ids::StageId;
use crate::op::Cell;
use crate::program::{Instr, Program};
use crate::update::Update;

/// The program's rows of actions, messages among them.
///
/// # Errors
/// If it has several pipes, of which PyTorch knows one, has an op that the CSV cannot say, or no one order.
pub fn to_comms_csv(program: &Program) -> Result<String, Inexpressible> {
    let refuse =
        |reason: String| Inexpressible { schedule: program.schedule().to_string(), reason };
    if program.placement().n_pipes() > 1 {
        let reason = "a stage is on several ranks, and PyTorch's runtime wants it on one";
        return Err(refuse(reason.into()));
    }
    if program.units_per_micro() > 1 {
        let reason = format!("its micro-batches are cut into {}", program.units_per_micro());
        return Err(refuse(reason));
    }
    if program.window().update() != Update::Flush {
        return Err(refuse("it updates weights while micro-batches are on their way".into()));
    }
    let rows = rows_in_one_order(program).map_err(|refusal| refuse(refusal.reason.to_string()))?;
    let mut csv = String::new();
    for row in rows {
        csv.push_str(&actions(program, &row).map_err(&refuse)?.join(","));
        csv.push('\n');
    }
    Ok(csv)
}

/// The actions of a row. A send is waited for before the next one, and at the end of the row.
fn actions(program: &Program, row: &[Instr]) -> Result<Vec<String>, String> {
    let mut actions = Vec::with_capacity(row.len());
    let (mut sent, mut reduced): (Option<Token>, Option<StageId>) = (None, None);
    let wait = |stage: StageId| format!("{}WAIT_REDUCE_GRAD", stage.0);
    let message = |token: &Token, what: &str| {
        let stage = match (token.kind, what) {
            (TokenKind::Activation, "RECV") => token.stage.0 + 1,
            (TokenKind::Gradient, "RECV") => token.stage.0.saturating_sub(1),
            _ => token.stage.0,
        };
        let direction = if token.kind == TokenKind::Activation { 'F' } else { 'B' };
        format!("{stage}{what}_{direction}{}", token.span.start)
    };
    for instr in row {
        match instr {
            Instr::Run(Cell::One(op)) => actions.push(action::write(*op, op.span.start)?),
            Instr::Run(Cell::Pair(a, b)) => {
                actions.push(action::write_pair([a, b].map(|op| (*op, op.span.start)))?);
            }
            Instr::Send(token, _) => {
                actions.extend(sent.replace(*token).map(|token| message(&token, "WAIT_SEND")));
                actions.push(message(token, "SEND"));
            }
            Instr::Recv(token, _) => actions.push(message(token, "RECV")),
            Instr::Reduce(bucket) => {
                // Tied tensors are the caller's to sum.
                if let [stage] = program.buckets()[bucket.index()].stages[..] {
                    actions.extend(reduced.replace(stage).map(wait));
                    actions.push(format!("{}REDUCE_GRAD", stage.0));
                }
            }
            Instr::Await(_) | Instr::Agree | Instr::Step(_) => {
                actions.extend(reduced.take().map(wait));
            }
        }
    }
    actions.extend(sent.map(|token| message(&token, "WAIT_SEND")));
    Ok(actions)
}

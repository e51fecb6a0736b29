//! A program as CSV that PyTorch's pipelining runtime executes (`compute_comms`, torch 2.15).
//!
//! ```text
//! 0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_SEND_F0
//! 1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0
//! ```
//!
//! PyTorch wants each stage on one rank. So the file numbers *virtual stages*: stage `s` of pipe
//! `p` is `p * S + s` in a program of `S` stages, and each replica of a stage has another number.
//! Micro-batches keep their ids, and go through the virtual stages of their pipe. With one pipe,
//! virtual stages are the stages, and `_load_csv(path, format="compute_comms")` accepts the file.
//! With several pipes it does not, since it expects every micro-batch in every stage and knows one
//! first and one last stage; `chimera_pipeline.torch.pytorch_runtime` does what is missing.
//!
//! PyTorch's messages have no tags: messages between two ranks arrive in the order in which they
//! were sent. So messages stand in the program's one order, which PyTorch's own lowering of
//! `compute_only` does not know. A reduction ends before the next one begins, as PyTorch requires.
//! If a rank holds a stage in several pipes, its reduction has the number of the first. The caller
//! of the runtime is responsible for sums over replicas and for updates.

use super::action::{self, Action};
use super::{Inexpressible, is_chain};
use crate::analyze::rows_in_one_order;
use crate::effects::{Token, TokenKind};
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::Op;
use crate::ir::placement::Placement;
use crate::ir::update::Update;
use crate::program::{Instr, Program};

/// The program's rows of actions, messages among them.
///
/// # Errors
/// If its stages are not a chain, if it has an op that the CSV cannot express, if it updates
/// weights while micro-batches are on their way, or if it has no one order.
pub fn to_comms_csv(program: &Program) -> Result<String, Inexpressible> {
    let refuse =
        |reason: String| Inexpressible { schedule: program.schedule().to_string(), reason };
    if program.units_per_micro() > 1 {
        let reason = format!("its micro-batches are cut into {}", program.units_per_micro());
        return Err(refuse(reason));
    }
    if program.window().update() != Update::Flush {
        return Err(refuse("it updates weights while micro-batches are on their way".into()));
    }
    is_chain(program.rules().graph()).map_err(&refuse)?;
    let rows = rows_in_one_order(program).map_err(|refusal| refuse(refusal.reason.to_string()))?;
    let mut csv = String::new();
    for (worker, row) in (0..).map(WorkerId).zip(rows) {
        csv.push_str(&actions(program, worker, &row).map_err(&refuse)?.join(","));
        csv.push('\n');
    }
    Ok(csv)
}

/// The number of a stage of a pipe in the file.
fn virtual_stage(placement: &Placement, pipe: PipeId, stage: StageId) -> usize {
    pipe.index() * placement.n_stages() + stage.index()
}

/// The actions of a row. The row waits for each send before the next one, and at its end.
fn actions(program: &Program, worker: WorkerId, row: &[Instr]) -> Result<Vec<String>, String> {
    let placement = program.placement();
    let mut actions = Vec::with_capacity(row.len());
    let (mut sent, mut reduced): (Option<Token>, Option<usize>) = (None, None);
    let wait = |stage: usize| format!("{stage}WAIT_REDUCE_GRAD");
    let message = |token: &Token, what: &str| {
        let made = virtual_stage(placement, token.pipe, token.stage);
        let stage = match (token.kind, what) {
            (TokenKind::Activation, "RECV") => made + 1,
            (TokenKind::Gradient, "RECV") => made.saturating_sub(1),
            _ => made,
        };
        let direction = if token.kind == TokenKind::Activation { 'F' } else { 'B' };
        match token.span.len {
            1 => Ok(format!("{stage}{what}_{direction}{}", token.span.start)),
            _ => Err(format!("{token} is of several micro-batches at once")),
        }
    };
    let action_of = |op: Op| Action {
        op,
        stage: virtual_stage(placement, op.pipe, op.stage),
        micro_batch: op.span.start,
    };
    for instr in row {
        match instr {
            Instr::Run(cell) => actions.push(action::write(cell, action_of)?),
            Instr::Send(token, _) => {
                if let Some(last) = sent.replace(*token) {
                    actions.push(message(&last, "WAIT_SEND")?);
                }
                actions.push(message(token, "SEND")?);
            }
            Instr::Recv(token, _) => actions.push(message(token, "RECV")?),
            // Moves have been refused.
            Instr::Give(_) | Instr::Take(_) | Instr::Shard(_) => {}
            instr => {
                let Some(bucket) = instr.reduced() else {
                    actions.extend(reduced.take().map(wait));
                    continue;
                };
                // The caller sums tied tensors.
                if let [stage] = program.buckets()[bucket.index()].stages[..] {
                    let mut pipes = (0..placement.n_pipes()).map(|pipe| PipeId(pipe as u16));
                    let holds = |pipe: &PipeId| placement.worker(*pipe, stage) == worker;
                    if let Some(pipe) = pipes.find(holds) {
                        let stage = virtual_stage(placement, pipe, stage);
                        actions.extend(reduced.replace(stage).map(wait));
                        actions.push(format!("{stage}REDUCE_GRAD"));
                    }
                }
            }
        }
    }
    if let Some(last) = sent {
        actions.push(message(&last, "WAIT_SEND")?);
    }
    Ok(actions)
}

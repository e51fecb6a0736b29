//! A timetable as CSV that PyTorch's pipelining runtime loads with `_load_csv(path,
//! format="compute_only")` (torch 2.6 to 2.15).
//!
//! ```text
//! 0F0,0F1,0B0,0B1
//! 1F0,1B0,1F1,1B1
//! ```
//!
//! Row `i` has the actions of rank `i`. A cell is an action, `STAGE TYPE MICROBATCH` without
//! separators, or empty, which means idle and is ignored. Types are `F`, `B`, and `I` and `W` for
//! the halves of `B`. A pair is `(0F3;7B1)OVERLAP_F_B`. The number of stages and of micro-batches
//! follow from the actions.
//!
//! A stage is on exactly one rank, so a file holds one pipe: a bidirectional schedule has one file
//! per direction. The format cannot express ops on several micro-batches at once or on parts of
//! them, recomputation, and stages that are not a chain. A program's file ([`to_comms_csv`]) holds
//! all pipes, as virtual stages. A file with messages is read too: they must be those that
//! lowering makes of its ops, in an order that neither hangs nor crosses.

mod action;
mod comms;
mod entry;
mod letters;
mod messages;
mod place;
mod read;

pub use comms::to_comms_csv;
pub use read::from_csv;

use self::action::Action;
use crate::ir::graph::StageGraph;
use crate::ir::ids::{PipeId, WorkerId};
use crate::ir::op::{Cell, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

/// A timetable that cannot be written as CSV.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{schedule} cannot be written as PyTorch's CSV: {reason}; JSON holds every timetable")]
pub struct Inexpressible {
    /// Name of the schedule.
    pub schedule: String,
    /// The part of the timetable that CSV cannot express.
    pub reason: String,
}

/// The pipe `pipe` of a timetable, its micro-batches counted from 0 in order of their ids. A pair
/// of ops of two pipes is written as the op of `pipe` only.
///
/// # Errors
/// If the pipe does not exist or is empty, or has an op that the CSV cannot express.
pub fn to_csv(timetable: &Timetable, pipe: PipeId) -> Result<String, Inexpressible> {
    let refuse = |reason: String| Inexpressible { schedule: timetable.schedule.clone(), reason };
    if timetable.units_per_micro > 1 {
        let reason = format!("its micro-batches are cut into {}", timetable.units_per_micro);
        return Err(refuse(reason));
    }
    if timetable.update != Update::Flush {
        return Err(refuse("it updates weights while micro-batches are on their way".into()));
    }
    is_chain(&timetable.graph).map_err(&refuse)?;
    let ids = micro_batches(timetable, pipe);
    if ids.is_empty() {
        return Err(refuse(format!("no micro-batch goes through {pipe}")));
    }
    let number = |op: Op| ids.binary_search(&op.span.start).map_or(op.span.start, |at| at as u32);
    let action_of = |op: Op| Action { op, stage: op.stage.index(), micro_batch: number(op) };
    let mut csv = String::new();
    for (worker, row) in timetable.rows.iter().enumerate() {
        let mut actions = Vec::new();
        for cell in row {
            if let Some(cell) = cell_of(cell, pipe) {
                actions.push(action::write(&cell, action_of).map_err(&refuse)?);
            }
        }
        if actions.is_empty() {
            let worker = WorkerId(worker as u16);
            return Err(refuse(format!("{worker} has nothing to do in {pipe}")));
        }
        csv.push_str(&actions.join(","));
        csv.push('\n');
    }
    Ok(csv)
}

/// The micro-batches that go through `pipe`, ascending.
pub fn micro_batches(timetable: &Timetable, pipe: PipeId) -> Vec<u32> {
    let ops = timetable.ops().filter(|op| op.pipe == pipe);
    let mut ids: Vec<u32> = ops.flat_map(|op| op.span.units()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Refuses stages that are not a chain: in PyTorch a stage's output goes to the next one.
fn is_chain(graph: &StageGraph) -> Result<(), String> {
    if graph.is_chain() {
        Ok(())
    } else {
        Err(format!("its stages are a graph ({graph}), and PyTorch's a chain"))
    }
}

/// The part of `cell` in `pipe`.
fn cell_of(cell: &Cell, pipe: PipeId) -> Option<Cell> {
    let mut ops = cell.ops().filter(|op| op.pipe == pipe);
    let first = ops.next()?;
    Some(ops.next().map_or(Cell::One(first), |second| Cell::Pair(first, second)))
}

#[cfg(test)]
mod tests;

//! Descriptions of ranks in a diagnosis.

use super::moves::MoveProgress;
use super::{HangReport, Position};
use crate::ir::ids::Rank;
use crate::program::Instr;

impl HangReport<'_> {
    /// The last cell that a rank finished, and its current activity.
    pub(super) fn doing(&self, rank: Rank) -> String {
        let position = match self.positions[rank.index()] {
            None => return "is silent".into(),
            Some(Position::Start) => return "has not begun its first step".into(),
            Some(Position::At { step, .. }) if step != self.step => {
                return format!("is still in step {step}, or after it");
            }
            Some(position) => position,
        };
        let last = self.last_finished(rank, position);
        let now = match self.instr(rank) {
            Some(Instr::Run(cell)) => format!("is in {cell}"),
            Some(Instr::Send(token, _)) => format!("is sending {token}"),
            Some(Instr::Recv(token, _)) => format!("waits for {token}"),
            Some(Instr::Reduce(bucket)) => format!("begins the gradient reduction of {bucket}"),
            Some(Instr::Await(bucket)) => format!("waits for the gradient reduction of {bucket}"),
            Some(Instr::Agree) => "is in the agreement of all ranks".into(),
            Some(Instr::Step(bucket)) => format!("is updating {bucket}"),
            Some(Instr::Give(token)) => format!("tells of {token}"),
            Some(Instr::Shard(op)) => format!("is at {op}"),
            Some(Instr::Take(token)) => format!("waits for {token}"),
            None => "is done with its row".into(),
        };
        format!("last finished {last} and {now}")
    }

    /// Describes what a transport may hold up while it waits for a silent rank.
    pub(super) fn held_up(&self, rank: Rank, has_given: bool) -> String {
        if has_given {
            format!("; {rank} sent it, which is lost, or held up on the way")
        } else {
            format!("; {rank} {}, which is held up", self.doing(rank))
        }
    }

    /// The position of a rank that waits for nobody.
    pub(super) fn place(&self, moves: &MoveProgress, rank: Rank) -> &'static str {
        match self.instr(rank) {
            Some(_) if moves.are_awaited(self, rank) => "in a move of activations",
            Some(Instr::Run(_)) => "in compute",
            Some(Instr::Step(_)) => "in the optimizer",
            Some(Instr::Send(..) | Instr::Recv(..) | Instr::Shard(_)) => "in the transport",
            Some(Instr::Reduce(_) | Instr::Await(_)) => "in a gradient reduction",
            Some(Instr::Agree) => "in the agreement",
            Some(Instr::Give(_) | Instr::Take(_)) => "in a move of activations",
            None => "between steps",
        }
    }

    pub(super) fn last_finished(&self, rank: Rank, position: Position) -> String {
        let nothing = || format!("nothing of step {}", self.step);
        let Position::At { step, instr } = position else { return nothing() };
        if step != self.step {
            return nothing();
        }
        let done = self.row(rank).iter().take(instr as usize).rev();
        let cells = done.filter_map(|instr| match instr {
            Instr::Run(cell) => Some(cell.to_string()),
            _ => None,
        });
        cells.into_iter().next().unwrap_or_else(nothing)
    }
}

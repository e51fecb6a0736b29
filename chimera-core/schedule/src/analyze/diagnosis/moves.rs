//! Progress of the moves of activations, derived from the positions of compute.
//!
//! A rank reports only the position of its compute. Its moves advance as far as they can while
//! compute waits. The positions of all ranks show how far: messages that somebody has used were
//! sent, and a waiting rank has done all moves that wait for nothing. A rank with moves that could
//! let its compute advance waits for nobody: it is stalled, and it is unknown which of these moves
//! it has done.

use rustc_hash::FxHashMap;

use super::{HangReport, Position};
use crate::effects::Token;
use crate::ir::ids::Rank;
use crate::ir::op::Lane;
use crate::program::{Instr, Program};

/// The moves of all ranks, by rank. Empty for a program without moves.
pub(super) struct MoveProgress {
    rows: Vec<RowTokens>,
    /// Index of the next instruction of compute.
    compute: Vec<usize>,
    /// For each rank, the index after its last finished instruction of moves.
    moves: Vec<usize>,
    /// Whether the rank could continue, as far as is known.
    is_stalled: Vec<bool>,
    /// The rank that asks, and so is not stalled, and the token that it has not received.
    asks: (Rank, Option<Token>),
}

/// The places in a row where tokens are made and sent.
#[derive(Default)]
struct RowTokens {
    by_compute: FxHashMap<Token, usize>,
    by_moves: FxHashMap<Token, usize>,
    sent: FxHashMap<Token, usize>,
    last_move: Option<usize>,
}

impl RowTokens {
    fn of(program: &Program, row: &[Instr]) -> RowTokens {
        let mut tokens = RowTokens::default();
        for (at, instr) in row.iter().enumerate() {
            let made = match instr.lane() {
                Lane::Compute => &mut tokens.by_compute,
                Lane::Moves => {
                    tokens.last_move = Some(at);
                    &mut tokens.by_moves
                }
            };
            match *instr {
                Instr::Run(ref cell) => {
                    let makes = program.rules().cell_effects(cell).makes;
                    made.extend(makes.into_iter().map(|token| (token, at)));
                }
                Instr::Give(token) => _ = made.insert(token, at),
                Instr::Send(token, _) => _ = tokens.sent.insert(token, at),
                _ => {}
            }
        }
        tokens
    }
}

impl MoveProgress {
    /// The progress of the moves of all ranks in a report. A rank asks for the report because it
    /// lacks a token.
    pub(super) fn of(report: &HangReport<'_>, asks: (Rank, Option<Token>)) -> MoveProgress {
        let program = report.program;
        let mut progress = MoveProgress {
            rows: Vec::new(),
            compute: Vec::new(),
            moves: Vec::new(),
            is_stalled: Vec::new(),
            asks,
        };
        if !program.rules().has_moves() {
            return progress;
        }
        let ranks = || (0..report.positions.len() as u32).map(Rank);
        progress.rows = program.rows().iter().map(|row| RowTokens::of(program, row)).collect();
        progress.compute = ranks().map(|rank| compute_at(report, rank)).collect();
        progress.is_stalled = vec![false; report.positions.len()];
        let known = progress.known(report);
        loop {
            progress.moves.clone_from(&known);
            match progress.advance(report) {
                Some(stalled) => progress.is_stalled[stalled.index()] = true,
                None => return progress,
            }
        }
    }

    /// Returns true if a rank has done an instruction of moves.
    pub(super) fn has_done(&self, rank: Rank, index: usize) -> bool {
        self.moves.get(rank.index()).is_some_and(|next| *next > index)
    }

    /// Returns true if the compute of a rank waits for its moves.
    pub(super) fn are_awaited(&self, report: &HangReport<'_>, rank: Rank) -> bool {
        let needs = || needed(report.program, self.row(report, rank)?, &report.instr(rank)?);
        needs().is_some_and(|needs| !self.has_done(rank, needs))
    }

    /// The message that the moves of a rank wait for, if they do.
    pub(super) fn received(&self, report: &HangReport<'_>, rank: Rank) -> Option<Instr> {
        if *self.is_stalled.get(rank.index())? {
            return None;
        }
        let next = self.next(report, rank)?;
        let instr = report.row(rank)[next];
        (matches!(instr, Instr::Recv(..)) && !self.can_run(report, rank, &instr)).then_some(instr)
    }

    /// For each rank, the moves that must be done since their results are used.
    fn known(&self, report: &HangReport<'_>) -> Vec<usize> {
        let mut known = vec![0; self.compute.len()];
        for rank in (0..self.compute.len() as u32).map(Rank) {
            let Some(tokens) = self.row(report, rank) else { continue };
            let done = report.row(rank).iter().take(self.compute[rank.index()]);
            let needed = done.filter_map(|instr| needed(report.program, tokens, instr));
            known[rank.index()] = needed.max().map_or(0, |last| last + 1);
        }
        let mut seen = vec![0; known.len()];
        loop {
            let before = known.clone();
            for rank in (0..known.len() as u32).map(Rank) {
                let done = seen[rank.index()]..known[rank.index()];
                seen[rank.index()] = done.end;
                for instr in report.row(rank).get(done).unwrap_or_default() {
                    if let Some((from, sent)) = self.sent(report, rank, instr)
                        && report.row(from)[sent].lane() == Lane::Moves
                        && instr.lane() == Lane::Moves
                    {
                        known[from.index()] = known[from.index()].max(sent + 1);
                    }
                }
            }
            if before == known {
                return known;
            }
        }
    }

    /// Lets waiting ranks do the moves that they can. Returns the first rank that could then go on.
    fn advance(&mut self, report: &HangReport<'_>) -> Option<Rank> {
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for rank in (0..self.moves.len() as u32).map(Rank) {
                if self.is_stalled[rank.index()] || !self.may_wait(report, rank) {
                    continue;
                }
                let is_blocked = self.are_awaited(report, rank);
                while let Some(next) = self.next(report, rank) {
                    if !self.can_run(report, rank, &report.row(rank)[next]) {
                        break;
                    }
                    self.moves[rank.index()] = next + 1;
                    has_moved = true;
                }
                let is_agreed = matches!(report.instr(rank), Some(Instr::Agree));
                let goes_on = is_blocked && !is_agreed && !self.are_awaited(report, rank);
                if goes_on && rank != self.asks.0 {
                    return Some(rank);
                }
            }
        }
        None
    }

    /// Returns true if the compute of a rank may wait, so that its moves matter. Nothing is known
    /// about a rank that does not advance although its message was sent.
    fn may_wait(&self, report: &HangReport<'_>, rank: Rank) -> bool {
        match report.instr(rank) {
            Some(instr @ Instr::Recv(..)) => !self.can_run(report, rank, &instr),
            Some(Instr::Run(_) | Instr::Take(_)) => self.are_awaited(report, rank),
            Some(instr) => instr.counterpart().is_some(),
            None => false,
        }
    }

    /// The next instruction of a rank's moves.
    fn next(&self, report: &HangReport<'_>, rank: Rank) -> Option<usize> {
        let at = *self.moves.get(rank.index())?;
        let left = report.row(rank).get(at..)?;
        left.iter().position(|instr| instr.lane() == Lane::Moves).map(|next| at + next)
    }

    fn can_run(&self, report: &HangReport<'_>, rank: Rank, instr: &Instr) -> bool {
        let Some(tokens) = self.row(report, rank) else { return false };
        let is_made = |token: &Token| {
            tokens.by_compute.get(token).is_none_or(|at| self.compute[rank.index()] > *at)
        };
        match instr {
            Instr::Run(cell) => report.program.rules().cell_effects(cell).eats.iter().all(is_made),
            Instr::Take(token) => is_made(token),
            Instr::Recv(token, _) if self.asks == (rank, Some(*token)) => false,
            Instr::Recv(..) => self.sent(report, rank, instr).is_some_and(|(from, sent)| {
                match report.row(from)[sent].lane() {
                    Lane::Compute => self.compute[from.index()] > sent,
                    Lane::Moves => self.has_done(from, sent),
                }
            }),
            _ => true,
        }
    }

    /// The sender of the message that an instruction of a rank receives, and the place of the send
    /// in its row.
    fn sent(&self, report: &HangReport<'_>, rank: Rank, instr: &Instr) -> Option<(Rank, usize)> {
        let Instr::Recv(token, channel) = *instr else { return None };
        let from = report.beside(rank, report.program.channels()[channel.index()].from);
        let sent = *self.row(report, from)?.sent.get(&token)?;
        (from.index() < self.compute.len()).then_some((from, sent))
    }

    fn row(&self, report: &HangReport<'_>, rank: Rank) -> Option<&RowTokens> {
        let (_, worker) = report.program.placement().group_and_worker(rank);
        self.rows.get(worker.index())
    }
}

/// The last instruction of moves that an instruction of compute needs to be done.
fn needed(program: &Program, tokens: &RowTokens, instr: &Instr) -> Option<usize> {
    if instr.lane() != Lane::Compute {
        return None;
    }
    match instr {
        Instr::Take(token) => tokens.by_moves.get(token).copied(),
        Instr::Run(cell) => {
            let eats = program.rules().cell_effects(cell).eats;
            eats.iter().filter_map(|token| tokens.by_moves.get(token).copied()).max()
        }
        Instr::Agree => tokens.last_move,
        _ => None,
    }
}

/// Index of the next instruction of a rank's compute. For a silent rank, the first instruction that
/// it may be at.
fn compute_at(report: &HangReport<'_>, rank: Rank) -> usize {
    match report.positions[rank.index()].unwrap_or_else(|| report.known(rank)) {
        Position::At { step, instr } if step == report.step => instr as usize,
        Position::At { step, .. } if step > report.step => usize::MAX,
        Position::At { .. } | Position::Start => 0,
    }
}

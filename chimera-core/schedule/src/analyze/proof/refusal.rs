//! Refusals of timetables, with what their author needs to repair them.

use std::convert::Infallible;
use std::fmt;

use crate::activation_memory::ROUNDING;
use crate::effects::{Token, Wanted};
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::notation::{marked_row, significant};
use crate::ir::op::{Cell, Kind, Op};
use crate::program::{Instr, Program};

/// The refusal of a timetable that cannot become a program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub struct Refusal {
    /// Name of the schedule.
    pub schedule: String,
    /// The worker and the index of the cell at fault, if there is one.
    pub at: Option<(WorkerId, usize)>,
    /// The reason.
    pub reason: Reason,
    /// The worker's row with the cell marked; empty without a cell.
    pub drawing: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a safe schedule: ", self.schedule)?;
        if let Some((worker, cell)) = self.at {
            write!(f, "{worker}, cell {cell}: ")?;
        }
        write!(f, "{}", self.reason)?;
        if self.drawing.is_empty() { Ok(()) } else { write!(f, "\n{}", self.drawing) }
    }
}

impl Refusal {
    /// Adds the requested memory savings to a refusal, whether they were reached or not.
    pub fn asked_for(mut self, asked: Savings) -> Refusal {
        if let Reason::Memory { savings, .. } = &mut self.reason {
            savings.recomputes |= asked.recomputes;
            savings.offloads |= asked.offloads;
            savings.shares |= asked.shares;
        }
        self
    }
}

/// For machines that cannot fail.
impl From<Infallible> for Reason {
    fn from(never: Infallible) -> Reason {
        match never {}
    }
}

/// The reasons to refuse a timetable.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The number of rows is not the number of workers.
    #[error("there are {rows} rows for {workers} workers")]
    Rows {
        /// Rows of the timetable.
        rows: usize,
        /// Workers of the placement.
        workers: usize,
    },
    /// The graph does not have the stages of the placement.
    #[error("the graph has {edges} stages, but {stages} have a worker")]
    Graph {
        /// Stages of the graph.
        edges: usize,
        /// Stages of the placement.
        stages: usize,
    },
    /// An op names a pipe, stage or micro-batch that does not exist.
    #[error("{0} names a pipe, stage or micro-batch that does not exist")]
    Unknown(Op),
    /// An op stands on another worker than the placement says, or keeps activations of its own
    /// worker.
    #[error("{op} {} {owner}", if matches!(op.kind, Kind::Keep | Kind::Return) { "is for another worker than" } else { "belongs to" })]
    Misplaced {
        /// The op.
        op: Op,
        /// The worker that holds its stage.
        owner: WorkerId,
    },
    /// A move is part of a pair.
    #[error("{0} runs beside compute: it cannot be part of a pair")]
    PairedMove(Op),
    /// A piece of work that the program does not have, or of a stage that does not exist.
    #[error("{0} is of work that the program does not have, or of a stage that does not exist")]
    UnknownPiece(Op),
    /// The timetable contains work besides the training.
    #[error(
        "{0} is work beside the training, which a program gets when it is lowered (chimera_core::lower::fill)"
    )]
    OwnWork(Op),
    /// A micro-batch goes through two pipes.
    #[error("{op} takes micro-batch {unit} through a second pipe")]
    TwoPipes {
        /// The op.
        op: Op,
        /// The micro-batch unit.
        unit: u32,
    },
    /// A pass of a micro-batch through a stage occurs twice.
    #[error("{0} repeats what was done already")]
    Repeated(Op),
    /// A frozen stage has a pass that no other stage needs.
    #[error("{op} is in vain: of {}, which is frozen, only {} wanted", op.stage, match wanted {
        Wanted::Output => "forwards are",
        Wanted::InputGradient | Wanted::Trained => "forwards and input halves of backwards are",
    })]
    Unwanted {
        /// The op.
        op: Op,
        /// The demand on its stage.
        wanted: Wanted,
    },
    /// The numbers of micro-batches of models do not fit the models, the update rule, or an op.
    #[error("{0}")]
    Models(String),
    /// A frozen stage that does not exist.
    #[error("{0} is frozen, but does not exist")]
    Frozen(StageId),
    /// A pass of a micro-batch through a stage is missing.
    #[error("micro-batch {unit} never has its {pass} on {stage}")]
    Absent {
        /// The micro-batch unit.
        unit: u32,
        /// The stage.
        stage: StageId,
        /// The pass.
        pass: &'static str,
    },
    /// A micro-batch is not recomputed on a stage where others are.
    #[error(
        "micro-batch {unit} has no R (recompute) on {stage}, though others of its pipe have: forwards of a stage that is \
         recomputed keep only their inputs. Give each of them an R, or none"
    )]
    Unrecomputed {
        /// The micro-batch unit.
        unit: u32,
        /// The stage.
        stage: StageId,
    },
    /// Saved activations of a micro-batch are moved away but not back, or back but not away.
    #[error(
        "micro-batch {unit} has {} ({}) on {stage}, but no {} ({}): activations that are moved away are moved back",
        done.letter(), done.name(), lacks.letter(), lacks.name()
    )]
    LoneMove {
        /// The micro-batch unit.
        unit: u32,
        /// The stage.
        stage: StageId,
        /// The move that exists.
        done: Kind,
        /// The move that is missing.
        lacks: Kind,
    },
    /// There are fewer passes than micro-batches and stages need.
    #[error(
        "{found} passes of single micro-batches cannot be all of {wanted} forwards and as many backwards"
    )]
    Incomplete {
        /// Number of existing passes of all kinds, counted by unit.
        found: u64,
        /// Number of micro-batch units times number of stages.
        wanted: u64,
    },
    /// A tied tensor names a stage that does not exist.
    #[error("a tied tensor cannot live on {0}, which does not exist")]
    Tied(StageId),
    /// A stage is in two sets of tied stages.
    #[error(
        "{0} is in two sets of tied stages, and can be in one, whose stages share all of their tied tensors: cut the model so \
         that no stage holds tensors that it shares with different stages, or untie some"
    )]
    TiedTwice(StageId),
    /// An op eats a token that does not exist.
    #[error("it needs {0}, which is not made before it")]
    Missing(Token),
    /// An op makes a token that already exists.
    #[error("it makes {0} a second time")]
    Twice(Token),
    /// A channel's messages are received in another order than they are sent.
    #[error("it waits for {expected}, but the next message of its channel is {next}")]
    ChannelOrder {
        /// The message that the receiver waits for.
        expected: Token,
        /// The next message of the channel.
        next: Token,
    },
    /// Some workers wait for each other for ever.
    #[error("deadlock: {}", .0.join("; "))]
    Deadlock(Vec<String>),
    /// Workers issue messages and reductions in orders that do not agree.
    #[error("messages and reductions follow no common order: {}", .0.join("; "))]
    Order(Vec<String>),
    /// One order of all messages is requested in a program with moves of activations, or with shards
    /// of weights.
    #[error("moves of activations and shards of weights run beside messages, in no common order")]
    MovesBeside,
    /// A token is made and never eaten.
    #[error("{0} is made and never used")]
    LeftOver(Token),
    /// The micro-batches of an asynchronous window do not make whole steps.
    #[error("{n_micro_batches} micro-batches do not make {n_steps} whole steps")]
    Window {
        /// Micro-batches of the window.
        n_micro_batches: u32,
        /// Steps of the window.
        n_steps: u32,
    },
    /// Micro-batches have no units.
    #[error("a micro-batch has no parts: units_per_micro is at least 1")]
    NoUnits,
    /// The micro-batches of one op go into two updates.
    #[error("{0} belongs to two updates")]
    TwoUpdates(Op),
    /// An op covers several slices of a sequence, which depend on each other.
    #[error("{0} covers several slices of the sequence: each slice has ops of its own")]
    SeveralSlices(Op),
    /// A move covers several micro-batches, but memory for moves is counted for one micro-batch at
    /// a time.
    #[error("{0} moves several micro-batches at once: give each a move of its own")]
    SeveralMoves(Op),
    /// Stages share tensors that would be updated at different times.
    #[error(
        "without a flush the ends of the pipe update at different times, so that they cannot share a \
         tensor: choose an untied head (--tied false), or a synchronous schedule with a border between steps (--border step)"
    )]
    TiedVersions,
    /// A forward reads a version of the weights that does not exist.
    #[error("{op} reads the weights after {version} update(s), but {made} are made before it")]
    Version {
        /// The forward.
        op: Op,
        /// The version, as the number of updates that made it.
        version: u32,
        /// Updates made before the forward.
        made: u32,
    },
    /// A recomputation would read other weights than its forward.
    #[error(
        "{0} would compute with newer weights than its forward, which this rule of updates does not keep: \
         choose no recomputation, or a schedule whose backwards read the weights of their forwards"
    )]
    RecomputedNewer(Op),
    /// A reduction, step sync or optimizer step is in a wrong place.
    #[error("{0}")]
    Synchronisation(String),
    /// A worker holds more saved activations than allowed.
    #[error(
        "it holds the activations of {} micro-batch{} at once, more than the limit of {}{}",
        significant(*peak, 6),
        if *peak == 1.0 { "" } else { "es" },
        significant(*limit, 6),
        unmoved(*deferred)
    )]
    Memory {
        /// Most micro-batches at once.
        peak: f64,
        /// The limit.
        limit: f64,
        /// In a program with moves: held micro-batches that cannot be moved away, because their
        /// input half is done and their weight half is not.
        deferred: f64,
        /// The passes that save activation memory, made or requested.
        savings: Savings,
    },
}

/// The passes by which workers hold fewer activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Savings {
    /// Every forward is recomputed.
    pub recomputes: bool,
    /// Activations go to the memory of the host.
    pub offloads: bool,
    /// Activations go to another worker.
    pub shares: bool,
}

impl Savings {
    /// The passes of a program.
    pub(super) fn of(program: &Program) -> Savings {
        let mut forwards = 0;
        let mut again = 0;
        let mut savings = Savings::default();
        let cells = program.rows.iter().flatten().filter_map(|instr| match instr {
            Instr::Run(cell) => Some(cell),
            _ => None,
        });
        for op in cells.flat_map(Cell::ops) {
            match op.kind {
                Kind::Forward => forwards += u64::from(op.span.len),
                Kind::Recompute => again += u64::from(op.span.len),
                Kind::Offload => savings.offloads = true,
                Kind::Keep => savings.shares = true,
                _ => {}
            }
        }
        let offloads = savings.offloads && !savings.shares;
        Savings { recomputes: forwards > 0 && again == forwards, offloads, ..savings }
    }
}

/// Describes the held micro-batches that cannot be moved, if there are any.
fn unmoved(deferred: f64) -> String {
    if deferred <= ROUNDING {
        return String::new();
    }
    format!(
        "; {} of them cannot be moved: backwards are split, and what the weight gradient needs stays where it is",
        significant(deferred, 6)
    )
}

/// A refusal at an instruction, drawn with the cell that it belongs to.
pub(in crate::analyze) fn refusal(
    program: &Program,
    at: Option<(WorkerId, usize)>,
    reason: Reason,
) -> Refusal {
    let at =
        at.map(|(worker, position)| (worker, cell_index(&program.rows[worker.index()], position)));
    let drawing = at.map(|(worker, cell)| {
        let cells = program.rows[worker.index()].iter().filter_map(|instr| match instr {
            Instr::Run(cell) => Some(*cell),
            _ => None,
        });
        marked_row(&cells.collect::<Vec<_>>(), cell)
    });
    let schedule = program.schedule.clone();
    Refusal { schedule, at, reason, drawing: drawing.unwrap_or_default() }
}

/// The cell that the instruction at `position` belongs to: the next for receives, the last for all
/// others.
pub(super) fn cell_index(row: &[Instr], position: usize) -> usize {
    let n_before = row[..position].iter().filter(|i| matches!(i, Instr::Run(_))).count();
    match row.get(position) {
        Some(Instr::Run(_) | Instr::Recv(..) | Instr::Take(_) | Instr::Shard(_)) => n_before,
        _ => n_before.saturating_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_micro_batches_are_printed_without_rounding_errors() {
        let savings = Savings::default();
        let printed =
            |peak, limit| Reason::Memory { peak, limit, deferred: 0.0, savings }.to_string();
        let most = "more than the limit of";
        for (peak, limit, wanted) in [
            (
                21.0 * 0.2,
                4.0,
                format!("it holds the activations of 4.2 micro-batches at once, {most} 4"),
            ),
            (
                1.0,
                3.0 * 0.1,
                format!("it holds the activations of 1 micro-batch at once, {most} 0.3"),
            ),
        ] {
            assert_eq!(printed(peak, limit), wanted);
        }
    }
}

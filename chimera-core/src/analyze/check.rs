//! The proof that a program is safe to run, and the refusal that says why one is not.
//!
//! Proven are: every micro-batch goes forward and backward through every stage exactly once, on the
//! worker that holds the stage; every op finds the tokens it eats; the messages of each channel are
//! received in the order they are sent; no worker waits for ever, with channels of bounded capacity;
//! all workers start reductions in one order, each after the worker's last gradient and exactly once
//! before its step; nothing is left over; residuals stay under a limit, if one is given.

use std::collections::VecDeque;
use std::fmt;
use std::task::Poll;

use super::memory::Residuals;
use crate::effects::Token;
use crate::ids::{BucketId, ChannelId, StageId, WorkerId};
use crate::interp::{Group, Machine, Stop, Values};
use crate::lower::{Instr, Program};
use crate::op::{Cell, Kind, Op};
use crate::render::text;
use crate::timetable::Timetable;

/// Why a timetable cannot become a program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub struct Refusal {
    /// Name of the schedule.
    pub schedule: String,
    /// The worker and the index of its cell, where one is at fault.
    pub at: Option<(WorkerId, usize)>,
    /// What is wrong.
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
        if self.drawing.is_empty() {
            Ok(())
        } else {
            write!(f, "\n{}", self.drawing)
        }
    }
}

/// What can be wrong with a timetable.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Reason {
    /// The number of rows is not the number of workers.
    #[error("there are {rows} rows for {workers} workers")]
    Rows {
        /// Rows of the timetable.
        rows: usize,
        /// Workers of the placement.
        workers: usize,
    },
    /// An op names a pipe, stage or micro-batch that does not exist.
    #[error("{0} names a pipe, stage or micro-batch that does not exist")]
    Unknown(Op),
    /// An op stands on another worker than the placement says.
    #[error("{op} belongs to {owner}")]
    Misplaced {
        /// The op.
        op: Op,
        /// Who holds its stage.
        owner: WorkerId,
    },
    /// A micro-batch travels through two pipes.
    #[error("{op} takes micro-batch {unit} through a second pipe")]
    TwoPipes {
        /// The op.
        op: Op,
        /// The micro-batch unit.
        unit: u32,
    },
    /// A pass of a micro-batch through a stage is done twice.
    #[error("{0} does again what was done already")]
    Repeated(Op),
    /// A pass of a micro-batch through a stage is never done.
    #[error("micro-batch {unit} never has its {pass} on {stage}")]
    Absent {
        /// The micro-batch unit.
        unit: u32,
        /// Where.
        stage: StageId,
        /// Which pass.
        pass: &'static str,
    },
    /// An op eats a token that is not there.
    #[error("it needs {0}, which is not made before it")]
    Missing(Token),
    /// An op makes a token that is there already.
    #[error("it makes {0} a second time")]
    Twice(Token),
    /// A channel's messages are received in another order than they are sent.
    #[error("it waits for {expected}, but the next message of its channel is {next}")]
    ChannelOrder {
        /// What it waits for.
        expected: Token,
        /// What comes.
        next: Token,
    },
    /// Some workers wait for each other for ever.
    #[error("deadlock: {}", .0.join("; "))]
    Deadlock(Vec<String>),
    /// Workers issue messages and reductions in orders that do not agree.
    #[error("messages and reductions follow no common order: {}", .0.join("; "))]
    Order(Vec<String>),
    /// A token is made and never eaten.
    #[error("{0} is made and never used")]
    LeftOver(Token),
    /// A reduction, agreement or step stands where it may not.
    #[error("{0}")]
    Synchronisation(String),
    /// A worker holds more residuals than allowed.
    #[error(
        "it holds the residuals of {peak} micro-batches at once, more than the limit of {limit}"
    )]
    Memory {
        /// Most micro-batches at once.
        peak: f64,
        /// The limit.
        limit: f64,
    },
}

/// What the proof finds out by the way.
pub(crate) struct Proof {
    pub(crate) channel_bound: u32,
    pub(crate) peaks: Vec<f64>,
}

/// Checks what needs no interpretation: every op is well-formed, placed, and there exactly once.
pub(crate) fn structure(timetable: &Timetable) -> Result<(), Refusal> {
    let refuse = |at: Option<(usize, usize)>, reason| {
        let at = at.map(|(w, i)| (WorkerId(w as u16), i));
        let drawing = at
            .map(|(w, i)| text::marked_row(timetable.row(w), i))
            .unwrap_or_default();
        Refusal {
            schedule: timetable.schedule.clone(),
            at,
            reason,
            drawing,
        }
    };
    let placement = &timetable.placement;
    let (rows, workers) = (timetable.rows.len(), placement.n_workers());
    if rows != workers {
        return Err(refuse(None, Reason::Rows { rows, workers }));
    }
    let (n_units, n_stages) = (timetable.n_units() as usize, placement.n_stages());
    let mut passes = Passes::new(n_units, n_stages, timetable.n_ops());
    for (w, row) in timetable.rows.iter().enumerate() {
        for (i, op) in row
            .iter()
            .enumerate()
            .flat_map(|(i, cell)| cell.ops().map(move |op| (i, op)))
        {
            let known = op.pipe.index() < placement.n_pipes()
                && op.stage.index() < n_stages
                && op.span.len > 0
                && u64::from(op.span.start) + u64::from(op.span.len) <= n_units as u64;
            if !known {
                return Err(refuse(Some((w, i)), Reason::Unknown(op)));
            }
            let owner = placement.worker(op.pipe, op.stage);
            if owner.index() != w {
                return Err(refuse(Some((w, i)), Reason::Misplaced { op, owner }));
            }
            passes
                .add(op)
                .map_err(|reason| refuse(Some((w, i)), reason))?;
        }
    }
    passes.finish().map_err(|reason| refuse(None, reason))
}

/// Which passes each (micro-batch unit, stage) has had. Grows with the ops that are there, not with
/// the counts a file claims.
struct Passes {
    n_units: usize,
    n_stages: usize,
    pipe_of: Vec<Option<crate::ids::PipeId>>,
    done: Vec<u8>,
}

impl Passes {
    const FORWARD: u8 = 1;
    const INPUT: u8 = 2;
    const WEIGHT: u8 = 4;
    const RECOMPUTE: u8 = 8;

    fn new(n_units: usize, n_stages: usize, n_ops: usize) -> Passes {
        // Each op of a span up to 65535 units can fill as many entries; more are surely absent.
        let reachable = n_ops.saturating_mul(usize::from(u16::MAX));
        let n = n_units.saturating_mul(n_stages).min(reachable);
        Passes {
            n_units,
            n_stages,
            pipe_of: vec![None; n_units.min(n)],
            done: vec![0; n],
        }
    }

    fn add(&mut self, op: Op) -> Result<(), Reason> {
        let bits = match op.kind {
            Kind::Forward => Self::FORWARD,
            Kind::Backward => Self::INPUT | Self::WEIGHT,
            Kind::BackwardInput => Self::INPUT,
            Kind::BackwardWeight => Self::WEIGHT,
            Kind::Recompute => Self::RECOMPUTE,
        };
        for unit in op.span.units() {
            if let Some(pipe) = self.pipe_of.get_mut(unit as usize)
                && *pipe.get_or_insert(op.pipe) != op.pipe
            {
                return Err(Reason::TwoPipes { op, unit });
            }
            if let Some(done) = self
                .done
                .get_mut(unit as usize * self.n_stages + op.stage.index())
            {
                if *done & bits != 0 {
                    return Err(Reason::Repeated(op));
                }
                *done |= bits;
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), Reason> {
        for unit in 0..self.n_units {
            for stage in 0..self.n_stages {
                let done = self
                    .done
                    .get(unit * self.n_stages + stage)
                    .copied()
                    .unwrap_or(0);
                let wanted = [
                    (Self::FORWARD, "forward"),
                    (Self::INPUT, "backward (input half)"),
                    (Self::WEIGHT, "backward (weight half)"),
                ];
                if let Some((_, pass)) = wanted.into_iter().find(|(bit, _)| done & bit == 0) {
                    let pass = if done & (Self::INPUT | Self::WEIGHT) == 0 && pass != "forward" {
                        "backward"
                    } else {
                        pass
                    };
                    return Err(Reason::Absent {
                        unit: unit as u32,
                        stage: StageId(stage as u16),
                        pass,
                    });
                }
            }
        }
        Ok(())
    }
}

/// Proves a lowered program.
pub(crate) fn prove(program: &Program, max_peak: Option<f64>) -> Result<Proof, Refusal> {
    let mut machine = Checker::new(program);
    let mut group = Group::new(
        &program.rows,
        &program.channels,
        &program.buckets,
        &program.rules,
    );
    loop {
        let done = group.run(&mut machine).map_err(|(worker, stop)| {
            let position = group.rows()[worker.index()].position();
            refusal(program, Some((worker, position)), stop.into())
        })?;
        if done {
            break;
        }
        // A worker that waits for room in a channel may go on with more of it. What has run so far
        // would have run with more room too, so there is no need to begin again.
        let waits_for_room = group
            .rows()
            .iter()
            .zip(&program.rows)
            .any(|(row, instrs)| matches!(instrs.get(row.position()), Some(Instr::Send(..))));
        if !waits_for_room {
            return Err(deadlock(program, &group));
        }
        machine.bound += 1;
    }
    let left = group
        .rows()
        .iter()
        .enumerate()
        .find_map(|(w, row)| Some((w, *row.ledger().tokens().first()?)));
    if let Some((w, token)) = left {
        let at = (WorkerId(w as u16), maker(program, w, &token));
        return Err(refusal(program, Some(at), Reason::LeftOver(token)));
    }
    let peaks = machine.residuals.peaks();
    if let Some(limit) = max_peak
        && let Some(w) = peaks.iter().position(|peak| *peak > limit)
    {
        let reason = Reason::Memory {
            peak: peaks[w],
            limit,
        };
        return Err(refusal(program, Some((WorkerId(w as u16), 0)), reason));
    }
    Ok(Proof {
        channel_bound: machine.bound,
        peaks,
    })
}

fn deadlock(program: &Program, group: &Group<'_, ()>) -> Refusal {
    let stuck: Vec<(WorkerId, usize, Instr)> = (group.rows().iter().zip(&program.rows).enumerate())
        .filter_map(|(w, (row, instrs))| {
            Some((
                WorkerId(w as u16),
                row.position(),
                *instrs.get(row.position())?,
            ))
        })
        .collect();
    let waits = stuck.iter().map(|(worker, position, instr)| {
        let cell = cell_index(&program.rows[worker.index()], *position);
        let what = match *instr {
            Instr::Recv(token, c) => {
                format!("{token} from {}", program.channels[c.index()].from)
            }
            Instr::Send(token, c) => {
                format!("room for {token} to {}", program.channels[c.index()].to)
            }
            Instr::Await(b) | Instr::Reduce(b) | Instr::Step(b) => format!("the sum of {b}"),
            Instr::Agree => "the agreement".to_string(),
            Instr::Run(cell) => cell.to_string(),
        };
        format!("{worker} waits at cell {cell} for {what}")
    });
    let at = stuck
        .first()
        .map(|(worker, position, _)| (*worker, *position));
    refusal(program, at, Reason::Deadlock(waits.collect()))
}

/// A refusal at an instruction, drawn with the cell that it belongs to.
pub(super) fn refusal(program: &Program, at: Option<(WorkerId, usize)>, reason: Reason) -> Refusal {
    let at =
        at.map(|(worker, position)| (worker, cell_index(&program.rows[worker.index()], position)));
    let drawing = at.map(|(worker, cell)| {
        let cells = program.rows[worker.index()]
            .iter()
            .filter_map(|instr| match instr {
                Instr::Run(cell) => Some(*cell),
                _ => None,
            });
        text::marked_row(&cells.collect::<Vec<_>>(), cell)
    });
    let schedule = program.schedule.clone();
    Refusal {
        schedule,
        at,
        reason,
        drawing: drawing.unwrap_or_default(),
    }
}

/// The cell that the instruction at `position` belongs to: receives to the next, all else to the last.
fn cell_index(row: &[Instr], position: usize) -> usize {
    let n_before = row[..position]
        .iter()
        .filter(|i| matches!(i, Instr::Run(_)))
        .count();
    match row.get(position) {
        Some(Instr::Run(_) | Instr::Recv(..)) => n_before,
        _ => n_before.saturating_sub(1),
    }
}

/// Position of the instruction of worker `w` that leaves `token` behind.
fn maker(program: &Program, w: usize, token: &Token) -> usize {
    let makes = |instr: &Instr| match instr {
        Instr::Run(cell) => program.rules.cell_effects(cell).makes.contains(token),
        Instr::Recv(received, _) => received == token,
        _ => false,
    };
    program.rows[w].iter().position(makes).unwrap_or(0)
}

impl From<Stop<Reason>> for Reason {
    fn from(stop: Stop<Reason>) -> Reason {
        match stop {
            Stop::Missing(token) => Reason::Missing(token),
            Stop::Twice(token) => Reason::Twice(token),
            Stop::Machine(reason) => reason,
        }
    }
}

/// The machine that moves tokens which carry nothing.
struct Checker<'p> {
    program: &'p Program,
    /// Room of every channel.
    bound: u32,
    queues: Vec<VecDeque<Token>>,
    /// How many members started each bucket's reduction.
    n_started: Vec<usize>,
    workers: Vec<Progress>,
    n_agreed: usize,
    residuals: Residuals,
}

/// What a worker has done of its synchronisation.
#[derive(Clone, Default)]
struct Progress {
    started: Vec<BucketId>,
    stepped: Vec<BucketId>,
    has_agreed: bool,
}

impl<'p> Checker<'p> {
    fn new(program: &'p Program) -> Checker<'p> {
        Checker {
            program,
            bound: 1,
            queues: vec![VecDeque::new(); program.channels.len()],
            n_started: vec![0; program.buckets.len()],
            workers: vec![Progress::default(); program.rows.len()],
            n_agreed: 0,
            residuals: Residuals::new(&program.placement, program.units_per_micro),
        }
    }
}

impl Machine for Checker<'_> {
    type Value = ();
    type Error = Reason;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        _: Values<()>,
        makes: &[Token],
    ) -> Result<Values<()>, Reason> {
        let started = &self.workers[worker.index()].started;
        for op in cell
            .ops()
            .filter(|op| op.kind.adds_gradient() && !started.is_empty())
        {
            let late = started
                .iter()
                .find(|b| self.program.buckets[b.index()].stages.contains(&op.stage));
            if let Some(bucket) = late {
                return Err(Reason::Synchronisation(format!(
                    "{op} comes after the reduction of {bucket}"
                )));
            }
        }
        self.residuals.run(worker, cell, &self.program.rules);
        Ok(makes.iter().map(|_| ()).collect())
    }

    fn has_room(&mut self, channel: ChannelId) -> bool {
        self.queues[channel.index()].len() < self.bound as usize
    }

    fn send(
        &mut self,
        _: WorkerId,
        token: Token,
        channel: ChannelId,
        (): (),
    ) -> Result<(), Reason> {
        self.queues[channel.index()].push_back(token);
        Ok(())
    }

    fn recv(
        &mut self,
        _: WorkerId,
        expected: Token,
        channel: ChannelId,
    ) -> Result<Poll<()>, Reason> {
        match self.queues[channel.index()].front().copied() {
            None => Ok(Poll::Pending),
            Some(next) if next != expected => Err(Reason::ChannelOrder { expected, next }),
            Some(_) => {
                self.queues[channel.index()].pop_front();
                Ok(Poll::Ready(()))
            }
        }
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        let order = |b: BucketId| self.program.buckets[b.index()].order;
        let started = &mut self.workers[worker.index()].started;
        if let Some(&last) = started.last()
            && order(last) >= order(bucket)
        {
            let reason = format!(
                "the reduction of {bucket} starts after that of {last}, against the common order"
            );
            return Err(Reason::Synchronisation(reason));
        }
        started.push(bucket);
        self.n_started[bucket.index()] += 1;
        Ok(())
    }

    fn await_sum(&mut self, _: WorkerId, bucket: BucketId) -> Result<Poll<()>, Reason> {
        let complete =
            self.n_started[bucket.index()] == self.program.buckets[bucket.index()].members.len();
        Ok(if complete {
            Poll::Ready(())
        } else {
            Poll::Pending
        })
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Reason> {
        let has_agreed = std::mem::replace(&mut self.workers[worker.index()].has_agreed, true);
        self.n_agreed += usize::from(!has_agreed);
        Ok(if self.n_agreed == self.workers.len() {
            Poll::Ready(())
        } else {
            Poll::Pending
        })
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Reason> {
        let progress = &mut self.workers[worker.index()];
        if !progress.started.contains(&bucket) || progress.stepped.contains(&bucket) {
            let reason = format!("the step of {bucket} needs exactly one reduction before it");
            return Err(Reason::Synchronisation(reason));
        }
        progress.stepped.push(bucket);
        Ok(())
    }
}

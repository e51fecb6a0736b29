//! The interpreter: runs the rows of a program on a [`Machine`].
//!
//! A [`Row`] knows when an instruction may run; nothing else decides that. The machine defines what
//! running it means: the checker follows versions of the weights, the simulator adds up times, the
//! engine computes tensors. A row has two [`Lane`]s. Each keeps its order, and they wait for each
//! other only through tokens. [`Group`] interleaves all rows of a pipeline group, for machines that
//! see them all at once; the engine drives the one row of its worker.

use std::collections::VecDeque;
use std::task::Poll;

use crate::effects::{Effects, Rules, Token};
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::ledger::Ledger;
use crate::program::{Instr, Program, ShardOp};

/// An interpretation of a program: it runs the instructions, and defines what a token carries.
pub trait Machine {
    /// The value that a token carries.
    type Value;
    /// The error that stops the machine.
    type Error;

    /// Runs a cell with these [`effects`](Rules::cell_effects) on the values of the tokens it eats.
    /// Returns the values of the tokens it makes, in order.
    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<Self::Value>,
    ) -> Result<Few<Self::Value>, Self::Error>;

    /// Returns true if the channel has room for one more message.
    fn has_room(&mut self, channel: ChannelId) -> bool;

    /// Sends a value.
    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Self::Value,
    ) -> Result<(), Self::Error>;

    /// Receives the next value of a channel, which is the value of `token`.
    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Self::Value>, Self::Error>;

    /// Starts to sum a bucket's gradients over its replicas.
    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Self::Error>;

    /// Waits for the sum.
    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Self::Error>;

    /// Agrees with all workers on gradient norm, loss, and whether to continue. A worker that has
    /// to wait asks again when another has arrived.
    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Self::Error>;

    /// Updates the weights of a bucket.
    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Self::Error>;

    /// Sends, gathers or releases sharded weights.
    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Self::Error>;

    /// Returns the value of a token for the memory that a lane has freed by now.
    fn give(&mut self, worker: WorkerId, lane: Lane) -> Self::Value;

    /// Waits on a lane for memory: its following ops begin no earlier than the memory is free.
    fn take(&mut self, worker: WorkerId, lane: Lane, room: Self::Value);
}

/// The outcome of trying one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advance {
    /// The instruction at this position of the row ran.
    Ran(usize),
    /// The instruction has to wait for another worker.
    Blocked,
    /// No instruction was left.
    Ended,
}

/// The reason that a row cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop<E> {
    /// The instruction eats a token that is not live.
    Missing(Token),
    /// The instruction makes a token that is live already.
    Twice(Token),
    /// The machine returned an error.
    Machine(E),
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Stop<E> {
        Stop::Machine(error)
    }
}

/// The state of one worker: its position in its row, and the tokens it holds.
#[derive(Clone, Debug)]
pub struct Row<V> {
    worker: WorkerId,
    /// Next instruction of the compute lane.
    next: usize,
    /// Next instruction of the moves lane.
    next_move: usize,
    /// Last instruction that was tried.
    tried: usize,
    ledger: Ledger<V>,
    /// Effects of the cell that runs; the allocation is reused.
    effects: Effects,
}

impl<V> Row<V> {
    /// The start of `worker`'s row.
    pub fn new(worker: WorkerId) -> Row<V> {
        Row {
            worker,
            next: 0,
            next_move: 0,
            tried: 0,
            ledger: Ledger::default(),
            effects: Effects::default(),
        }
    }

    /// Index of the next instruction of compute.
    pub fn position(&self) -> usize {
        self.next
    }

    /// Index of the last instruction that ran or blocked.
    pub fn tried(&self) -> usize {
        self.tried
    }

    /// Index of the next instruction of a lane.
    pub fn position_on(&self, lane: Lane) -> usize {
        match lane {
            Lane::Compute => self.next,
            Lane::Moves => self.next_move,
        }
    }

    /// The tokens this worker holds.
    pub fn ledger(&self) -> &Ledger<V> {
        &self.ledger
    }

    /// Runs the next instruction, if it may run: one of moves, or otherwise one of compute.
    pub fn advance<M: Machine<Value = V>>(
        &mut self,
        instrs: &[Instr],
        rules: &Rules,
        machine: &mut M,
    ) -> Result<Advance, Stop<M::Error>> {
        let mut moves = Advance::Ended;
        if rules.has_moves() {
            let at = self.seek(Lane::Moves, instrs);
            moves = self.advance_at(Lane::Moves, at, instrs, rules, machine)?;
            if let Advance::Ran(_) = moves {
                return Ok(moves);
            }
            self.seek(Lane::Compute, instrs);
        }
        match self.advance_at(Lane::Compute, self.next, instrs, rules, machine)? {
            Advance::Ended => Ok(moves),
            other => Ok(other),
        }
    }

    /// Moves to the next instruction of a lane.
    fn seek(&mut self, lane: Lane, instrs: &[Instr]) -> usize {
        let next = match lane {
            Lane::Compute => &mut self.next,
            Lane::Moves => &mut self.next_move,
        };
        while instrs.get(*next).is_some_and(|instr| instr.lane() != lane) {
            *next += 1;
        }
        *next
    }

    // Most of the time of a proof is spent here.
    #[inline(always)]
    fn advance_at<M: Machine<Value = V>>(
        &mut self,
        lane: Lane,
        at: usize,
        instrs: &[Instr],
        rules: &Rules,
        machine: &mut M,
    ) -> Result<Advance, Stop<M::Error>> {
        let Some(instr) = instrs.get(at) else {
            return Ok(Advance::Ended);
        };
        let worker = self.worker;
        self.tried = at;
        if matches!(instr, Instr::Agree) && !self.moves_are_done(instrs, rules) {
            return Ok(Advance::Blocked);
        }
        let ran = match *instr {
            Instr::Run(ref cell) => {
                let Row { effects, ledger, .. } = self;
                rules.set_cell_effects(cell, effects);
                if rules.has_moves() && !is_there(cell, effects, ledger) {
                    return Ok(Advance::Blocked);
                }
                let mut eaten = Few::new();
                for token in &effects.eats {
                    eaten.push(ledger.eat(token).ok_or(Stop::Missing(*token))?);
                }
                let made = machine.run(worker, cell, effects, eaten)?;
                for (&token, value) in effects.makes.iter().zip(made) {
                    ledger.make(token, value).map_err(|_| Stop::Twice(token))?;
                }
                true
            }
            Instr::Send(token, channel) => {
                let room = machine.has_room(channel);
                if room {
                    let value = self.ledger.eat(&token).ok_or(Stop::Missing(token))?;
                    machine.send(worker, token, channel, value)?;
                } else if !self.ledger.is_live(&token) {
                    return Err(Stop::Missing(token));
                }
                room
            }
            Instr::Recv(token, channel) => match machine.recv(worker, token, channel)? {
                Poll::Pending => false,
                Poll::Ready(value) => {
                    self.ledger.make(token, value).map_err(|_| Stop::Twice(token))?;
                    true
                }
            },
            Instr::Reduce(bucket) => {
                machine.reduce(worker, bucket)?;
                true
            }
            Instr::Await(bucket) => machine.await_sum(worker, bucket)?.is_ready(),
            Instr::Agree => machine.agree(worker)?.is_ready(),
            Instr::Step(bucket) => {
                machine.step(worker, bucket)?;
                true
            }
            Instr::Give(token) => self.give(token, lane, machine)?,
            Instr::Take(token) => self.take(token, lane, machine),
            Instr::Shard(ref op) => machine.shard(worker, op)?.is_ready(),
        };
        match lane {
            Lane::Compute => self.next += usize::from(ran),
            Lane::Moves => self.next_move += usize::from(ran),
        }
        Ok(if ran { Advance::Ran(at) } else { Advance::Blocked })
    }

    /// Frees memory, which an instruction of the other lane may wait for.
    fn give<M: Machine<Value = V>>(
        &mut self,
        token: Token,
        lane: Lane,
        machine: &mut M,
    ) -> Result<bool, Stop<M::Error>> {
        let room = machine.give(self.worker, lane);
        self.ledger.make(token, room).map_err(|_| Stop::Twice(token))?;
        Ok(true)
    }

    /// Takes memory; returns false if it is not free yet.
    fn take<M: Machine<Value = V>>(&mut self, token: Token, lane: Lane, machine: &mut M) -> bool {
        let Some(room) = self.ledger.eat(&token) else { return false };
        machine.take(self.worker, lane, room);
        true
    }

    /// Returns true if no moves are left. The step sync comes after them, since all ranks wait for
    /// each other there, and may wait for the moves.
    fn moves_are_done(&self, instrs: &[Instr], rules: &Rules) -> bool {
        !rules.has_moves()
            || instrs[self.next_move..].iter().all(|instr| instr.lane() != Lane::Moves)
    }

    /// Returns true if both lanes are at the end of their row.
    pub(crate) fn has_ended(&self, instrs: &[Instr], rules: &Rules) -> bool {
        let compute = &instrs[self.next..];
        compute.iter().all(|instr| instr.lane() != Lane::Compute)
            && self.moves_are_done(instrs, rules)
    }
}

/// Returns true if the tokens that the other lane makes for a cell are live.
fn is_there<V>(cell: &Cell, effects: &Effects, ledger: &Ledger<V>) -> bool {
    let is_move = cell.lane() == Lane::Moves;
    let mut awaited = effects.eats.iter().filter(|token| is_move || token.kind.crosses_lanes());
    awaited.all(|token| ledger.is_live(token))
}

/// All rows of a pipeline group, interleaved: each runs until it blocks, and the instruction it may
/// wait for wakes it. So the whole run costs time linear in the number of instructions.
#[derive(Debug)]
pub struct Group<'p, V> {
    program: &'p Program,
    rows: Vec<Row<V>>,
    /// Number of members of each bucket that have started its reduction.
    n_started: Vec<usize>,
}

impl<'p, V> Group<'p, V> {
    /// All workers at the start of their rows.
    pub fn new(program: &'p Program) -> Group<'p, V> {
        let rows = (0..program.rows.len()).map(|w| Row::new(WorkerId(w as u16))).collect();
        Group { program, rows, n_started: vec![0; program.buckets.len()] }
    }

    /// Runs until every row has ended (`true`) or no row can move (`false`). May be called again
    /// after a change to the machine that lets a row move.
    pub fn run<M: Machine<Value = V>>(
        &mut self,
        machine: &mut M,
    ) -> Result<bool, (WorkerId, Stop<M::Error>)> {
        let Program { rows: instrs, channels, buckets, rules, .. } = self.program;
        let everyone = || (0..instrs.len() as u16).map(WorkerId);
        let mut awake = AwakeWorkers::all(self.rows.len());
        while let Some(worker) = awake.next() {
            let instrs = &instrs[worker.index()];
            let row = &mut self.rows[worker.index()];
            let mut wake = |other: WorkerId| {
                if other != worker {
                    awake.add(other);
                }
            };
            loop {
                match row.advance(instrs, rules, machine).map_err(|s| (worker, s))? {
                    Advance::Ended | Advance::Blocked => break,
                    Advance::Ran(at) => match instrs[at] {
                        Instr::Send(_, c) => wake(channels[c.index()].to),
                        Instr::Recv(_, c) => wake(channels[c.index()].from),
                        Instr::Reduce(b) => {
                            let members = &buckets[b.index()].members;
                            self.n_started[b.index()] += 1;
                            if self.n_started[b.index()] == members.len() {
                                members.iter().copied().for_each(&mut wake);
                            }
                        }
                        Instr::Agree => everyone().for_each(&mut wake),
                        Instr::Shard(op) => op.receiver().into_iter().for_each(&mut wake),
                        Instr::Run(_)
                        | Instr::Await(_)
                        | Instr::Step(_)
                        | Instr::Give(_)
                        | Instr::Take(_) => {}
                    },
                }
            }
        }
        Ok(self.rows.iter().zip(instrs).all(|(row, instrs)| row.has_ended(instrs, rules)))
    }

    /// Every row, by worker.
    pub fn rows(&self) -> &[Row<V>] {
        &self.rows
    }
}

/// The workers that may be able to go on, first woken first.
struct AwakeWorkers {
    queue: VecDeque<WorkerId>,
    is_queued: Vec<bool>,
}

impl AwakeWorkers {
    fn all(n_workers: usize) -> AwakeWorkers {
        let queue = (0..n_workers as u16).map(WorkerId).collect();
        AwakeWorkers { queue, is_queued: vec![true; n_workers] }
    }

    fn next(&mut self) -> Option<WorkerId> {
        let worker = self.queue.pop_front()?;
        self.is_queued[worker.index()] = false;
        Some(worker)
    }

    fn add(&mut self, worker: WorkerId) {
        if !std::mem::replace(&mut self.is_queued[worker.index()], true) {
            self.queue.push_back(worker);
        }
    }
}

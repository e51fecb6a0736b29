//! Runs the rows of a program on a [`Machine`].
//!
//! A [`Row`] knows when an instruction may run, and that is written here alone. What it means to run
//! one is the machine's: the checker follows versions of the weights, the simulator adds up times, the
//! engine computes tensors. [`Group`] interleaves all rows of a pipeline group, for machines that see them
//! all at once; the engine drives the one row of its worker.

use std::collections::VecDeque;
use std::task::Poll;

use crate::effects::{Effects, Rules, Token};
use crate::few::Few;
use crate::ids::{BucketId, ChannelId, WorkerId};
use crate::ledger::Ledger;
use crate::op::Cell;
use crate::program::{Instr, Program};

/// A world in which a program runs.
pub trait Machine {
    /// What a token carries.
    type Value;
    /// Why the machine stops.
    type Error;

    /// Runs a cell, which has these [`effects`](Rules::cell_effects), on the values of the tokens it eats; returns
    /// those of the tokens it makes, in order.
    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<Self::Value>,
    ) -> Result<Few<Self::Value>, Self::Error>;

    /// Whether the channel has room for one more message.
    fn has_room(&mut self, channel: ChannelId) -> bool;

    /// Puts a value on its way.
    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Self::Value,
    ) -> Result<(), Self::Error>;

    /// Takes the next value of a channel, which is `token`'s.
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

    /// Agrees with all workers on gradient norm, loss, and whether to go on. A worker that has to wait
    /// asks again when another has arrived.
    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Self::Error>;

    /// Updates the weights of a bucket.
    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Self::Error>;
}

/// How far one instruction got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advance {
    /// It ran.
    Ran,
    /// It has to wait for another worker.
    Blocked,
    /// There was none left.
    Ended,
}

/// Why a row cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop<E> {
    /// The instruction eats a token that is not live.
    Missing(Token),
    /// The instruction makes a token that is live already.
    Twice(Token),
    /// The machine refused.
    Machine(E),
}

impl<E> From<E> for Stop<E> {
    fn from(error: E) -> Stop<E> {
        Stop::Machine(error)
    }
}

/// Where one worker is in its row, and the tokens it holds.
#[derive(Clone, Debug)]
pub struct Row<V> {
    worker: WorkerId,
    next: usize,
    ledger: Ledger<V>,
    /// Of the cell that is run, kept for its room.
    effects: Effects,
}

impl<V> Row<V> {
    /// The start of `worker`'s row.
    pub fn new(worker: WorkerId) -> Row<V> {
        Row { worker, next: 0, ledger: Ledger::default(), effects: Effects::default() }
    }

    /// Index of the next instruction.
    pub fn position(&self) -> usize {
        self.next
    }

    /// The tokens this worker holds.
    pub fn ledger(&self) -> &Ledger<V> {
        &self.ledger
    }

    /// Runs the next instruction, if it may run.
    pub fn advance<M: Machine<Value = V>>(
        &mut self,
        instrs: &[Instr],
        rules: &Rules,
        machine: &mut M,
    ) -> Result<Advance, Stop<M::Error>> {
        let Some(instr) = instrs.get(self.next) else {
            return Ok(Advance::Ended);
        };
        let worker = self.worker;
        let ran = match *instr {
            Instr::Run(ref cell) => {
                let Row { effects, ledger, .. } = self;
                rules.set_cell_effects(cell, effects);
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
        };
        self.next += usize::from(ran);
        Ok(if ran { Advance::Ran } else { Advance::Blocked })
    }
}

/// All rows of a pipeline group, interleaved: each runs until it blocks and is woken by the
/// instruction it may wait for, so that the whole costs time linear in the number of instructions.
#[derive(Debug)]
pub struct Group<'p, V> {
    program: &'p Program,
    rows: Vec<Row<V>>,
    /// By bucket: how many members have started its reduction.
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
        let mut queue: VecDeque<WorkerId> = everyone().collect();
        let mut is_queued = vec![true; self.rows.len()];

        while let Some(worker) = queue.pop_front() {
            is_queued[worker.index()] = false;
            let instrs = &instrs[worker.index()];
            let row = &mut self.rows[worker.index()];
            let mut wake = |w: WorkerId| {
                if w != worker && !std::mem::replace(&mut is_queued[w.index()], true) {
                    queue.push_back(w);
                }
            };
            loop {
                let at = row.next;
                match row.advance(instrs, rules, machine).map_err(|s| (worker, s))? {
                    Advance::Ended | Advance::Blocked => break,
                    Advance::Ran => match instrs[at] {
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
                        Instr::Run(_) | Instr::Await(_) | Instr::Step(_) => {}
                    },
                }
            }
        }
        Ok(self.rows.iter().zip(instrs).all(|(row, instrs)| row.next == instrs.len()))
    }

    /// Every row, by worker.
    pub fn rows(&self) -> &[Row<V>] {
        &self.rows
    }
}

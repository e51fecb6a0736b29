//! The messages in a file: checks that they are those of its ops, and arrive.
//!
//! PyTorch's messages have no tags. Two ranks share one queue, in which both directions stand in
//! order: the n-th action of one rank with the other meets the n-th of its peer. An action begins
//! when its row reaches it, and does not block; an op waits for the messages that it needs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::entry::Message;
use super::place::Place;
use crate::interchange::json::ReadError;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Kind, Op};

/// A message between stages: an activation or a gradient, the stage that makes it, the micro-batch.
type Key = (bool, u16, u32);

/// One action of a row, in order.
#[derive(Clone, Copy)]
enum Step {
    Op,
    Message(Message),
}

/// The messages of a file, among the places of its ops.
#[derive(Default)]
pub(super) struct Messages {
    /// Steps of each row with their columns. Empty rows at the end are left out.
    rows: Vec<Vec<(usize, Step)>>,
    has_any: bool,
}

impl Messages {
    /// Adds a cell of ops.
    pub(super) fn op(&mut self, place: Place) {
        self.step(place, Step::Op);
    }

    /// Adds one end of a message.
    pub(super) fn message(&mut self, message: Message, place: Place) -> Result<(), ReadError> {
        self.has_any = true;
        if !message.is_activation && !message.sends && message.stage == u16::MAX {
            return Err(place.refuse("the stage is too large"));
        }
        self.step(place, Step::Message(message));
        Ok(())
    }

    fn step(&mut self, place: Place, step: Step) {
        if self.rows.len() <= place.row {
            self.rows.resize_with(place.row + 1, Vec::new);
        }
        self.rows[place.row].push((place.column, step));
    }

    /// Checks the messages of a file that has any.
    pub(super) fn check(&self, cells: &[Vec<Cell>], workers: &[WorkerId]) -> Result<(), ReadError> {
        if !self.has_any {
            return Ok(());
        }
        let chain = Chain { workers };
        for (row, steps) in self.rows.iter().enumerate() {
            check_row(row, steps, &cells[row], &chain)?;
        }
        Arrivals::new(self, cells, &chain).run()
    }
}

/// The stages of a file, one after the other.
struct Chain<'w> {
    workers: &'w [WorkerId],
}

impl Chain<'_> {
    fn rank(&self, stage: u16) -> Option<usize> {
        self.workers.get(usize::from(stage)).map(|worker| worker.index())
    }

    /// Returns the stage that takes a message, if it is on another rank.
    fn taker(&self, (is_activation, made, _): Key) -> Option<u16> {
        let taker = if is_activation { made.checked_add(1) } else { made.checked_sub(1) }?;
        (self.rank(taker)? != self.rank(made)?).then_some(taker)
    }

    /// Returns the message that an op makes for another rank.
    fn made(&self, op: Op) -> Option<Key> {
        let is_activation = match op.kind {
            Kind::Forward => true,
            Kind::Backward | Kind::BackwardInput => false,
            _ => return None,
        };
        let key = (is_activation, op.stage.0, op.span.start);
        self.taker(key).map(|_| key)
    }

    /// Returns the message that an op needs from another rank.
    fn needed(&self, op: Op) -> Option<Key> {
        let key = match op.kind {
            Kind::Forward => (true, op.stage.0.checked_sub(1)?, op.span.start),
            Kind::Backward | Kind::BackwardInput => {
                (false, op.stage.0.checked_add(1)?, op.span.start)
            }
            _ => return None,
        };
        self.taker(key).map(|_| key)
    }

    /// Returns the message of an action, if lowering makes it for this rank.
    fn key(&self, row: usize, message: Message) -> Option<Key> {
        let made = match (message.sends, message.is_activation) {
            (true, _) => message.stage,
            (false, true) => message.stage.checked_sub(1)?,
            (false, false) => message.stage.checked_add(1)?,
        };
        let key = (message.is_activation, made, message.micro_batch);
        let taker = self.taker(key)?;
        (self.rank(if message.sends { made } else { taker }) == Some(row)).then_some(key)
    }

    /// The action of one end of a message.
    fn action(&self, key: Key, sends: bool) -> String {
        let stage = if sends { key.1 } else { self.taker(key).unwrap_or(key.1) };
        let letter = if key.0 { 'F' } else { 'B' };
        format!("{stage}{}_{letter}{}", if sends { "SEND" } else { "RECV" }, key.2)
    }
}

fn name(op: Op) -> String {
    format!("{}{}{}", op.stage.0, op.kind.letter(), op.span.start)
}

fn said(message: Message) -> String {
    let what = if message.sends { "SEND" } else { "RECV" };
    let letter = if message.is_activation { 'F' } else { 'B' };
    format!("{}{what}_{letter}{}", message.stage, message.micro_batch)
}

/// Checks one row: each op has what it needs before it, and what it makes is sent after it.
fn check_row(
    row: usize,
    steps: &[(usize, Step)],
    cells: &[Cell],
    chain: &Chain<'_>,
) -> Result<(), ReadError> {
    let mut made: BTreeMap<Key, (usize, Op)> = BTreeMap::new();
    let mut sent = BTreeSet::new();
    let mut received = BTreeSet::new();
    let mut cells = cells.iter();
    for (column, step) in steps {
        let refuse = |reason: String| Place { row, column: *column }.refuse(reason);
        let message = match step {
            Step::Message(message) => *message,
            Step::Op => {
                for op in cells.next().into_iter().flat_map(Cell::ops) {
                    if let Some(key) = chain.needed(op).filter(|key| !received.contains(key)) {
                        let action = chain.action(key, false);
                        return Err(refuse(format!("{} needs {action} before it", name(op))));
                    }
                    made.extend(chain.made(op).map(|key| (key, (*column, op))));
                }
                continue;
            }
        };
        let Some(key) = chain.key(row, message) else {
            let reason = "no such message goes between ranks: leave it out";
            return Err(refuse(format!("`{}`: {reason}", said(message))));
        };
        if message.sends && !made.contains_key(&key) {
            return Err(refuse(format!("`{}` stands before the op that makes it", said(message))));
        }
        let ends = if message.sends { &mut sent } else { &mut received };
        if !ends.insert(key) {
            return Err(refuse(format!("a second {}", said(message))));
        }
    }
    let unsent = made.iter().filter(|(key, _)| !sent.contains(key)).map(|(key, at)| (at, key));
    match unsent.min_by_key(|((column, _), _)| *column) {
        Some(((column, op), key)) => {
            let action = chain.action(*key, true);
            let reason = format!("{} is never sent: write {action} after it", name(*op));
            Err(Place { row, column: *column }.refuse(reason))
        }
        None => Ok(()),
    }
}

/// One end of a message, at its place.
type End = (Key, bool, Place);

/// All rows as they run.
struct Arrivals<'f> {
    messages: &'f Messages,
    cells: &'f [Vec<Cell>],
    chain: &'f Chain<'f>,
    /// Next step and next cell of each row.
    at: Vec<(usize, usize)>,
    /// By lower and higher rank: the actions of each that have begun and await the peer's.
    queues: BTreeMap<(usize, usize), [VecDeque<End>; 2]>,
    arrived: BTreeSet<Key>,
}

impl<'f> Arrivals<'f> {
    fn new(messages: &'f Messages, cells: &'f [Vec<Cell>], chain: &'f Chain<'f>) -> Self {
        let at = vec![(0, 0); cells.len()];
        Arrivals { messages, cells, chain, at, queues: BTreeMap::new(), arrived: BTreeSet::new() }
    }

    /// Runs all rows to their ends.
    fn run(mut self) -> Result<(), ReadError> {
        loop {
            let before = self.at.clone();
            for row in 0..self.at.len() {
                self.advance(row)?;
            }
            if self.at == before {
                return self.check_end();
            }
        }
    }

    /// Runs a row up to the first op whose message has not arrived.
    fn advance(&mut self, row: usize) -> Result<(), ReadError> {
        let steps = &self.messages.rows[row];
        while let Some((column, step)) = steps.get(self.at[row].0) {
            match step {
                Step::Op => {
                    let needs = |op| self.chain.needed(op);
                    let mut needed = self.cells[row][self.at[row].1].ops().filter_map(needs);
                    if needed.any(|key| !self.arrived.contains(&key)) {
                        return Ok(());
                    }
                    self.at[row].1 += 1;
                }
                Step::Message(message) => {
                    if let Some(key) = self.chain.key(row, *message) {
                        self.begin(row, (key, message.sends, Place { row, column: *column }))?;
                    }
                }
            }
            self.at[row].0 += 1;
        }
        Ok(())
    }

    /// Begins an action, and lets those meet that stand first on both ranks.
    fn begin(&mut self, row: usize, end: End) -> Result<(), ReadError> {
        let key = end.0;
        let ends = [Some(key.1), self.chain.taker(key)];
        let ranks = ends.map(|stage| stage.and_then(|stage| self.chain.rank(stage)).unwrap_or(row));
        let pair = (ranks[0].min(ranks[1]), ranks[0].max(ranks[1]));
        let queues = self.queues.entry(pair).or_default();
        queues[usize::from(row == pair.1)].push_back(end);
        while let (Some(a), Some(b)) = (queues[0].front().copied(), queues[1].front().copied()) {
            if a.0 != b.0 {
                return Err(mismatch(self.chain, a, b));
            }
            self.arrived.insert(a.0);
            for queue in queues.iter_mut() {
                queue.pop_front();
            }
        }
        Ok(())
    }

    /// Refuses rows that have not come to their ends.
    fn check_end(&self) -> Result<(), ReadError> {
        for (row, steps) in self.messages.rows.iter().enumerate() {
            let Some((column, _)) = steps.get(self.at[row].0) else { continue };
            let ops = self.cells[row][self.at[row].1].ops();
            let mut waits = ops.filter_map(|op| Some((op, self.chain.needed(op)?)));
            if let Some((op, key)) = waits.find(|(_, key)| !self.arrived.contains(key)) {
                let sent = self.chain.action(key, true);
                let reason = format!("it hangs: {} waits for {sent}, which never begins", name(op));
                return Err(Place { row, column: *column }.refuse(reason));
            }
        }
        Ok(())
    }
}

/// The refusal of two actions that meet and are not the ends of one message.
fn mismatch(chain: &Chain<'_>, a: End, b: End) -> ReadError {
    let (first, second) = if b.1 { (b, a) } else { (a, b) };
    let [one, other] = [first, second].map(|(key, sends, _)| chain.action(key, sends));
    let at = first.2;
    let reason = match (first.1, second.1) {
        (true, false) => format!("messages cross: {other} takes what {one} sends, at {at}"),
        (true, true) => format!("it hangs: {other} meets {one}, at {at}, and both send"),
        _ => format!("it hangs: {other} meets {one}, at {at}, and both receive"),
    };
    second.2.refuse(format!("{reason}; the messages of two ranks have one order on both"))
}

//! The proof for transports that serialise operations on a device.
//!
//! NCCL requires the operations of all communicators of a device to be issued in an order that all
//! devices agree on: each runs to its end before the next begins, and a send ends only when its
//! receive has begun. Rows as they are written often have no such order: a receive stands where its
//! tensor is used, perhaps long after the sender waits with its next message. But receives can be
//! posted earlier, and then there is an order: the times at which messages can be sent. What a
//! worker sends depends only on what was sent before.

use rustc_hash::{FxHashMap, FxHashSet};

use super::proof::refusal::{Reason, Refusal, refusal};
use super::simulate;
use super::simulation::timeline::Work;
use crate::costs::UniformCosts;
use crate::effects::Token;
use crate::ir::ids::{BucketId, WorkerId};
use crate::program::{Instr, Program};

/// An operation of several workers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Together {
    /// A message, by its sender and its receiver.
    Message(Token),
    /// The sum of a bucket, by its members.
    Reduction(BucketId),
    /// The step sync, by all.
    Agreement,
}

/// An order of all messages and reductions that every worker can keep, one after another, if it
/// posts each receive in its turn. It is proven: a transport that issues them in this order does
/// not hang.
///
/// # Errors
/// If there is no such order. There is none in a program with moves of activations, which run in
/// parallel to its messages.
pub fn prove_in_one_order(program: &Program) -> Result<Vec<Together>, Refusal> {
    Ok(prove_in_groups(program)?.concat())
}

/// The order of [`prove_in_one_order`] in groups that every worker can issue at once when it has
/// reached all its parts: messages that can be sent at one time, or a reduction, or the step sync.
///
/// # Errors
/// If there is no such order.
pub fn prove_in_groups(program: &Program) -> Result<Vec<Vec<Together>>, Refusal> {
    if program.rules().has_moves() || program.shards_weights() {
        return Err(refusal(program, None, Reason::MovesBeside));
    }
    let order = by_time(program);
    let is_message = |event: &Together| matches!(event, Together::Message(_));
    let is_one = |a: &(Together, f64), b: &(Together, f64)| {
        a.1.total_cmp(&b.1).is_eq() && is_message(&a.0) && is_message(&b.0)
    };
    let events = |group: &[(Together, f64)]| group.iter().map(|(event, _)| *event).collect();
    let groups: Vec<Vec<Together>> = order.chunk_by(is_one).map(events).collect();
    if keep(program, &groups).is_ok() {
        return Ok(groups);
    }
    let alone: Vec<_> = groups.into_iter().flatten().map(|event| vec![event]).collect();
    keep(program, &alone).map(|()| alone)
}

/// The rows of `program` for transports that distinguish messages only by their order, such as
/// NCCL: messages and reductions of each worker stand in the one proven order.
///
/// Each stands in its turn. A receive is posted there, perhaps long before the cell that eats its
/// token, and waited for before that cell; waiting at once is safe too, and slower. A send or a
/// reduction may stand after cells that follow it in [`Program::rows`].
///
/// # Errors
/// If there is no such order.
pub fn rows_in_one_order(program: &Program) -> Result<Vec<Vec<Instr>>, Refusal> {
    let order = prove_in_one_order(program)?;
    let turns: FxHashMap<Together, usize> = order.into_iter().zip(0..).collect();
    Ok(program.rows().iter().map(|row| in_turn(row, &turns)).collect())
}

/// Returns a row with its messages and reductions in the order of their turns.
fn in_turn(row: &[Instr], turns: &FxHashMap<Together, usize>) -> Vec<Instr> {
    let turn = |instr: &Instr| turns.get(&shared(instr)?).copied();
    let mut own: Vec<(usize, Instr)> = row.iter().filter_map(|i| Some((turn(i)?, *i))).collect();
    own.sort_by_key(|(turn, _)| *turn);
    let mut own = own.into_iter().peekable();
    // A receive can be posted at any time, everything else when the row has come to it.
    let mut reached: FxHashSet<usize> = FxHashSet::default();
    let mut out = Vec::with_capacity(row.len());
    let mut place = |reached: &FxHashSet<usize>, out: &mut Vec<Instr>| {
        let may = |(turn, instr): &(usize, Instr)| {
            matches!(instr, Instr::Recv(..)) || reached.contains(turn)
        };
        while let Some((_, instr)) = own.next_if(may) {
            out.push(instr);
        }
    };
    place(&reached, &mut out);
    for instr in row {
        match turn(instr) {
            Some(turn) => {
                reached.insert(turn);
                place(&reached, &mut out);
            }
            None => out.push(*instr),
        }
    }
    out
}

/// The shared operation that an instruction takes part in or starts.
fn shared(instr: &Instr) -> Option<Together> {
    match *instr {
        Instr::Send(token, _) | Instr::Recv(token, _) => Some(Together::Message(token)),
        Instr::Agree => Some(Together::Agreement),
        instr => instr.reduced().map(Together::Reduction),
    }
}

/// The shared operation that an instruction waits for.
fn waited_for(instr: &Instr) -> Option<Together> {
    instr.counterpart().as_ref().and_then(shared)
}

/// Messages by the time at which they can be sent, and reductions by the time at which the last
/// member reaches them.
fn by_time(program: &Program) -> Vec<(Together, f64)> {
    let timeline = simulate(program, &UniformCosts::new(1.0, 1.0, 0.0));
    let mut times: FxHashMap<Together, f64> = FxHashMap::default();
    for (row, events) in program.rows().iter().zip(timeline.rows()) {
        let cells = events.into_iter().filter(|event| matches!(event.work, Work::Cell(_)));
        let mut ends = cells.map(|event| event.end);
        let mut clock = 0.0;
        for instr in row {
            match *instr {
                Instr::Run(_) => clock = ends.next().unwrap_or(clock),
                Instr::Send(token, _) => _ = times.insert(Together::Message(token), clock),
                Instr::Agree => _ = times.insert(Together::Agreement, f64::INFINITY),
                instr => {
                    if let Some(bucket) = instr.reduced() {
                        let latest = times.entry(Together::Reduction(bucket)).or_default();
                        *latest = latest.max(clock);
                    }
                }
            }
        }
    }
    // At equal times messages come first: a message after a reduction follows a cell, and is later.
    let place = |event: &Together| match *event {
        Together::Message(token) => (0, 0, Some(token)),
        Together::Reduction(bucket) => (1, program.buckets()[bucket.index()].order, None),
        Together::Agreement => (2, 0, None),
    };
    let mut order: Vec<(Together, f64)> = times.into_iter().collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| place(&a.0).cmp(&place(&b.0))));
    order
}

/// Proves that all workers come to the end if each does its part of `groups` in that order, each
/// group when it has come to all of its parts.
fn keep(program: &Program, groups: &[Vec<Together>]) -> Result<(), Refusal> {
    let mut workers: Vec<Queue> = program.rows().iter().map(|row| Queue::new(row)).collect();
    workers.iter_mut().for_each(Queue::compute);
    let mut awaited = None;
    for group in groups {
        let has_come =
            |event: &&Together| parts(program, event).all(|w| workers[w.index()].can(event));
        awaited = group.iter().find(|event| !has_come(event));
        if awaited.is_some() {
            break;
        }
        for event in group {
            for worker in parts(program, event) {
                workers[worker.index()].open.remove(event);
            }
        }
        for event in group {
            parts(program, event).for_each(|w| workers[w.index()].compute());
        }
    }
    let Some(stuck) = workers.iter().position(|w| w.at < w.row.len()) else {
        return Ok(());
    };
    let waits = awaited.map(|event| format!("all wait with {}", words(event)));
    let reason = Reason::Order(waits.into_iter().collect());
    Err(refusal(program, Some((WorkerId(stuck as u16), workers[stuck].at)), reason))
}

/// The workers that take part in an event.
fn parts(program: &Program, event: &Together) -> impl Iterator<Item = WorkerId> {
    let (ends, members, all) = match *event {
        Together::Message(Token { pipe, stage, to, .. }) => {
            let ends = [stage, to].map(|stage| program.placement().worker(pipe, stage));
            (Some(ends), &[][..], 0)
        }
        Together::Reduction(bucket) => (None, &program.buckets()[bucket.index()].members[..], 0),
        Together::Agreement => (None, &[][..], program.rows().len() as u16),
    };
    ends.into_iter().flatten().chain(members.iter().copied()).chain((0..all).map(WorkerId))
}

/// A worker that computes up to its shared operations.
struct Queue<'p> {
    row: &'p [Instr],
    /// The instruction at which the worker waits.
    at: usize,
    /// Unfinished shared operations of the worker, each with whether the worker has reached it.
    open: FxHashMap<Together, bool>,
}

impl<'p> Queue<'p> {
    fn new(row: &'p [Instr]) -> Queue<'p> {
        let mut open: FxHashMap<Together, bool> = FxHashMap::default();
        for instr in row {
            // A receive can be posted at any time.
            let is_posted = matches!(instr, Instr::Recv(..));
            open.extend(shared(instr).map(|event| (event, is_posted)));
        }
        Queue { row, at: 0, open }
    }

    /// Runs everything that waits for nothing.
    fn compute(&mut self) {
        while let Some(instr) = self.row.get(self.at) {
            let comes_to = shared(instr).filter(|_| !matches!(instr, Instr::Recv(..)));
            if let Some(has_come) = comes_to.and_then(|event| self.open.get_mut(&event)) {
                *has_come = true;
            }
            if waited_for(instr).is_some_and(|event| self.open.contains_key(&event)) {
                break;
            }
            self.at += 1;
        }
    }

    fn can(&self, event: &Together) -> bool {
        self.open.get(event).copied().unwrap_or(true)
    }
}

fn words(event: &Together) -> String {
    match event {
        Together::Message(token) => format!("the message of {token}"),
        Together::Reduction(bucket) => format!("the reduction of {bucket}"),
        Together::Agreement => "the agreement".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{Lowering, Sync, bpipe, lower};
    use crate::schedule::{Scaling, Shape, find};

    fn program(schedule: &str, shape: Shape, sync: Sync) -> Program {
        let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
        lower(&timetable, &Lowering { sync, ..Lowering::default() }).expect("proven")
    }

    #[test]
    fn receives_that_stand_late_are_posted_early() {
        let doubling = Shape { scaling: Scaling::Doubling, ..Shape::new(4, 16) };
        for (_, sync) in Sync::ALL.into_iter().filter(|(_, sync)| sync.has_one_order()) {
            for (schedule, shape) in [
                ("chimera", doubling),
                ("gems", Shape::new(4, 8)),
                ("zb-h2", Shape::new(4, 12)),
                ("dualpipe", Shape::new(4, 12)),
                ("interleaved", Shape::new(4, 8)),
                ("dapple", Shape { n_in_turn: 2, ..Shape::new(4, 8) }),
            ] {
                let proof = prove_in_one_order(&program(schedule, shape, sync));
                assert!(proof.is_ok(), "{schedule} {shape:?}: {}", proof.unwrap_err());
            }
        }
    }

    #[test]
    fn moves_are_in_no_order_with_messages() {
        let timetable = find("1f1b").expect("known").timetable(&Shape::new(4, 6)).expect("fits");
        let moved = bpipe(timetable, &UniformCosts::EQUAL).expect("sound");
        let program = lower(&moved, &Lowering::default()).expect("proven");
        let refusals = [prove_in_one_order(&program).err(), rows_in_one_order(&program).err()];
        for refusal in refusals {
            assert_eq!(refusal.map(|refusal| refusal.reason), Some(Reason::MovesBeside));
        }
    }

    #[test]
    fn an_order_that_nobody_can_keep_is_refused() {
        let program = program("dapple", Shape::new(2, 2), Sync::AtEnd);
        let mut order = prove_in_one_order(&program).expect("there is one");
        let n_messages = order.iter().filter(|e| matches!(e, Together::Message(_))).count();
        assert_eq!(n_messages, 4);
        order[..n_messages].reverse();
        let order: Vec<_> = order.into_iter().map(|event| vec![event]).collect();
        let refusal = keep(&program, &order).expect_err("gradients before their activations");
        assert!(refusal.to_string().contains("all wait with the message of"), "{refusal}");
    }
}

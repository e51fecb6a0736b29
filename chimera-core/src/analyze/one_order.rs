//! The proof for transports that serialise on a device.
//!
//! NCCL wants the operations of all communicators of a device issued in an order that all devices agree
//! on: each runs to its end before the next begins, and a send ends only when its receive has begun. So
//! a worker has one queue of communication beside its compute. What stands between two cells of its row
//! is one group, whose members proceed together (`ncclGroupStart`); groups follow each other.

use rustc_hash::FxHashMap;

use super::check::refusal;
use super::refusal::{Reason, Refusal};
use crate::effects::Token;
use crate::ids::{BucketId, WorkerId};
use crate::lower::{Instr, Program};

/// Proves that messages and reductions together follow one order on all workers, so that a transport
/// which runs them one after another on each device does not stand still.
pub fn prove_in_one_order(program: &Program) -> Result<(), Refusal> {
    let mut queues: Vec<Queue> = program.rows().iter().map(|row| Queue::new(row)).collect();
    let mut moved = true;
    while moved {
        moved = queues.iter_mut().map(Queue::compute).fold(false, |any, moved| any | moved);
        moved |= communicate(program, &mut queues);
    }
    let Some(stuck) = queues.iter().position(|q| q.group < q.groups.len()) else {
        return Ok(());
    };
    let waits = queues.iter().enumerate().filter_map(|(w, q)| {
        let open = q.groups.get(q.group)?.open();
        Some(format!("{} waits with {}", WorkerId(w as u16), open.join(", ")))
    });
    let at = queues[stuck].groups[queues[stuck].group].start;
    let reason = Reason::Order(waits.collect());
    Err(refusal(program, Some((WorkerId(stuck as u16), at)), reason))
}

/// One worker's communication in the order of issue.
struct Queue {
    groups: Vec<Group>,
    /// The first group that is not done.
    group: usize,
    /// How many groups compute has issued: the one after each cell that has run.
    n_issued: usize,
}

/// What stands between two cells.
struct Group {
    /// Index of its first instruction in the row.
    start: usize,
    /// Sends, receives, reductions and the agreement, each with whether it is done.
    instrs: Vec<(Instr, bool)>,
}

impl Queue {
    fn new(row: &[Instr]) -> Queue {
        let mut groups = Vec::new();
        let mut group = Group { start: 0, instrs: Vec::new() };
        for (i, instr) in row.iter().enumerate() {
            match instr {
                Instr::Run(_) => {
                    let next = Group { start: i + 1, instrs: Vec::new() };
                    groups.push(std::mem::replace(&mut group, next));
                }
                Instr::Await(_) | Instr::Step(_) => {}
                _ => group.instrs.push((*instr, false)),
            }
        }
        groups.push(group);
        Queue { groups, group: 0, n_issued: 1 }
    }

    /// Runs the cells whose receives are done; returns whether any did.
    fn compute(&mut self) -> bool {
        let before = self.n_issued;
        while self.n_issued < self.groups.len() {
            let is_open = |(instr, done): &(Instr, bool)| matches!(instr, Instr::Recv(..)) && !done;
            if self.groups[self.n_issued - 1].instrs.iter().any(is_open) {
                break;
            }
            self.n_issued += 1;
        }
        self.n_issued > before
    }

    /// The group under way, if compute has issued it.
    fn current(&mut self) -> Option<&mut Group> {
        while self.group < self.n_issued && self.groups[self.group].is_done() {
            self.group += 1;
        }
        if self.group < self.n_issued { Some(&mut self.groups[self.group]) } else { None }
    }
}

impl Group {
    fn is_done(&self) -> bool {
        self.instrs.iter().all(|(_, done)| *done)
    }

    fn open(&self) -> Vec<String> {
        let open = self.instrs.iter().filter(|(_, done)| !done);
        open.map(|(instr, _)| match instr {
            Instr::Send(token, _) => format!("the send of {token}"),
            Instr::Recv(token, _) => format!("the receive of {token}"),
            Instr::Reduce(bucket) => format!("the reduction of {bucket}"),
            _ => "the agreement".to_string(),
        })
        .collect()
    }
}

/// Finishes what all its parties have under way; returns whether anything was.
fn communicate(program: &Program, queues: &mut [Queue]) -> bool {
    let mut parties: FxHashMap<Event, usize> = FxHashMap::default();
    for queue in queues.iter_mut() {
        for (instr, _) in queue.current().iter().flat_map(|g| &g.instrs).filter(|(_, done)| !done) {
            *parties.entry(Event::of(instr)).or_default() += 1;
        }
    }
    let n_parties = |event: &Event| match event {
        Event::Message(..) => 2,
        Event::Reduction(bucket) => program.buckets()[bucket.index()].members.len(),
        Event::Agreement => program.rows().len(),
    };
    parties.retain(|event, n| *n == n_parties(event));
    for queue in queues.iter_mut() {
        for (instr, done) in queue.current().into_iter().flat_map(|g| &mut g.instrs) {
            *done |= parties.contains_key(&Event::of(instr));
        }
    }
    !parties.is_empty()
}

/// What several workers do together.
#[derive(PartialEq, Eq, Hash)]
enum Event {
    Message(Token),
    Reduction(BucketId),
    Agreement,
}

impl Event {
    fn of(instr: &Instr) -> Event {
        match *instr {
            Instr::Send(token, _) | Instr::Recv(token, _) => Event::Message(token),
            Instr::Reduce(bucket) => Event::Reduction(bucket),
            _ => Event::Agreement,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{Lowering, Sync, lower};
    use crate::schedule::{Scaling, Shape, find};

    fn prove(schedule: &str, shape: Shape, sync: Sync) -> Result<(), String> {
        let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
        let how = Lowering { sync, ..Lowering::default() };
        let program = lower(&timetable, &how).expect("proven");
        prove_in_one_order(&program).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn alternating_schedules_follow_one_order() {
        for (_, sync) in Sync::ALL {
            for (schedule, shape) in [
                ("gpipe", Shape::new(4, 8)),
                ("dapple", Shape::new(4, 8)),
                ("chimera", Shape::new(8, 16)),
                ("chimera", Shape { n_pipes: 4, ..Shape::new(8, 16) }),
                ("chimera", Shape { scaling: Scaling::Halving, ..Shape::new(4, 16) }),
            ] {
                assert_eq!(prove(schedule, shape, sync), Ok(()), "{schedule} {shape:?}");
            }
        }
    }

    #[test]
    fn a_send_whose_receive_stands_later_is_refused() {
        let doubling = Shape { scaling: Scaling::Doubling, ..Shape::new(4, 16) };
        let refusal = prove("chimera", doubling, Sync::AtEnd).expect_err("two forwards in a row");
        let want = "worker 0 waits with the send of activation(pipe 0, stage 0, micro-batch 2)";
        assert!(refusal.contains(want), "{refusal}");
    }

    #[test]
    fn an_early_reduction_may_block_the_messages_behind_it() {
        assert_eq!(prove("gems", Shape::new(4, 8), Sync::AtEnd), Ok(()));
        let refusal = prove("gems", Shape::new(4, 8), Sync::Eager).expect_err("replicas far apart");
        assert!(refusal.contains("waits with the reduction of bucket"), "{refusal}");
    }
}

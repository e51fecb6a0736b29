//! Trainings over a transport that issues messages strictly in the one order that a program is
//! proven to have, each only when both of its ranks have come to it. They finish with the bits of
//! any other transport.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use chimera_engine::comm::{
    AllReduce, Comm, CommError, Endpoint, Liveness, Ordered, OrderedMessage, Tag, Threads,
};
use chimera_engine::device::reference::Tensor;
use chimera_engine::fault::Fault;
use chimera_schedule::ids::Rank;
use chimera_schedule::lower::Sync;
use chimera_schedule::schedule::{Scaling, Shape, find};

use crate::training::{Run, body, execute};

/// Longer than any computation of a rank here.
const LONG: Duration = Duration::from_secs(20);

/// A transport like NCCL in which no group can begin on only one rank.
struct InOrder<'c> {
    inner: &'c mut Threads<Tensor>,
    groups: VecDeque<Vec<OrderedMessage>>,
    outbox: HashMap<(Rank, Tag), Tensor>,
    /// `None` for a message that has not arrived.
    inbox: HashMap<(Rank, Tag), Option<Tensor>>,
    /// Numbers of messages so far, by peer and direction.
    n_messages: HashMap<(Rank, bool), u64>,
}

impl<'c> InOrder<'c> {
    fn new(inner: &'c mut Threads<Tensor>) -> Self {
        let (outbox, inbox) = (HashMap::new(), HashMap::new());
        InOrder { inner, groups: VecDeque::new(), outbox, inbox, n_messages: HashMap::new() }
    }

    fn lacks_own(&self) -> bool {
        let mut sends = self.groups.front().into_iter().flatten().filter(|turn| turn.sends);
        sends.any(|turn| !self.outbox.contains_key(&(turn.peer, turn.tag)))
    }

    fn progress(&mut self) -> Result<(), CommError> {
        while !self.lacks_own() {
            let Some(group) = self.groups.pop_front() else { break };
            let mut awaited = Vec::new();
            for turn in group {
                let n = self.n_messages.entry((turn.peer, turn.sends)).or_default();
                let [here, there] = [turn.sends, !turn.sends].map(|s| Tag::private(s.into(), *n));
                *n += 1;
                let begun = || Tensor { shape: vec![0], data: Vec::new() };
                let given =
                    if turn.sends { self.outbox.remove(&(turn.peer, turn.tag)) } else { None };
                self.inner.send(turn.peer, here, given.unwrap_or_else(begun))?;
                awaited.push((turn, there));
            }
            for (OrderedMessage { peer, sends, tag }, there) in awaited {
                let come = self.inner.recv(peer, there, Instant::now() + LONG)?;
                if !sends {
                    self.inbox.insert((peer, tag), Some(come));
                }
            }
        }
        Ok(())
    }
}

/// It never reports a request to stop, so steps that were begun are finished.
impl Liveness for InOrder<'_> {}

impl Endpoint for InOrder<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.inner.send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.inner.try_recv_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        assert!(
            self.groups.is_empty(),
            "a rank waits for all others before its messages are issued"
        );
        self.inner.recv_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }

    fn ordered(&mut self) -> Option<&mut dyn Ordered> {
        Some(self)
    }
}

impl Ordered for InOrder<'_> {
    fn follow(&mut self, groups: Vec<Vec<OrderedMessage>>) -> Result<(), CommError> {
        assert!(self.groups.is_empty(), "messages of the step before are left");
        let recvs = groups.iter().flatten().filter(|turn| !turn.sends);
        self.inbox.extend(recvs.map(|turn| ((turn.peer, turn.tag), None)));
        self.groups = groups.into();
        self.progress()
    }
}

impl Comm<Tensor> for InOrder<'_> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        let turn = OrderedMessage { peer: to, sends: true, tag };
        assert!(self.groups.iter().flatten().any(|other| *other == turn), "{tag} is in no order");
        self.outbox.insert((to, tag), tensor);
        self.progress()
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        self.progress()?;
        let slot = self.inbox.get_mut(&(from, tag));
        let slot = slot.unwrap_or_else(|| panic!("{tag} is in no order"));
        let come = slot.take();
        if come.is_some() {
            self.inbox.remove(&(from, tag));
        }
        Ok(come)
    }

    /// A message that has not come waits for a part of a sum of this rank.
    fn recv(&mut self, from: Rank, tag: Tag, _: Instant) -> Result<Tensor, CommError> {
        let (what, waited) = (tag.to_string(), Duration::ZERO);
        self.try_recv(from, tag)?.ok_or(CommError::Timeout { from, what, waited })
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        None
    }
}

fn same_as_over_threads(run: &Run) {
    let timetable = find(run.schedule).expect("known").timetable(&run.shape).expect("fits");
    let over_threads = execute(run, &timetable, |job, comm, stage| body(job, comm, stage));
    let in_order =
        execute(run, &timetable, |job, comm, stage| body(job, InOrder::new(comm), stage));
    let in_order = in_order.unwrap_or_else(|fault| panic!("{run:?}: {fault}"));
    for (got, expected) in in_order.iter().zip(&over_threads.expect("it trains")) {
        assert!(got.losses == expected.losses && got.norms == expected.norms, "{run:?}");
        assert!(got.weights == expected.weights, "{run:?}");
    }
}

#[test]
fn all_schedules_train_as_over_threads() {
    let doubling = Shape { scaling: Scaling::Doubling, ..Shape::new(4, 8) };
    for (schedule, shape) in [
        ("dapple", Shape::new(4, 6)),
        ("gpipe", Shape::new(3, 4)),
        ("1f1b", Shape { n_in_turn: 2, ..Shape::new(4, 8) }),
        ("gems", Shape::new(4, 5)),
        ("chimera", Shape::new(4, 4)),
        ("chimera", Shape::new(4, 7)),
        ("chimera", doubling),
        ("chimera", Shape { n_pipes: 4, ..Shape::new(4, 8) }),
        ("zb-h1", Shape::new(4, 6)),
        ("zb-h2", Shape::new(4, 8)),
        ("zb-v", Shape::new(4, 6)),
        ("interleaved", Shape::new(4, 4)),
        ("dualpipe", Shape::new(4, 8)),
        ("dualpipe-v", Shape::new(4, 8)),
        ("hanayo", Shape::new(2, 4)),
        ("mixpipe", Shape::new(4, 6)),
        ("seq1f1b", Shape::new(4, 4)),
        ("pipedream", Shape { window: 3, ..Shape::new(3, 4) }),
        ("pipedream-2bw", Shape { window: 2, ..Shape::new(3, 4) }),
    ] {
        for (_, sync) in Sync::ALL.into_iter().filter(|(_, sync)| sync.has_one_order()) {
            let clip = if schedule.starts_with("pipedream") { None } else { Some(0.5) };
            same_as_over_threads(&Run { sync, clip, ..Run::new(schedule, shape) });
        }
    }
}

#[test]
fn sums_and_updates_of_many_replicas_are_in_the_order() {
    for (schedule, shape, width) in [
        ("chimera", Shape::new(4, 4), 2),
        ("dapple", Shape::new(2, 3), 5),
        ("dapple", Shape::new(1, 2), 11),
        ("zb-h1", Shape::new(2, 4), 3),
    ] {
        for (_, sync) in Sync::ALL.into_iter().filter(|(_, sync)| sync.has_one_order()) {
            for shard_optimizer in [false, true] {
                for tied in [false, true] {
                    let run = Run::new(schedule, shape);
                    let run = Run { sync, width, shard_optimizer, tied, ..run };
                    same_as_over_threads(&Run { bucket_elements: 50, ..run.clone() });
                    same_as_over_threads(&run);
                }
            }
        }
    }
}

/// Without a step sync in between, updates come before it.
#[test]
fn updates_that_wait_for_nobody_are_in_the_order() {
    for shard_optimizer in [false, true] {
        let run = Run::new("chimera", Shape::new(4, 4));
        let run = Run { clip: None, check_finite: false, shard_optimizer, ..run };
        same_as_over_threads(&Run { sync: Sync::Eager, ..run });
    }
}

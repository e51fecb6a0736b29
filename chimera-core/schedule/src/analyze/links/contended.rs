//! The simulator of programs whose messages and reductions share links. Rows run as in the
//! simulation without a topology; what they send, all groups at once, goes through one fabric.

use std::convert::Infallible;
use std::task::Poll;

use super::error::TopologyError;
use super::shared::{FlowOwner, Sent, Shared};
use super::step::Contended;
use super::topology::{RoutedTopology, Topology};
use crate::analyze::simulation::simulate::{Ready, Simulation};
use crate::analyze::simulation::timeline::Event;
use crate::analyze::simulation::traffic::Traffic;
use crate::costs::Costs;
use crate::effects::{Effects, Token};
use crate::interp::{Group, Machine};
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::program::{Program, ShardOp};

/// Simulates `width` groups that run `program` on a topology. `costs` gives the time of compute,
/// and of messages and reductions apart from their links.
///
/// # Errors
/// If the topology is not sound, or has too few ranks.
pub fn simulate_on(
    program: &Program,
    costs: &impl Costs,
    traffic: &Traffic,
    topology: &Topology,
    width: usize,
) -> Result<Contended, TopologyError> {
    let width = width.max(1);
    let network = RoutedTopology::open(topology, program.rows.len() * width)?;
    let mut shared = Shared::new(program, traffic, &network, width, costs.agree());
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); width];
    let mut groups = Vec::with_capacity(width);
    for events in &mut events {
        groups.push(Simulation::new(program, costs, move |event| events.push(event)));
    }
    let mut rows: Vec<_> = (0..width).map(|_| Group::new(program)).collect();
    loop {
        shared.has_changed = false;
        let mut has_ended = true;
        for (group, (rows, inner)) in rows.iter_mut().zip(&mut groups).enumerate() {
            let mut clock = GroupClock { inner, shared: &mut shared, group };
            has_ended &= rows.run(&mut clock) == Ok(true);
        }
        if has_ended {
            break;
        }
        // Only proven programs come here, and messages and reductions only take time.
        let goes_on = shared.has_changed || shared.go_on(&mut groups);
        assert!(goes_on, "a proven program stopped in simulation");
    }
    drop(groups);
    Ok(shared.finish(events, program.rows.len()))
}

/// The machine of one group.
struct GroupClock<'c, 'p, C, F> {
    inner: &'c mut Simulation<'p, C, F>,
    shared: &'c mut Shared<'p>,
    group: usize,
}

impl<C: Costs, F: FnMut(Event)> Machine for GroupClock<'_, '_, C, F> {
    type Value = Ready;
    type Error = Infallible;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<Ready>,
    ) -> Result<Few<Ready>, Infallible> {
        self.inner.run(worker, cell, effects, eaten)
    }

    fn has_room(&mut self, _: ChannelId) -> bool {
        true
    }

    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: Ready,
    ) -> Result<(), Infallible> {
        if token.edge().is_none() {
            return self.inner.send(worker, token, channel, value);
        }
        let start = self.inner.send_start(worker, &token, value);
        let Shared { program, traffic, .. } = self.shared;
        let bytes = traffic.message(&token);
        let to = program.channels[channel.index()].to;
        let ends = (self.shared.rank(self.group, worker), self.shared.rank(self.group, to));
        let row = self.shared.begin(ends.0);
        let at = start.at + self.inner.costs.message(&token);
        let flow = self.shared.flow(at, ends, bytes, row, FlowOwner::Message);
        let sent = Sent { flow, token, start };
        self.shared.channels[self.group][channel.index()].push_back(sent);
        Ok(())
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<Ready>, Infallible> {
        if token.edge().is_none() {
            return self.inner.recv(worker, token, channel);
        }
        let queue = &mut self.shared.channels[self.group][channel.index()];
        let Some(first) = queue.front() else { return Ok(Poll::Pending) };
        let Some(at) = self.shared.there[first.flow] else { return Ok(Poll::Pending) };
        let arrives = Ready { at, by: first.start.by };
        self.shared.messages[self.group].insert(first.token, at - first.start.at);
        queue.pop_front();
        self.inner.wait_for(worker, arrives);
        Ok(Poll::Ready(arrives))
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        let free = self.inner.begin_sum(worker, bucket);
        let place = (self.group, worker);
        self.shared.start_sum(place, bucket, free, self.inner.costs);
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Infallible> {
        let sum = &self.shared.sums[bucket.index()];
        if !sum.is_done {
            return Ok(Poll::Pending);
        }
        self.inner.wait_for_sum(worker, sum.of_groups[self.group]);
        Ok(Poll::Ready(()))
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Infallible> {
        let free = self.inner.free_at(worker);
        let rank = self.shared.rank(self.group, worker);
        let Shared { has_arrived, agreed, has_changed, .. } = self.shared;
        if !std::mem::replace(&mut has_arrived[rank.index()], true) {
            agreed[self.group] = agreed[self.group].later(free);
            *has_changed |= !has_arrived.contains(&false);
        }
        if has_arrived.contains(&false) {
            return Ok(Poll::Pending);
        }
        let at = agreed.iter().map(|ready| ready.at).fold(0.0, f64::max) + self.shared.agree;
        self.inner.wait_for(worker, Ready { at, by: agreed[self.group].by });
        Ok(Poll::Ready(()))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        self.inner.step(worker, bucket)
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Infallible> {
        self.inner.shard(worker, op)
    }

    fn give(&mut self, worker: WorkerId, lane: Lane) -> Ready {
        self.inner.give(worker, lane)
    }

    fn take(&mut self, worker: WorkerId, lane: Lane, room: Ready) {
        self.inner.take(worker, lane, room);
    }
}

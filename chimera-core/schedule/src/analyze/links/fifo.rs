//! Links that carry one message after the other.
//!
//! A message enters the queue of its first link when it begins, and of each further link when the
//! one before begins to carry it. A link carries it for its bytes at the whole bandwidth, and the
//! message arrives when its last link has carried it.

use std::collections::BTreeSet;

use super::flow::{Flow, FlowId};
use super::instant;
use super::load::{LinkLoads, Loaded};
use super::topology::Resource;

/// A place in a queue: time, sender, row, receiver, flow. Times are not negative, so their bits
/// have their order.
type QueuePlace = (u64, u32, u32, u32, FlowId);

/// The queues of all resources.
#[derive(Debug)]
pub(super) struct Queues {
    waiting: Vec<BTreeSet<QueuePlace>>,
    /// The time until which each resource carries a message.
    busy: Vec<f64>,
    /// Messages on their last link, with the time at which they arrive.
    last: Vec<(f64, FlowId)>,
}

impl Queues {
    pub(super) fn of(n_resources: usize) -> Queues {
        Queues {
            waiting: vec![BTreeSet::new(); n_resources],
            busy: vec![0.0; n_resources],
            last: Vec::new(),
        }
    }

    /// Puts a message into the queue of its next link.
    pub(super) fn enter(&mut self, at: f64, id: FlowId, flow: &Flow, loads: &mut LinkLoads) {
        let resource = flow.path.resources[flow.crossed];
        if self.busy[resource] > instant(at) {
            loads.wait(resource, at);
        }
        let [sender, row, receiver] = flow.order;
        self.waiting[resource].insert((at.to_bits(), sender, row, receiver, id));
    }

    /// Returns the time of the next change after `now`, at which free links have been served.
    pub(super) fn next(&self, now: f64) -> Option<f64> {
        let waits = self.waiting.iter().zip(&self.busy).filter(|(queue, _)| !queue.is_empty());
        let free = waits.map(|(_, busy)| *busy).filter(|busy| *busy > instant(now));
        free.chain(self.last.iter().map(|(at, _)| *at)).min_by(f64::total_cmp)
    }

    /// Lets each link that is free at `now` carry its next message, lowest link first. Returns true
    /// if one begins to.
    pub(super) fn serve(
        &mut self,
        now: f64,
        flows: &mut [Flow],
        resources: &[Resource],
        loads: &mut LinkLoads,
    ) -> bool {
        let mut has_begun = false;
        loop {
            let is_free =
                |r: &usize| !self.waiting[*r].is_empty() && self.is_free(*r, now, resources);
            let first = (0..resources.len()).find(is_free);
            let Some((resource, (.., id))) =
                first.and_then(|resource| Some((resource, self.waiting[resource].pop_first()?)))
            else {
                return has_begun;
            };
            has_begun = true;
            let n_flows = self.waiting[resource].len() + 1;
            let flow = &mut flows[id];
            let until = now + flow.bytes / resources[resource].bytes_per_s;
            if !resources[resource].is_dedicated {
                self.busy[resource] = until;
            }
            loads.add(resource, Loaded { from: now, to: until, n_flows, used: 1.0 });
            flow.there = flow.there.max(until);
            flow.crossed += 1;
            if flow.crossed == flow.path.resources.len() {
                self.last.push((flow.there, id));
            } else {
                let flow = flow.clone();
                self.enter(now, id, &flow, loads);
            }
        }
    }

    fn is_free(&self, resource: usize, now: f64, resources: &[Resource]) -> bool {
        resources[resource].is_dedicated || self.busy[resource] <= instant(now)
    }

    /// Takes the messages that are there at `now`.
    pub(super) fn arrived(&mut self, now: f64) -> Vec<FlowId> {
        let is_there = |(at, _): &mut (f64, FlowId)| *at <= instant(now);
        self.last.extract_if(.., is_there).map(|(_, id)| id).collect()
    }
}

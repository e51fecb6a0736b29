//! The flows under way, as time passes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fair::{Path, rates};
use super::fifo::Queues;
use super::flow::{Flow, FlowId};
use super::instant;
use super::load::{LinkLoad, LinkLoads, Loaded};
use super::topology::{Resource, Sharing};

/// A flow with a fair share.
#[derive(Debug)]
struct Active {
    id: FlowId,
    left: f64,
    rate: f64,
}

/// All flows of a simulation.
#[derive(Debug)]
pub(super) struct Fabric<'n> {
    resources: &'n [Resource],
    sharing: Sharing,
    now: f64,
    flows: Vec<Flow>,
    /// Flows that have not begun, by time. Bits of times that are not negative sort like the times.
    begins: BinaryHeap<Reverse<(u64, FlowId)>>,
    active: Vec<Active>,
    /// Whether the active flows have changed since the rates were found.
    is_stale: bool,
    queues: Queues,
    loads: LinkLoads,
}

impl<'n> Fabric<'n> {
    pub(super) fn new(resources: &'n [Resource], sharing: Sharing) -> Fabric<'n> {
        Fabric {
            resources,
            sharing,
            now: 0.0,
            flows: Vec::new(),
            begins: BinaryHeap::new(),
            active: Vec::new(),
            is_stale: false,
            queues: Queues::of(resources.len()),
            loads: LinkLoads::of(resources),
        }
    }

    /// Registers a flow that begins at a time, and returns its number.
    pub(super) fn add(&mut self, at: f64, path: Path, bytes: f64, order: [u32; 3]) -> FlowId {
        let id = self.flows.len();
        self.flows.push(Flow { path, bytes, order, crossed: 0, there: 0.0 });
        self.begins.push(Reverse((at.to_bits(), id)));
        id
    }

    /// Returns the time of the next change: a flow begins, or is there.
    pub(super) fn next(&mut self) -> Option<f64> {
        self.update_rates();
        let begins = self.begins.peek().map(|Reverse((at, _))| f64::from_bits(*at));
        let ends = self.active.iter().map(|flow| self.now + flow.left / flow.rate);
        let changes = ends.chain(begins).chain(self.queues.next(self.now));
        changes.min_by(f64::total_cmp)
    }

    /// Goes on to a time up to the next change. Returns the flows that are there.
    pub(super) fn advance(&mut self, to: f64) -> Vec<FlowId> {
        self.update_rates();
        self.record(to);
        let mut there = Vec::new();
        let passed = to - self.now;
        let now = self.now;
        self.active.retain_mut(|flow| {
            let ends = now + flow.left / flow.rate;
            flow.left = (flow.left - flow.rate * passed).max(0.0);
            let is_there = ends <= instant(to);
            if is_there {
                there.push(flow.id);
            }
            !is_there
        });
        self.is_stale |= !there.is_empty();
        self.now = to;
        there.extend(self.queues.arrived(to));
        while let Some(Reverse((at, id))) = self.begins.peek().copied() {
            if f64::from_bits(at) > instant(to) {
                break;
            }
            self.begins.pop();
            let flow = &self.flows[id];
            if flow.bytes == 0.0 || flow.path.resources.is_empty() {
                there.push(id);
            } else if self.sharing == Sharing::Fair {
                self.active.push(Active { id, left: flow.bytes, rate: 0.0 });
                self.is_stale = true;
            } else {
                self.queues.enter(to, id, flow, &mut self.loads);
            }
        }
        there.sort_unstable();
        there
    }

    /// Lets FIFO links carry what waits for them, at the end of an instant. Returns true if one
    /// begins to.
    pub(super) fn serve(&mut self) -> bool {
        self.queues.serve(self.now, &mut self.flows, self.resources, &mut self.loads)
    }

    fn update_rates(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let paths: Vec<&Path> = self.active.iter().map(|flow| &self.flows[flow.id].path).collect();
        let rates = rates(&paths, self.resources);
        self.active.iter_mut().zip(rates).for_each(|(flow, rate)| flow.rate = rate);
    }

    /// Records the load of links until `to`.
    fn record(&mut self, to: f64) {
        if to <= self.now || self.active.is_empty() {
            return;
        }
        let mut loads = vec![(0, 0.0); self.resources.len()];
        for flow in &self.active {
            for resource in &self.flows[flow.id].path.resources {
                let load = &mut loads[*resource];
                *load = (load.0 + 1, load.1 + flow.rate);
            }
        }
        for (resource, (n_flows, rate)) in loads.into_iter().enumerate() {
            if n_flows > 0 {
                let used = rate / self.resources[resource].bytes_per_s;
                self.loads.add(resource, Loaded { from: self.now, to, n_flows, used });
            }
        }
    }

    /// Returns the loads of all links that were used.
    pub(super) fn loads(self) -> Vec<LinkLoad> {
        self.loads.used()
    }
}

//! The state that all groups of a job share: the fabric, reductions and the step sync.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::collective::{Send, rounds};
use super::fabric::Fabric;
use super::flow::FlowId;
use super::instant;
use super::step::{Contended, Times};
use super::topology::RoutedTopology;
use crate::analyze::simulation::simulate::{Ready, Simulation};
use crate::analyze::simulation::timeline::{Event, Timeline};
use crate::analyze::simulation::traffic::Traffic;
use crate::costs::Costs;
use crate::effects::Token;
use crate::ir::ids::{BucketId, Rank, WorkerId};
use crate::program::Program;

/// A message on a channel.
pub(super) struct Sent {
    pub(super) flow: FlowId,
    pub(super) token: Token,
    pub(super) start: Ready,
}

/// The thing that a flow is part of.
pub(super) enum FlowOwner {
    Message,
    Round(BucketId),
}

/// One reduction over all groups.
#[derive(Clone)]
pub(super) struct Sum {
    n_started: usize,
    /// The latest start among all groups.
    ready: f64,
    /// The latest start of each group, and then its end.
    pub(super) of_groups: Vec<Ready>,
    /// Position of the start in the row of each member, by group and member.
    rows: FxHashMap<Rank, u32>,
    rounds: Vec<Vec<Send>>,
    next_round: usize,
    /// Flows of the round that have not arrived.
    n_open: usize,
    began: f64,
    pub(super) is_done: bool,
}

/// All groups, and the fabric between them.
pub(super) struct Shared<'p> {
    pub(super) program: &'p Program,
    pub(super) traffic: &'p Traffic,
    network: &'p RoutedTopology<'p>,
    width: usize,
    fabric: Fabric<'p>,
    now: f64,
    owners: Vec<FlowOwner>,
    /// The time at which each flow was there.
    pub(super) there: Vec<Option<f64>>,
    /// By group and channel.
    pub(super) channels: Vec<Vec<VecDeque<Sent>>>,
    /// Number of sends and starts of reductions so far, by rank.
    n_begun: Vec<u32>,
    islands: Vec<usize>,
    pub(super) sums: Vec<Sum>,
    /// Reductions that all members have started: those that become ready later, and those that
    /// wait.
    later: Vec<BucketId>,
    waiting: Vec<BucketId>,
    is_reducing: Vec<bool>,
    pub(super) has_arrived: Vec<bool>,
    pub(super) agreed: Vec<Ready>,
    /// Whether something happened that lets rows go on at once.
    pub(super) has_changed: bool,
    pub(super) agree: f64,
    pub(super) messages: Vec<FxHashMap<Token, f64>>,
    sum_times: Vec<f64>,
}

impl<'p> Shared<'p> {
    pub(super) fn new(
        program: &'p Program,
        traffic: &'p Traffic,
        network: &'p RoutedTopology<'p>,
        width: usize,
        agree: f64,
    ) -> Shared<'p> {
        let n_ranks = program.rows.len() * width;
        let sum = Sum {
            n_started: 0,
            ready: 0.0,
            of_groups: vec![Ready::START; width],
            rows: FxHashMap::default(),
            rounds: Vec::new(),
            next_round: 0,
            n_open: 0,
            began: 0.0,
            is_done: false,
        };
        let queues = || program.channels.iter().map(|_| VecDeque::new()).collect();
        Shared {
            program,
            traffic,
            network,
            width,
            fabric: Fabric::new(&network.resources, network.topology.sharing),
            now: 0.0,
            owners: Vec::new(),
            there: Vec::new(),
            channels: (0..width).map(|_| queues()).collect(),
            n_begun: vec![0; n_ranks],
            islands: network.topology.islands(n_ranks),
            sums: vec![sum; program.buckets.len()],
            later: Vec::new(),
            waiting: Vec::new(),
            is_reducing: vec![false; n_ranks],
            has_arrived: vec![false; n_ranks],
            agreed: vec![Ready::START; width],
            has_changed: false,
            agree: agree + network.agree(),
            messages: vec![FxHashMap::default(); width],
            sum_times: vec![0.0; program.buckets.len()],
        }
    }

    pub(super) fn rank(&self, group: usize, worker: WorkerId) -> Rank {
        self.program.placement().rank(group, worker)
    }

    /// Counts an instruction of a rank that begins flows, and returns its number.
    pub(super) fn begin(&mut self, rank: Rank) -> u32 {
        let n_begun = &mut self.n_begun[rank.index()];
        *n_begun += 1;
        *n_begun
    }

    /// Sends bytes from a time on, after the latency of the path.
    pub(super) fn flow(
        &mut self,
        at: f64,
        (from, to): (Rank, Rank),
        bytes: f64,
        row: u32,
        owner: FlowOwner,
    ) -> FlowId {
        let path = self.network.route(from, to);
        let begins = at.max(self.now) + path.latency;
        self.owners.push(owner);
        self.there.push(None);
        self.fabric.add(begins, path, bytes, [from.0, row, to.0])
    }

    /// Goes on to the next instant, or starts the reductions that can begin in this one. Returns
    /// false if nothing is left.
    pub(super) fn go_on<C: Costs, F: FnMut(Event)>(
        &mut self,
        groups: &mut [Simulation<'p, C, F>],
    ) -> bool {
        let ready = self.later.iter().map(|bucket| self.sums[bucket.index()].ready);
        let next = ready.chain(self.fabric.next()).min_by(f64::total_cmp);
        let is_over = next.is_none_or(|next| next > instant(self.now));
        if is_over && (self.start_sums(groups) || self.serve()) {
            return true;
        }
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        let (ready, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|bucket| self.sums[bucket.index()].ready <= instant(now));
        self.later = later;
        self.waiting.extend(ready);
        for flow in self.fabric.advance(now) {
            self.there[flow] = Some(now);
            if let FlowOwner::Round(bucket) = self.owners[flow] {
                self.sums[bucket.index()].n_open -= 1;
                if self.sums[bucket.index()].n_open == 0 {
                    self.next_round(bucket, groups);
                }
            }
        }
        true
    }

    /// Lets FIFO links carry what waits; returns true if one begins to.
    fn serve(&mut self) -> bool {
        self.fabric.serve()
    }

    /// Starts the waiting reductions whose members do no other, in order of buckets.
    fn start_sums<C: Costs, F: FnMut(Event)>(
        &mut self,
        groups: &mut [Simulation<'p, C, F>],
    ) -> bool {
        self.waiting.sort_unstable();
        let mut has_started = false;
        for bucket in std::mem::take(&mut self.waiting) {
            let members = self.program.replicas(self.width, bucket);
            if members.iter().any(|rank| self.is_reducing[rank.index()]) {
                self.waiting.push(bucket);
                continue;
            }
            members.iter().for_each(|rank| self.is_reducing[rank.index()] = true);
            self.sums[bucket.index()].began = self.now;
            // What a reduction takes beside its links passes before its first round.
            let begins = self.now + groups[0].costs.reduce(bucket);
            self.sums[bucket.index()].n_open = 1;
            self.flow(begins, (members[0], members[0]), 0.0, 0, FlowOwner::Round(bucket));
            has_started = true;
        }
        has_started
    }

    /// Begins the next round of a reduction, or ends it.
    fn next_round<C: Costs, F: FnMut(Event)>(
        &mut self,
        bucket: BucketId,
        groups: &mut [Simulation<'p, C, F>],
    ) {
        let sum = &mut self.sums[bucket.index()];
        let Some(round) = sum.rounds.get(sum.next_round).cloned() else {
            return self.end_sum(bucket, groups);
        };
        sum.next_round += 1;
        sum.n_open = round.len();
        let members = self.program.replicas(self.width, bucket);
        let bytes = self.traffic.sum(bucket);
        for (from, to, part) in round {
            let ends = (members[from], members[to]);
            let row = self.sums[bucket.index()].rows[&ends.0];
            self.flow(self.now, ends, bytes * part, row, FlowOwner::Round(bucket));
        }
    }

    fn end_sum<C: Costs, F: FnMut(Event)>(
        &mut self,
        bucket: BucketId,
        groups: &mut [Simulation<'p, C, F>],
    ) {
        let sum = &mut self.sums[bucket.index()];
        sum.is_done = true;
        let takes = self.now - sum.began;
        for (group, inner) in groups.iter_mut().enumerate() {
            let start = Ready { at: sum.began, by: sum.of_groups[group].by };
            sum.of_groups[group] = inner.summed(bucket, start, takes);
        }
        self.sum_times[bucket.index()] = takes;
        for rank in self.program.replicas(self.width, bucket) {
            self.is_reducing[rank.index()] = false;
        }
    }

    /// Registers a member's start of a reduction.
    pub(super) fn start_sum<C: Costs>(
        &mut self,
        (group, worker): (usize, WorkerId),
        bucket: BucketId,
        free: Ready,
        costs: &C,
    ) {
        let rank = self.rank(group, worker);
        let row = self.begin(rank);
        let members = self.program.replicas(self.width, bucket);
        let sum = &mut self.sums[bucket.index()];
        sum.rows.insert(rank, row);
        sum.n_started += 1;
        sum.ready = sum.ready.max(free.at);
        sum.of_groups[group] = sum.of_groups[group].later(free);
        if sum.n_started < members.len() {
            return;
        }
        self.has_changed = true;
        if self.traffic.sum(bucket) > 0.0 {
            let of_members: Vec<usize> =
                members.iter().map(|rank| self.islands[rank.index()]).collect();
            sum.rounds = rounds(self.network.topology.reductions, &of_members);
        }
        if sum.rounds.is_empty() && costs.reduce(bucket) == 0.0 {
            let at = sum.ready;
            sum.of_groups.iter_mut().for_each(|ready| ready.at = at);
            sum.is_done = true;
        } else {
            self.later.push(bucket);
        }
    }

    pub(super) fn finish(self, events: Vec<Vec<Event>>, n_workers: usize) -> Contended {
        let timelines = events.into_iter().map(|events| Timeline { n_workers, events });
        let mut last: Option<(usize, Timeline)> = None;
        for (group, timeline) in timelines.enumerate() {
            let is_later =
                last.as_ref().is_none_or(|(_, last)| timeline.makespan() > last.makespan());
            if is_later {
                last = Some((group, timeline));
            }
        }
        let (group, timeline) = last.unwrap_or_default();
        let messages = self.messages.into_iter().nth(group).unwrap_or_default();
        let times = Times { messages, sums: self.sum_times, agree: self.agree };
        Contended { timeline, group, loads: self.fabric.loads(), times }
    }
}

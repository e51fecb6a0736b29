//! The slack of each op: the time by which it may slow down, e.g. to save energy (EnvPipe), before
//! the step takes longer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::Poll;

use rustc_hash::FxHashMap;

use crate::analyze::simulation::shards::Shards;
use crate::analyze::simulation::simulate::occupies;
use crate::analyze::simulation::timeline::{Timeline, Work};
use crate::costs::{Costs, is_shorter, of_cell};
use crate::effects::{Effects, Token};
use crate::interp::{Group, Machine};
use crate::ir::few::Few;
use crate::ir::ids::{BucketId, ChannelId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::program::{Program, ShardOp};

/// The slack of each cell in each worker's row: the extra time that it may take, while all others
/// take their own, before the step takes longer. `timeline` is the simulation of `program` at
/// `costs`. The order of rows and of reductions stays.
pub fn slack(program: &Program, timeline: &Timeline, costs: &impl Costs) -> Vec<Vec<f64>> {
    let mut graph = Dependences::new(program, costs);
    // Only proven programs come here, and nothing here makes a row wait that did not wait in the
    // proof.
    let is_whole = Group::new(program).run(&mut graph) == Ok(true);
    assert!(is_whole, "a proven program stopped");
    graph.add_order_of_sums(timeline);
    let order = graph.order();
    let mut ends = graph.takes.clone();
    for &node in &order {
        for &(next, delay) in &graph.next[node] {
            ends[next] = ends[next].max(ends[node] + delay + graph.takes[next]);
        }
    }
    let mut latest = vec![ends.iter().copied().fold(0.0, f64::max); ends.len()];
    for &node in order.iter().rev() {
        for &(next, delay) in &graph.next[node] {
            latest[node] = latest[node].min(latest[next] - graph.takes[next] - delay);
        }
    }
    let left = |node: &usize| {
        if is_shorter(ends[*node], latest[*node]) { latest[*node] - ends[*node] } else { 0.0 }
    };
    graph.cells.iter().map(|row| row.iter().map(left).collect()).collect()
}

/// A node that begins no sooner than this long after the end of the current one.
type After = (usize, f64);

/// The machine with tokens that carry their dependences: a graph with a node for each sum of a
/// bucket, one for the step sync, and one for each cell and update.
struct Dependences<'p, C> {
    program: &'p Program,
    costs: &'p C,
    takes: Vec<f64>,
    /// The nodes that wait for each node.
    next: Vec<Vec<After>>,
    /// The nodes of each worker's cells.
    cells: Vec<Vec<usize>>,
    /// The dependences of each worker's next node, on its compute lane and its moves lane.
    before: [Vec<Vec<After>>; 2],
    queues: Vec<VecDeque<After>>,
    n_started: Vec<usize>,
    has_agreed: Vec<bool>,
    /// Whether each worker has waited for a sum since its last cell.
    has_awaited: Vec<bool>,
    shards: Shards<After>,
}

impl<'p, C: Costs> Dependences<'p, C> {
    fn new(program: &'p Program, costs: &'p C) -> Dependences<'p, C> {
        let n_workers = program.rows.len();
        let n_buckets = program.buckets.len();
        let sums = (0..n_buckets as u32).map(|bucket| costs.reduce(BucketId(bucket)));
        Dependences {
            program,
            costs,
            takes: sums.chain([costs.agree()]).collect(),
            next: vec![Vec::new(); n_buckets + 1],
            cells: vec![Vec::new(); n_workers],
            before: [vec![Vec::new(); n_workers], vec![Vec::new(); n_workers]],
            queues: vec![VecDeque::new(); program.channels.len()],
            n_started: vec![0; n_buckets],
            has_agreed: vec![false; n_workers],
            has_awaited: vec![false; n_workers],
            shards: Shards::of(program),
        }
    }

    fn agreement(&self) -> usize {
        self.program.buckets.len()
    }

    /// Adds a node that comes next on a lane of a worker.
    fn add(&mut self, worker: WorkerId, lane: Lane, takes: f64) -> usize {
        let node = self.takes.len();
        self.takes.push(takes);
        self.next.push(Vec::new());
        self.wait(worker, lane, node);
        *self.before(worker, lane) = vec![(node, 0.0)];
        node
    }

    /// Makes a node wait for everything that the next node of a lane waits for.
    fn wait(&mut self, worker: WorkerId, lane: Lane, node: usize) {
        for (before, delay) in self.before(worker, lane).clone() {
            self.next[before].push((node, delay));
        }
    }

    fn before(&mut self, worker: WorkerId, lane: Lane) -> &mut Vec<After> {
        &mut self.before[lane.index()][worker.index()]
    }

    /// Runs sums that share a worker or a link one after the other, in their original order.
    fn add_order_of_sums(&mut self, timeline: &Timeline) {
        let mut sums: Vec<(BucketId, f64)> = Vec::new();
        let mut seen = vec![false; self.program.buckets.len()];
        for event in &timeline.events {
            if let Work::Reduce(bucket) = event.work
                && !std::mem::replace(&mut seen[bucket.index()], true)
            {
                sums.push((bucket, event.start));
            }
        }
        sums.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        // To wait for the last sum of a worker or a link is to wait for all before it.
        let mut last_of_workers: Vec<Option<usize>> = vec![None; self.program.rows.len()];
        let mut last_of_links: FxHashMap<usize, After> = FxHashMap::default();
        for (bucket, _) in sums {
            let sum = bucket.index();
            let takes = self.takes[bucket.index()];
            for member in &self.program.buckets[sum].members {
                if let Some(before) = last_of_workers[member.index()].replace(sum) {
                    self.next[before].push((sum, 0.0));
                }
            }
            for (link, busy) in self.costs.links(bucket) {
                // A link may be free again before the sum is done.
                if let Some((before, delay)) = last_of_links.insert(*link, (sum, busy - takes)) {
                    self.next[before].push((sum, delay));
                }
            }
        }
    }

    /// All nodes, each after the nodes it waits for.
    fn order(&self) -> Vec<usize> {
        let mut n_before = vec![0u32; self.takes.len()];
        self.next.iter().flatten().for_each(|(next, _)| n_before[*next] += 1);
        let mut order: Vec<usize> =
            (0..n_before.len()).filter(|node| n_before[*node] == 0).collect();
        let mut at = 0;
        while let Some(&node) = order.get(at) {
            at += 1;
            for (next, _) in &self.next[node] {
                n_before[*next] -= 1;
                if n_before[*next] == 0 {
                    order.push(*next);
                }
            }
        }
        order
    }
}

impl<C: Costs> Machine for Dependences<'_, C> {
    type Value = After;
    type Error = Infallible;

    fn run(
        &mut self,
        worker: WorkerId,
        cell: &Cell,
        effects: &Effects,
        eaten: Few<After>,
    ) -> Result<Few<After>, Infallible> {
        let lane = cell.lane();
        self.before(worker, lane).extend(eaten);
        let occupies = occupies(self.program, self.costs, (worker, cell));
        if occupies > 0.0 {
            let computes = self.before(worker, Lane::Compute).clone();
            self.before(worker, lane).extend(computes);
        }
        let takes = match cell {
            Cell::One(op) if lane == Lane::Moves && !self.program.rules.is_transfer(op) => 0.0,
            _ => of_cell(self.costs, worker, cell),
        };
        let node = self.add(worker, lane, takes);
        if occupies > 0.0 {
            self.before(worker, Lane::Compute).push((node, occupies - takes));
        }
        if lane == Lane::Compute {
            self.cells[worker.index()].push(node);
            self.has_awaited[worker.index()] = false;
        }
        Ok(Few::repeat((node, 0.0), effects.makes.len()))
    }

    fn has_room(&mut self, _: ChannelId) -> bool {
        true
    }

    fn send(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
        value: After,
    ) -> Result<(), Infallible> {
        if token.edge().is_none() {
            self.queues[channel.index()].push_back(value);
            return Ok(());
        }
        let takes = self.costs.message(&token);
        let occupies = self.costs.occupies(&token);
        let mut starts = value;
        // A sum that is part of a backward comes before its gradient goes upstream.
        if self.has_awaited[worker.index()] {
            starts = (self.add(worker, Lane::Compute, 0.0), 0.0);
        }
        // A message that occupies the worker begins when the earlier ones are done, and delays the
        // next.
        if occupies > 0.0
            && let Some(before) = self.before(worker, Lane::Compute).first_mut()
        {
            starts = *before;
            before.1 += occupies;
        }
        self.queues[channel.index()].push_back((starts.0, starts.1 + takes));
        Ok(())
    }

    fn recv(
        &mut self,
        worker: WorkerId,
        token: Token,
        channel: ChannelId,
    ) -> Result<Poll<After>, Infallible> {
        let Some(arrives) = self.queues[channel.index()].pop_front() else {
            return Ok(Poll::Pending);
        };
        if token.edge().is_some() {
            self.before(worker, Lane::Compute).push(arrives);
        }
        Ok(Poll::Ready(arrives))
    }

    fn reduce(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        // Starting a sum takes some of the worker's own time.
        let occupies = self.costs.reduce_occupies(bucket);
        self.before(worker, Lane::Compute).iter_mut().for_each(|before| before.1 += occupies);
        self.wait(worker, Lane::Compute, bucket.index());
        self.n_started[bucket.index()] += 1;
        Ok(())
    }

    fn await_sum(&mut self, worker: WorkerId, bucket: BucketId) -> Result<Poll<()>, Infallible> {
        let bucket = bucket.index();
        if self.n_started[bucket] < self.program.buckets[bucket].members.len() {
            return Ok(Poll::Pending);
        }
        self.before(worker, Lane::Compute).push((bucket, 0.0));
        self.has_awaited[worker.index()] = true;
        Ok(Poll::Ready(()))
    }

    fn agree(&mut self, worker: WorkerId) -> Result<Poll<()>, Infallible> {
        let agreement = self.agreement();
        if !std::mem::replace(&mut self.has_agreed[worker.index()], true) {
            self.wait(worker, Lane::Compute, agreement);
        }
        if self.has_agreed.contains(&false) {
            return Ok(Poll::Pending);
        }
        *self.before(worker, Lane::Compute) = vec![(agreement, 0.0)];
        Ok(Poll::Ready(()))
    }

    fn step(&mut self, worker: WorkerId, bucket: BucketId) -> Result<(), Infallible> {
        self.add(worker, Lane::Compute, self.costs.step(bucket));
        Ok(())
    }

    fn shard(&mut self, worker: WorkerId, op: &ShardOp) -> Result<Poll<()>, Infallible> {
        if let ShardOp::Share(gathering) = *op {
            let node = self.add(worker, Lane::Compute, 0.0);
            let takes = self.costs.share(worker, gathering.to, gathering.stage);
            self.shards.send(gathering, (node, takes));
        }
        let ShardOp::Gather(gathering) = *op else { return Ok(Poll::Ready(())) };
        let Some(arrivals) = self.shards.take(gathering) else { return Ok(Poll::Pending) };
        self.before(worker, Lane::Compute).extend(arrivals);
        Ok(Poll::Ready(()))
    }

    fn give(&mut self, worker: WorkerId, lane: Lane) -> After {
        // A lane that has freed memory has run a cell: that is what its next one waits for.
        self.before(worker, lane).first().copied().unwrap_or((self.agreement(), 0.0))
    }

    fn take(&mut self, worker: WorkerId, lane: Lane, room: After) {
        self.before(worker, lane).push(room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::ir::op::Op;
    use crate::lower::{Lowering, Sync, lower};
    use crate::schedule::{SCHEDULES, Shape};

    /// Costs with reductions long enough that workers wait for them; one cell takes `more`.
    struct Slowed {
        usual: UniformCosts,
        slow: Option<(WorkerId, Cell)>,
        more: f64,
        occupies: f64,
    }

    impl Slowed {
        fn more_of(&self, worker: WorkerId, cell: Cell) -> f64 {
            if self.slow == Some((worker, cell)) { self.more } else { 0.0 }
        }
    }

    impl Costs for Slowed {
        fn op(&self, worker: WorkerId, op: &Op) -> f64 {
            self.usual.op(worker, op) + self.more_of(worker, Cell::One(*op))
        }

        fn pair(&self, worker: WorkerId, a: &Op, b: &Op) -> f64 {
            self.usual.pair(worker, a, b) + self.more_of(worker, Cell::Pair(*a, *b))
        }

        fn message(&self, token: &Token) -> f64 {
            self.usual.message(token)
        }

        fn occupies(&self, _: &Token) -> f64 {
            self.occupies
        }

        fn reduce_occupies(&self, _: BucketId) -> f64 {
            self.occupies
        }

        fn reduce(&self, bucket: BucketId) -> f64 {
            1.0 + f64::from(bucket.0 % 3)
        }

        fn step(&self, _: BucketId) -> f64 {
            0.25
        }
    }

    #[test]
    fn an_op_may_take_its_slack_and_no_more() {
        for schedule in SCHEDULES {
            for (occupies, sync) in
                [(0.0, Sync::EagerOpt), (0.125, Sync::EagerOpt), (0.0, Sync::InBackward)]
            {
                let timetable = schedule.timetable(&Shape::new(4, 8)).expect("fits");
                let usual = UniformCosts::new(1.0, 2.5, 0.5).per_units(timetable.units_per_micro);
                let how = Lowering { sync, ..Lowering::default() };
                let program = lower(&timetable, &how).expect("proven");
                let mut costs = Slowed { usual, slow: None, more: 0.0, occupies };
                let timeline = simulate(&program, &costs);
                let slack = slack(&program, &timeline, &costs);
                assert!(slack.iter().flatten().any(|slack| *slack == 0.0), "{}", schedule.name());
                for (worker, (row, slack)) in
                    (0..).map(WorkerId).zip(timetable.rows.iter().zip(slack))
                {
                    for (cell, slack) in row.iter().zip(slack) {
                        costs.slow = Some((worker, *cell));
                        for (more, longer) in [(slack, 0.0), (slack + 0.5, 0.5)] {
                            costs.more = more;
                            let grown = simulate(&program, &costs).makespan() - timeline.makespan();
                            let name = schedule.name();
                            assert!(
                                (grown - longer).abs() < 1e-9,
                                "{name}, {worker}, {cell:?}, {slack}: {grown}"
                            );
                        }
                    }
                }
            }
        }
    }
}

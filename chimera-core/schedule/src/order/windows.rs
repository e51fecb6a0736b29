//! Windows of time: how early and how late each cell can run in an order that ends by a given time.
//!
//! A window shrinks by two rules, and by the same with time running backwards. A cell starts after
//! all cells of its worker that it waits for, directly or not, have run one after another. And if
//! some cells of a worker could not end in time once another one has started, that one comes after
//! them (edge finding: Carlier and Pinson, Management Science 1989). If a window becomes too short
//! for its cells, no order ends in time.

use super::bound::one_machine;
use super::edges::{Job, Late, delays};
use super::graph::{Graph, lane};
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::Kind;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// With more pairs of cells that share a worker, windows would take longer than many orders.
const MAX_PAIRS: usize = 1 << 23;

/// The windows of a graph's cells.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// From the start of the step, and from its end.
    sides: Arc<[Side; 2]>,
    /// For each node, a lower bound on the time before its start, and on that after its end.
    around: [Vec<f64>; 2],
}

impl Windows {
    /// The windows of any order, however long. `None` if there are too many cells.
    pub(crate) fn of(graph: &Graph, reversed: &Graph) -> Option<Windows> {
        let mut n_cells = vec![0usize; graph.n_workers];
        graph.nodes.iter().for_each(|node| n_cells[usize::from(node.worker)] += 1);
        if n_cells.iter().map(|n| n * n).sum::<usize>() > MAX_PAIRS {
            return None;
        }
        let sides = [Side::of(graph), Side::of(reversed)];
        let mut around = [vec![0.0; graph.nodes.len()], vec![0.0; graph.nodes.len()]];
        for (side, around) in sides.iter().zip(&mut around) {
            side.follow(around);
        }
        Some(Windows { sides: Arc::new(sides), around })
    }

    /// A lower bound on the makespan of any order.
    pub(crate) fn lower_bound(&self) -> f64 {
        let [heads, tails] = &self.around;
        let side = &self.sides[0];
        let job = |&id: &u32| (heads[id as usize], side.takes[id as usize], tails[id as usize]);
        let bound = |row: &Vec<u32>| one_machine(row.iter().map(job).collect());
        side.rows.iter().map(bound).fold(0.0, f64::max)
    }

    /// The windows of orders that end by `until`, after at most `n_rounds` of the rules, while there
    /// is time. `None` if there is no such order.
    pub(crate) fn until(
        &self,
        until: f64,
        n_rounds: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        let mut windows = self.clone();
        for _ in 0..n_rounds {
            if is_late() {
                break;
            }
            let Windows { sides, around: [heads, tails] } = &mut windows;
            let mut is_changed = sides[0].separate(heads, tails, until).ok()?;
            is_changed |= sides[1].separate(tails, heads, until).ok()?;
            if !is_changed {
                break;
            }
        }
        Some(windows)
    }

    /// Shrinks the windows of orders that end by `until` further, by at most `n_tests` tests: if a
    /// cell cannot run in the first part of its window, it runs later, and likewise for the last.
    /// `None` if there is no such order.
    pub(crate) fn shaved(
        mut self,
        until: f64,
        mut n_tests: usize,
        is_late: &impl Fn() -> bool,
    ) -> Option<Windows> {
        for part in [0.5, 0.2, 0.05] {
            let mut is_changed = true;
            while is_changed {
                is_changed = false;
                for (id, side) in (0..self.around[0].len()).flat_map(|id| [(id, 0), (id, 1)]) {
                    let takes = self.sides[0].takes[id];
                    let room = until - self.around[0][id] - takes - self.around[1][id];
                    if room <= until * 1e-6 {
                        continue;
                    }
                    if n_tests == 0 || is_late() {
                        return Some(self);
                    }
                    n_tests -= 1;
                    let mut test = self.clone();
                    test.around[1 - side][id] += room * (1.0 - part);
                    if test.until(until, 5, is_late).is_none() {
                        self.around[side][id] += room * part;
                        self = self.until(until, 5, is_late)?;
                        is_changed = true;
                    }
                }
            }
        }
        Some(self)
    }

    /// The number of pairs of cells that share a worker: the time of a round of the rules.
    pub(crate) fn n_pairs(&self) -> usize {
        self.sides[0].rows.iter().map(|row| row.len() * row.len()).sum()
    }

    /// For each node, the time before its start and after its end.
    pub(crate) fn around(&self) -> &[Vec<f64>; 2] {
        &self.around
    }
}

/// A graph as seen from the start of the step, or from its end.
#[derive(Clone, Debug)]
struct Side {
    takes: Vec<f64>,
    /// The nodes, each after all that it waits for, with the numbers and lags of the latter.
    sequence: Vec<(u32, Vec<(u32, f64)>)>,
    /// The nodes of each worker.
    rows: Vec<Vec<u32>>,
    /// For each node, the nodes of its worker that it waits for: a part of each lane.
    before: Vec<Vec<(u32, u32)>>,
    /// The nodes of each lane, in order. Each waits for the one before.
    lanes: Vec<Vec<u32>>,
}

impl Side {
    fn of(graph: &Graph) -> Side {
        let sequence = graph.sequence();
        let mut rows = vec![Vec::new(); graph.n_workers];
        let mut numbers: FxHashMap<(Kind, PipeId, StageId), usize> = FxHashMap::default();
        let mut lanes: Vec<Vec<u32>> = Vec::new();
        let mut lane_of = vec![0; graph.nodes.len()];
        for &id in &sequence {
            let node = &graph.nodes[id as usize];
            rows[usize::from(node.worker)].push(id);
            let Some(op) = node.cell.ops().next() else { continue };
            let number = *numbers.entry((lane(op.kind), op.pipe, op.stage)).or_insert_with(|| {
                lanes.push(Vec::new());
                lanes.len() - 1
            });
            lane_of[id as usize] = number;
            lanes[number].push(id);
        }
        let before = before(graph, &sequence, &rows, &lanes, &lane_of);
        let preds = |id: u32| graph.preds(id as usize).iter().map(|edge| (edge.node, edge.lag));
        Side {
            takes: graph.nodes.iter().map(|node| node.takes).collect(),
            sequence: sequence.iter().map(|&id| (id, preds(id).collect())).collect(),
            rows,
            before,
            lanes,
        }
    }

    /// Raises the times before nodes by those that they wait for. Returns true if any rose.
    fn follow(&self, heads: &mut [f64]) -> bool {
        let mut is_changed = false;
        let mut waiting = Vec::new();
        for (id, preds) in &self.sequence {
            let at = *id as usize;
            let end =
                |(pred, lag): &(u32, f64)| heads[*pred as usize] + self.takes[*pred as usize] + lag;
            let mut head = preds.iter().map(end).fold(heads[at], f64::max);
            waiting.clear();
            for (lane, n) in &self.before[at] {
                let nodes = &self.lanes[*lane as usize][..*n as usize];
                waiting.extend(nodes.iter().map(|n| (heads[*n as usize], self.takes[*n as usize])));
            }
            waiting.sort_by(|a, b| a.0.total_cmp(&b.0));
            head = head.max(waiting.iter().fold(0.0, |now, (head, takes)| head.max(now) + takes));
            if head > heads[at] {
                heads[at] = head;
                is_changed = true;
            }
        }
        is_changed
    }

    /// Raises the times before nodes by what an order that ends by `until` needs. Returns true if
    /// any rose.
    fn separate(&self, heads: &mut [f64], tails: &[f64], until: f64) -> Result<bool, Late> {
        let mut is_changed = false;
        for row in &self.rows {
            let job = |&id: &u32| {
                let at = id as usize;
                Job { node: id, head: heads[at], takes: self.takes[at], end: until - tails[at] }
            };
            for (id, head) in delays(row.iter().map(job).collect(), until)? {
                heads[id as usize] = head;
                is_changed = true;
            }
        }
        Ok(self.follow(heads) || is_changed)
    }
}

/// For each node, the lanes of its worker with nodes that it waits for, and how many of them.
fn before(
    graph: &Graph,
    sequence: &[u32],
    rows: &[Vec<u32>],
    lanes: &[Vec<u32>],
    lane_of: &[usize],
) -> Vec<Vec<(u32, u32)>> {
    let mut before = vec![Vec::new(); graph.nodes.len()];
    for row in rows {
        let mut own: Vec<usize> = row.iter().map(|id| lane_of[*id as usize]).collect();
        own.sort_unstable();
        own.dedup();
        let mut counts = vec![0u32; graph.nodes.len() * own.len()];
        let mut places: FxHashMap<u32, (usize, u32)> = FxHashMap::default();
        for (at, &number) in own.iter().enumerate() {
            places.extend((1..).zip(&lanes[number]).map(|(n, &id)| (id, (at, n))));
        }
        for &id in sequence {
            let of = id as usize * own.len();
            for edge in graph.preds(id as usize) {
                for at in 0..own.len() {
                    let count = counts[edge.node as usize * own.len() + at];
                    counts[of + at] = counts[of + at].max(count);
                }
                if let Some(&(at, n)) = places.get(&edge.node) {
                    counts[of + at] = counts[of + at].max(n);
                }
            }
        }
        for &id in row {
            let counts = &counts[id as usize * own.len()..][..own.len()];
            let some = own.iter().zip(counts).filter(|(_, n)| **n > 0);
            before[id as usize] = some.map(|(&lane, &n)| (lane as u32, n)).collect();
        }
    }
    before
}

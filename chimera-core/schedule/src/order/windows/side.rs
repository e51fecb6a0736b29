//! A graph as seen from the start of the step, or from its end.

use super::super::bound::one_machine;
use super::super::edges::{Job, Late, delays};
use super::super::graph::{Graph, lane};
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::Kind;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The cells of a worker that each of its cells waits for, directly or not: by place in the row, a
/// part of each lane.
pub(super) type Waits = Vec<Vec<(u32, u32)>>;

/// The facts about the nodes of a side besides the times around them.
#[derive(Clone, Copy)]
pub(super) struct SideWindows<'w> {
    /// By worker, what its cells wait for.
    pub(super) waits: &'w [Arc<Waits>],
    /// By node, whether it runs before all others of its worker that are not fixed.
    pub(super) is_fixed: &'w [bool],
}

/// A graph as seen from one end of the step.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) takes: Vec<f64>,
    /// The nodes, each after all that it waits for, with the numbers and lags of the latter.
    sequence: Vec<(u32, Vec<(u32, f64)>)>,
    /// The nodes of each worker.
    pub(super) rows: Vec<Vec<u32>>,
    /// For each node, its row and its place there.
    pub(super) in_row: Vec<(usize, usize)>,
    /// The nodes of each lane, in order. Each waits for the one before.
    pub(super) lanes: Vec<Vec<u32>>,
    /// For each node, its lane and its place there.
    pub(super) in_lane: Vec<(u32, u32)>,
}

impl Side {
    /// A side, and what the cells of each worker wait for.
    pub(super) fn of(graph: &Graph) -> (Side, Vec<Arc<Waits>>) {
        let sequence = graph.sequence();
        let n = graph.nodes.len();
        let mut rows = vec![Vec::new(); graph.n_workers];
        let mut numbers: FxHashMap<(Kind, PipeId, StageId), usize> = FxHashMap::default();
        let mut lanes: Vec<Vec<u32>> = Vec::new();
        let mut in_lane = vec![(0, 0); n];
        let mut in_row = vec![(0, 0); n];
        for &id in &sequence {
            let node = &graph.nodes[id as usize];
            let row = usize::from(node.worker);
            in_row[id as usize] = (row, rows[row].len());
            rows[row].push(id);
            let Some(op) = node.cell.ops().next() else { continue };
            let number = *numbers.entry((lane(op.kind), op.pipe, op.stage)).or_insert_with(|| {
                lanes.push(Vec::new());
                lanes.len() - 1
            });
            in_lane[id as usize] = (number as u32, lanes[number].len() as u32);
            lanes[number].push(id);
        }
        let preds = |id: u32| graph.preds(id as usize).iter().map(|edge| (edge.node, edge.lag));
        let side = Side {
            takes: graph.nodes.iter().map(|node| node.takes).collect(),
            sequence: sequence.iter().map(|&id| (id, preds(id).collect())).collect(),
            rows,
            in_row,
            lanes,
            in_lane,
        };
        let waits = side.rows.iter().map(|row| Arc::new(side.waits(graph, &sequence, row)));
        let waits = waits.collect();
        (side, waits)
    }

    /// The nodes of a row that each of them waits for.
    fn waits(&self, graph: &Graph, sequence: &[u32], row: &[u32]) -> Waits {
        let mut own: Vec<u32> = row.iter().map(|id| self.in_lane[*id as usize].0).collect();
        own.sort_unstable();
        own.dedup();
        let mut counts = vec![0u32; graph.nodes.len() * own.len()];
        let mut places: FxHashMap<u32, (usize, u32)> = FxHashMap::default();
        for (at, &number) in own.iter().enumerate() {
            let lane = &self.lanes[number as usize];
            places.extend((1..).zip(lane).map(|(n, &id)| (id, (at, n))));
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
        let waits = |id: &u32| {
            let counts = &counts[*id as usize * own.len()..][..own.len()];
            let some = own.iter().zip(counts).filter(|(_, n)| **n > 0);
            some.map(|(&lane, &n)| (lane, n)).collect()
        };
        row.iter().map(waits).collect()
    }

    /// Lets a node wait for another of its row, and so for all that this one waits for.
    pub(super) fn wait(&self, waits: &mut Waits, node: u32, other: u32) {
        let (lane, place) = self.in_lane[node as usize];
        let (row, at) = self.in_row[other as usize];
        let (of, n) = self.in_lane[other as usize];
        let mut more = waits[at].clone();
        raise(&mut more, of, n + 1);
        for (id, waits) in self.rows[row].iter().zip(waits) {
            if *id == node || count(waits, lane) > place {
                more.iter().for_each(|&(lane, n)| raise(waits, lane, n));
            }
        }
    }

    /// Raises the times before nodes by those that they wait for. Where a row is `stale`, times of
    /// its nodes have risen; then and where they rise now, it is marked in `risen`.
    pub(super) fn follow(
        &self,
        SideWindows { waits, is_fixed }: SideWindows<'_>,
        heads: &mut [f64],
        stale: &mut [bool],
        risen: &mut [bool],
    ) {
        // By row, its nodes by the times before them, once they are needed.
        let mut sorted: Vec<Vec<u32>> = vec![Vec::new(); self.rows.len()];
        let mut counts = vec![0; self.lanes.len()];
        for (id, preds) in &self.sequence {
            let node = *id as usize;
            let end =
                |(pred, lag): &(u32, f64)| heads[*pred as usize] + self.takes[*pred as usize] + lag;
            let mut head = preds.iter().map(end).fold(heads[node], f64::max);
            let (row, at) = self.in_row[node];
            if stale[row] && !is_fixed[node] {
                let sorted = &mut sorted[row];
                if sorted.is_empty() {
                    sorted.extend(self.rows[row].iter().filter(|id| !is_fixed[**id as usize]));
                    sorted.sort_by(|a, b| heads[*a as usize].total_cmp(&heads[*b as usize]));
                }
                let waits = &waits[row][at];
                waits.iter().for_each(|(lane, n)| counts[*lane as usize] = *n);
                head = head.max(self.end_of_waits(sorted, &counts, heads));
                waits.iter().for_each(|(lane, _)| counts[*lane as usize] = 0);
            }
            if head > heads[node] {
                heads[node] = head;
                stale[row] = true;
                risen[row] = true;
                move_up(&mut sorted[row], *id, heads);
            }
        }
    }

    /// The earliest end of the first `counts` nodes of each lane, one after another, where all nodes
    /// of their row are sorted by the times before them.
    fn end_of_waits(&self, sorted: &[u32], counts: &[u32], heads: &[f64]) -> f64 {
        let is_before = |id: &&u32| {
            let (lane, place) = self.in_lane[**id as usize];
            place < counts[lane as usize]
        };
        let end = |now: f64, id: &u32| now.max(heads[*id as usize]) + self.takes[*id as usize];
        sorted.iter().filter(is_before).fold(0.0, end)
    }

    /// Raises the times before the nodes of a row by what an order that ends by `until` needs.
    /// Returns true if any rose.
    pub(super) fn separate(
        &self,
        row: usize,
        is_fixed: &[bool],
        heads: &mut [f64],
        (tails, until): (&[f64], f64),
    ) -> Result<bool, Late> {
        let job = |&id: &u32| {
            let at = id as usize;
            Job { node: id, head: heads[at], takes: self.takes[at], end: until - tails[at] }
        };
        let open = self.rows[row].iter().filter(|id| !is_fixed[**id as usize]);
        let later = delays(open.map(job).collect(), until)?;
        for (id, head) in &later {
            heads[*id as usize] = *head;
        }
        Ok(!later.is_empty())
    }

    /// A lower bound on the time of a row whose nodes have these times around them.
    pub(super) fn bound(&self, row: &[u32], heads: &[f64], tails: &[f64]) -> f64 {
        let job = |&id: &u32| (heads[id as usize], self.takes[id as usize], tails[id as usize]);
        one_machine(row.iter().map(job).collect())
    }
}

/// Moves a node to its place among nodes that are sorted by the times before them, once its own has
/// risen.
fn move_up(sorted: &mut [u32], id: u32, heads: &[f64]) {
    let Some(mut at) = sorted.iter().position(|other| *other == id) else { return };
    while let Some(next) = sorted.get(at + 1)
        && heads[*next as usize] < heads[id as usize]
    {
        sorted.swap(at, at + 1);
        at += 1;
    }
}

/// The number of nodes of a lane.
pub(super) fn count(waits: &[(u32, u32)], lane: u32) -> u32 {
    waits.iter().find(|(other, _)| *other == lane).map_or(0, |(_, n)| *n)
}

/// Raises the number of nodes of a lane to `n`.
fn raise(waits: &mut Vec<(u32, u32)>, lane: u32, n: u32) {
    match waits.iter_mut().find(|(other, _)| *other == lane) {
        Some((_, count)) => *count = n.max(*count),
        None => waits.push((lane, n)),
    }
}

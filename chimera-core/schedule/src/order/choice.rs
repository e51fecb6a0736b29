//! A lower bound where every stage may keep its saved activations or recompute them.

use std::collections::BTreeMap;

use super::bound::lower_bound;
use super::capped::{Task, Tasks};
use super::graph::{Graph, Node};
use crate::costs::Costs;
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};

/// A worker with more stages is not asked which of them it recomputes.
const MAX_STAGES: usize = 8;

/// A lower bound on the makespan of any order of the graph's cells in which workers hold at most
/// `max_peak`, if any stages of any pipes are recomputed, or none if not `may_recompute`.
///
/// Of each worker, all choices are looked at as if the other workers had no limit. A choice takes
/// no less than its ops in any order, nor than the memory that it needs over time, where each
/// micro-batch is held for no less than its way from the forward to the backward.
pub(crate) fn choice_bound(
    graph: &Graph,
    costs: &impl Costs,
    max_peak: f64,
    may_recompute: bool,
) -> f64 {
    // A pair holds the activations of two micro-batches, of which this bound would take one.
    if graph.nodes.iter().any(|node| matches!(node.cell, Cell::Pair(..))) {
        return lower_bound(graph);
    }
    let times = HoldTimes::of(graph);
    let (heads, tails) = (graph.heads(), graph.reversed().heads());
    let mut workers = vec![Vec::new(); graph.n_workers];
    for (i, node) in graph.nodes.iter().enumerate() {
        let Some(op) = node.cell.ops().next() else { continue };
        let task = Task { head: heads[i], takes: node.takes, tail: tails[i] };
        workers[usize::from(node.worker)].push(StageTask { task, node, op });
    }
    let bounds = (0..).map(WorkerId).zip(workers).map(|(worker, tasks)| {
        let mut stages: Vec<_> = tasks.iter().map(|task| (task.op.pipe, task.op.stage)).collect();
        stages.sort_unstable();
        stages.dedup();
        let n_choices = match stages.len() {
            _ if !may_recompute => 1,
            n if n > MAX_STAGES => return 0.0,
            n => 1usize << n,
        };
        let of_choice = |choice: usize| {
            let recomputes = |op: &Op| {
                let at = stages.binary_search(&(op.pipe, op.stage));
                at.is_ok_and(|at| choice >> at & 1 == 1)
            };
            let again = |op: &Op| costs.op(worker, &Op { kind: Kind::Recompute, ..*op });
            worker_bound(&tasks, &times, recomputes, again, max_peak)
        };
        (0..n_choices).map(of_choice).fold(f64::INFINITY, f64::min)
    });
    bounds.fold(lower_bound(graph), f64::max)
}

/// A task of a worker and its op.
#[derive(Clone, Copy)]
struct StageTask<'g> {
    task: Task,
    node: &'g Node,
    op: Op,
}

/// The bound of one worker's tasks, some stages of which are recomputed in the time `again`.
fn worker_bound(
    all: &[StageTask],
    times: &HoldTimes,
    recomputes: impl Fn(&Op) -> bool,
    again: impl Fn(&Op) -> f64,
    max_peak: f64,
) -> f64 {
    let forwards = all.iter().filter(|task| task.node.adds > 0.0);
    let ends = forwards.map(|StageTask { task, .. }| task.head + task.takes);
    let earliest = ends.fold(f64::INFINITY, f64::min);
    let mut tasks = Tasks::default();
    let mut area = 0.0;
    let (mut head, mut tail) = (f64::INFINITY, f64::INFINITY);
    for StageTask { task, node, op } in all {
        let again = if recomputes(op) { Some(again(op)) } else { None };
        let is_last = node.frees > 0.0;
        if is_last {
            let takes = if op.kind == Kind::BackwardWeight { task.takes } else { 0.0 };
            let held = match again {
                Some(again) => again + times.backward(op),
                None => times.held(op),
            };
            area += node.frees * (held + takes);
            tail = tail.min(task.tail);
        }
        if node.adds > 0.0 {
            head = head.min(task.head);
        }
        match again {
            Some(takes) => {
                tasks.others.push(*task);
                if op.kind.eats_saved() {
                    let tail = task.takes + task.tail;
                    tasks.others.push(Task { head: earliest, takes, tail });
                }
            }
            None if node.adds > 0.0 => tasks.makers.push((*task, node.adds)),
            None if is_last => tasks.eaters.push((*task, node.frees)),
            None => tasks.others.push(*task),
        }
    }
    let over_time = if area > 0.0 { head + area / max_peak + tail } else { 0.0 };
    tasks.bound(max_peak).max(over_time)
}

/// The shortest ways of micro-batches from stages to the end of their pipe and back.
struct HoldTimes(BTreeMap<(PipeId, StageId), HoldTime>);

/// The least times of a stage's ops and messages.
#[derive(Clone, Copy)]
struct HoldTime {
    forward: f64,
    backward: f64,
    recompute: Option<f64>,
    /// Time of the message to the next stage.
    messages: f64,
    /// Time of the message to the stage before.
    returns: f64,
    /// Time from the start of the forward to the end of the backward or its input half.
    both: f64,
}

impl HoldTimes {
    fn of(graph: &Graph) -> HoldTimes {
        let endless = f64::INFINITY;
        let none = HoldTime {
            forward: endless,
            backward: endless,
            recompute: None,
            messages: endless,
            returns: endless,
            both: 0.0,
        };
        let mut times: BTreeMap<(PipeId, StageId), HoldTime> = BTreeMap::new();
        for (id, node) in graph.nodes.iter().enumerate() {
            for op in node.cell.ops() {
                let way = times.entry((op.pipe, op.stage)).or_insert(none);
                match op.kind {
                    Kind::Forward => {
                        way.forward = way.forward.min(node.takes);
                        let lags = graph.succs(id).iter().map(|edge| edge.lag);
                        way.messages = way.messages.min(lags.fold(0.0, f64::max));
                    }
                    Kind::Backward | Kind::BackwardInput => {
                        way.backward = way.backward.min(node.takes);
                        let lags = graph.succs(id).iter().map(|edge| edge.lag);
                        way.returns = way.returns.min(lags.fold(0.0, f64::max));
                    }
                    Kind::Recompute => {
                        let least = way.recompute.unwrap_or(endless);
                        way.recompute = Some(least.min(node.takes));
                    }
                    _ => {}
                }
            }
        }
        let mut next = None;
        for ((pipe, _), way) in times.iter_mut().rev() {
            let later = next.filter(|(other, _)| other == pipe).map_or(0.0, |(_, both)| both);
            way.both = way.forward + way.messages + later + way.backward;
            next = Some((*pipe, way.both + way.returns));
        }
        HoldTimes(times)
    }

    fn backward(&self, op: &Op) -> f64 {
        self.0[&(op.pipe, op.stage)].backward
    }

    /// The least time for which a micro-batch of the op's stage is held, up to the end of its
    /// backward or input half.
    fn held(&self, op: &Op) -> f64 {
        let way = &self.0[&(op.pipe, op.stage)];
        way.recompute.map_or(way.both, |recompute| recompute + way.backward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::UniformCosts;
    use crate::ir::placement::Placement;
    use crate::order::unordered;

    fn bound(placement: Placement, max_peak: f64, may_recompute: bool) -> f64 {
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        let graph = Graph::of(&unordered(placement, 16, true), &costs);
        choice_bound(&graph, &costs, max_peak, may_recompute)
    }

    /// A worker of a V has two stages, of 3 each for a micro-batch. One recomputation makes 7 of
    /// that, which is less than to wait for memory.
    #[test]
    fn a_recomputation_takes_less_than_waiting_for_memory() {
        let kept = bound(Placement::wave(8, 2), 2.0, false);
        let chosen = bound(Placement::wave(8, 2), 2.0, true);
        assert!(chosen >= 16.0 * 7.0, "{chosen}");
        assert!(kept > chosen, "{kept}");
    }

    /// Each of 16 micro-batches is held for 16 forwards, 16 input halves and a weight half.
    #[test]
    fn memory_is_needed_over_time() {
        let kept = bound(Placement::line(16), 4.0, false);
        assert!(kept >= 16.0 * 33.0 / 4.0, "{kept}");
    }

    #[test]
    fn enough_memory_changes_nothing() {
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        for placement in [Placement::line(4), Placement::wave(4, 2), Placement::mirrored(4, 1)] {
            let graph = Graph::of(&unordered(placement.clone(), 16, true), &costs);
            assert_eq!(bound(placement, 16.0, true), lower_bound(&graph));
        }
    }
}

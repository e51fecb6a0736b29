//! A lower bound on the length of any order under a memory limit.

use rustc_hash::FxHashMap;

use super::bound::{lower_bound, one_machine};
use super::graph::Graph;
use crate::activation_memory::ROUNDING;
use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Cell, Kind};

/// A lower bound on the makespan of any order of the graph's cells in which workers hold at most
/// `max_peak`.
///
/// A forward waits for the backward of an earlier micro-batch of its stage if the stage alone would
/// hold too much. And a worker that may hold K saved activations starts its (K+k)-th forward when
/// any k backwards have ended. So its forwards are ordered by their starts, whichever they are: the
/// k-th starts after k forwards' heads, and after as many backwards' earliest ends as the limit
/// requires. The longest tails go to the first, since any other assignment takes longer. With time
/// running backwards the same holds for its backwards.
pub(crate) fn capped_bound(graph: &Graph, max_peak: f64) -> f64 {
    let Some(graph) = capped(graph, max_peak) else { return f64::INFINITY };
    let (heads, tails) = (graph.heads(), graph.reversed().heads());
    let mut workers = vec![Tasks::default(); graph.n_workers];
    for (i, node) in graph.nodes.iter().enumerate() {
        let job = Task { head: heads[i], takes: node.takes, tail: tails[i] };
        let worker = &mut workers[usize::from(node.worker)];
        match (node.adds > 0.0, node.frees > 0.0) {
            (true, false) => worker.makers.push((job, node.adds)),
            (false, true) => worker.eaters.push((job, node.frees)),
            (adds, _) => {
                worker.others.push(job);
                worker.is_mixed |= adds;
            }
        }
    }
    let bounds = workers.into_iter().map(|worker| worker.bound(max_peak));
    bounds.fold(lower_bound(&graph), f64::max)
}

/// The graph whose forwards wait for the backwards of their stage that free their memory. `None` if
/// one waits for its own.
pub(crate) fn capped(graph: &Graph, max_peak: f64) -> Option<Graph> {
    waits(graph, max_peak).map(|waits| graph.with(&waits))
}

/// For each stage of a pipe, the backwards that its forwards wait for. `None` if one waits for its
/// own.
fn waits(graph: &Graph, max_peak: f64) -> Option<Vec<(u32, u32)>> {
    let mut lanes: FxHashMap<(PipeId, StageId), StageCells> = FxHashMap::default();
    for (id, node) in (0..).zip(&graph.nodes) {
        for op in node.cell.ops() {
            let lane = lanes.entry((op.pipe, op.stage)).or_default();
            let StageCells { makers, eaters, is_mixed } = lane;
            let (list, activations) = match (node.adds > 0.0, node.frees > 0.0) {
                (true, _) => (makers, node.adds),
                (_, true) => (eaters, node.frees),
                _ => continue,
            };
            let same_kind = list.last().is_none_or(|(kind, ..)| *kind == op.kind);
            *is_mixed |= !same_kind || matches!(node.cell, Cell::Pair(..));
            list.push((op.kind, id, activations));
        }
    }
    let mut waits = Vec::new();
    for StageCells { makers, eaters, .. } in lanes.into_values().filter(|lane| !lane.is_mixed) {
        let mut made = 0.0;
        let mut eaten = 0.0;
        let mut n_eaten = 0;
        for (_, maker, activations) in makers {
            let before = made;
            made += activations;
            while made - eaten > max_peak + ROUNDING {
                eaten += eaters.get(n_eaten)?.2;
                n_eaten += 1;
            }
            if eaten > before + ROUNDING {
                return None;
            }
            waits.extend(n_eaten.checked_sub(1).map(|last| (eaters[last].1, maker)));
        }
    }
    Some(waits)
}

/// The cells of a stage of a pipe that change the saved activations of its worker, in their order:
/// kind, node, and amount.
#[derive(Default)]
struct StageCells {
    /// Ops that add memory.
    makers: Vec<(Kind, u32, f64)>,
    /// Ops that free memory.
    eaters: Vec<(Kind, u32, f64)>,
    /// Whether some cells have two kinds in unknown order, or are pairs.
    is_mixed: bool,
}

/// A task on a worker, with the longest paths to its start and from its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) head: f64,
    pub(super) takes: f64,
    pub(super) tail: f64,
}

impl Task {
    fn reversed(&self) -> Task {
        Task { head: self.tail, tail: self.head, ..*self }
    }
}

/// The jobs of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    /// Jobs that add saved activations, and how many.
    pub(super) makers: Vec<(Task, f64)>,
    /// Jobs that free saved activations, and how many.
    pub(super) eaters: Vec<(Task, f64)>,
    pub(super) others: Vec<Task>,
    /// Whether some cells do both.
    is_mixed: bool,
}

impl Tasks {
    pub(super) fn bound(self, max_peak: f64) -> f64 {
        let mut makers: Vec<Task> = self.makers.iter().map(|(job, _)| *job).collect();
        let mut eaters: Vec<Task> = self.eaters.iter().map(|(job, _)| *job).collect();
        // Only equal jobs can be exchanged for each other.
        if let (false, Some(made), Some(eaten)) =
            (self.is_mixed, alike(&self.makers), alike(&self.eaters))
        {
            delay(&mut makers, made, &eaters, eaten, max_peak);
            makers = makers.iter().map(Task::reversed).collect();
            eaters = eaters.iter().map(Task::reversed).collect();
            delay(&mut eaters, eaten, &makers, made, max_peak);
            eaters = eaters.iter().map(Task::reversed).collect();
            makers = makers.iter().map(Task::reversed).collect();
        }
        let all = makers.into_iter().chain(eaters).chain(self.others);
        one_machine(all.map(|job| (job.head, job.takes, job.tail)).collect())
    }
}

/// The amount of saved activations that each job changes, if all amounts and durations are equal.
fn alike(jobs: &[(Task, f64)]) -> Option<f64> {
    let (first, activations) = jobs.first()?;
    let same = |(job, n): &(Task, f64)| job.takes == first.takes && n == activations;
    jobs.iter().all(same).then_some(*activations)
}

/// Treats `makers` as interchangeable and lets them wait for `eaters`: each maker adds `made` saved
/// activations, and each eater frees `eaten`.
fn delay(makers: &mut [Task], made: f64, eaters: &[Task], eaten: f64, max_peak: f64) {
    let mut heads: Vec<f64> = makers.iter().map(|job| job.head).collect();
    let mut tails: Vec<f64> = makers.iter().map(|job| job.tail).collect();
    let mut ends: Vec<f64> = eaters.iter().map(|job| job.head + job.takes).collect();
    heads.sort_by(f64::total_cmp);
    tails.sort_by(|a, b| b.total_cmp(a));
    ends.sort_by(f64::total_cmp);
    for (k, job) in makers.iter_mut().enumerate() {
        let too_many = (k + 1) as f64 * made - max_peak;
        let n_before = (too_many / eaten - ROUNDING).ceil().max(0.0) as usize;
        let end = match n_before.checked_sub(1) {
            Some(last) => ends.get(last).copied().unwrap_or(f64::INFINITY),
            None => 0.0,
        };
        *job = Task { head: heads[k].max(end), tail: tails[k], ..*job };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::UniformCosts;
    use crate::ir::placement::Placement;
    use crate::order::unordered;

    fn bound(placement: Placement, n: u32, backward: f64, splits: bool, max_peak: f64) -> f64 {
        let costs = UniformCosts::new(1.0, backward, 0.0);
        capped_bound(&Graph::of(&unordered(placement, n, splits), &costs), max_peak)
    }

    /// Each bound is the optimum that the mixed-integer program of `cargo xtask oracle` proves.
    #[test]
    fn it_meets_proven_optima() {
        assert_eq!(bound(Placement::line(4), 8, 3.0, true, 4.0), 36.5);
        assert_eq!(bound(Placement::wave(2, 2), 4, 2.0, false, 2.0), 28.0);
        assert_eq!(bound(Placement::wave(4, 2), 8, 2.0, false, 4.0), 60.0);
        assert_eq!(bound(Placement::mirrored(4, 1), 8, 2.0, false, 4.0), 28.0);
    }

    #[test]
    fn a_limit_that_nobody_comes_to_changes_nothing() {
        for placement in [Placement::line(3), Placement::wave(3, 2), Placement::mirrored(4, 2)] {
            let graph =
                Graph::of(&unordered(placement, 7, true), &UniformCosts::new(1.0, 1.6, 0.5));
            assert_eq!(capped_bound(&graph, 7.0), lower_bound(&graph));
        }
    }

    #[test]
    fn one_micro_batch_at_a_time_goes_there_and_back() {
        assert_eq!(bound(Placement::line(4), 5, 2.0, false, 1.0), 5.0 * 12.0);
        assert_eq!(bound(Placement::line(4), 5, 2.0, false, 0.5), f64::INFINITY);
    }
}

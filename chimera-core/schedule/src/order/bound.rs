//! A lower bound on the length of any order.

use std::collections::BinaryHeap;

use super::graph::Graph;

/// A lower bound on the makespan of any order of the graph's cells. For each worker, its cells are
/// released by their longest path from the start, and are followed by their longest path to the
/// end. They are run by Jackson's preemptive rule, the longest path to the end first, which is
/// optimal for one machine (Carlier, EJOR 1982).
pub(crate) fn lower_bound(graph: &Graph) -> f64 {
    let (heads, tails) = (graph.heads(), graph.reversed().heads());
    let mut workers = vec![Vec::new(); graph.n_workers];
    for (i, node) in graph.nodes.iter().enumerate() {
        workers[usize::from(node.worker)].push((heads[i], node.takes, tails[i]));
    }
    workers.into_iter().map(one_machine).fold(0.0, f64::max)
}

/// The least makespan of preemptible jobs of (release, time, tail) on one machine.
pub(super) fn one_machine(mut jobs: Vec<(f64, f64, f64)>) -> f64 {
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut now = 0.0f64;
    let mut longest = 0.0f64;
    // By tail, whose bits have the order of its value, since it is not negative.
    let mut waiting: BinaryHeap<(u64, u64)> = BinaryHeap::new();
    let mut released = jobs.into_iter().peekable();
    loop {
        if waiting.is_empty() {
            let Some((release, ..)) = released.peek() else { return longest };
            now = now.max(*release);
        }
        while let Some((_, time, tail)) = released.next_if(|job| job.0 <= now) {
            waiting.push((tail.to_bits(), time.to_bits()));
        }
        let Some((tail, time)) = waiting.pop() else { continue };
        let time = f64::from_bits(time);
        let until = released.peek().map_or(f64::INFINITY, |next| next.0);
        let run = time.min(until - now);
        now += run;
        if run < time {
            waiting.push((tail, (time - run).to_bits()));
        } else {
            longest = longest.max(now + f64::from_bits(tail));
        }
    }
}

//! Known steps on interleaved stages, where windows alone neither prove nor find enough.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{DeadlineSearch, Windows};
use crate::costs::{StageCosts, UniformCosts};
use crate::ir::placement::Placement;
use crate::order::{Graph, Limits, unordered};

/// Two stages per worker, the halves of parts of the model with these forwards; backwards take 1.6
/// forwards, and messages half a forward.
fn interleaved(parts: &[f64], n_micro_batches: u32) -> Graph {
    let stage = |part: &f64| UniformCosts::new(part / 2.0, part * 0.8, 0.5);
    let stages = parts.iter().flat_map(|part| [stage(part); 2]).collect();
    let placement = Placement::interleaved(parts.len(), 2);
    Graph::of(&unordered(placement, n_micro_batches, true), &StageCosts::new(stages))
}

/// Workers 0 and 1 are the busiest. Before worker 1 can run its second stage, worker 0 has run its
/// own second stage, of 0.75, and all forwards of its first stage that worker 1 has used. So worker
/// 1 idles for a message and 0.75, whenever that is, and not only for its first forward's way.
#[test]
fn two_workers_are_looked_at_at_once() {
    let graph = interleaved(&[0.5, 0.8, 1.5, 1.0], 20);
    let in_time = || false;
    let windows = Windows::of(&graph, &graph.reversed()).expect("few cells");
    let least = 20.0 * 2.6 + 1.25;
    let shorter = windows.until(least - 0.01, 30, &in_time).expect("not excluded by windows");
    assert!(shorter.ordered(least - 0.01, 1000, &in_time).is_none());
    let others = windows.until(least, 30, &in_time).expect("an order");
    assert!(others.ordered(least, 1000, &in_time).is_some());
}

/// The best of a hundred thousand listed orders takes 40.3.
#[test]
fn an_order_is_built_for_a_time() {
    let graph = interleaved(&[1.2, 0.7, 1.3, 0.9, 1.2, 0.6, 0.5], 12);
    let in_time = || false;
    let windows = Windows::of(&graph, &graph.reversed()).expect("few cells");
    let until = 40.2;
    let windows = windows.until(until, 30, &in_time).expect("not excluded");
    let limits = Limits::default();
    let search = DeadlineSearch { graph: &graph, limits: &limits, until, noise: 0.0, n_fails: 200 };
    let (order, _) = search.order(windows, &mut ChaCha8Rng::seed_from_u64(1), &in_time);
    let order = order.expect("an order that ends in time");
    assert!(order.makespan <= until + 1e-9);
    let rows: Vec<_> =
        order.rows.iter().flat_map(|row| row.windows(2)).map(|pair| (pair[0], pair[1])).collect();
    let heads = graph.with(&rows).heads();
    let ends = heads.iter().zip(&graph.nodes).map(|(head, node)| head + node.takes);
    assert!(ends.fold(0.0, f64::max) <= until + 1e-9);
}

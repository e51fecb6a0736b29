//! A search for a shorter order of the ops of the live ranks.

use super::TooNarrow;
use crate::costs::{Costs, is_shorter};
use crate::ir::timetable::Timetable;
use crate::lower::dry_run;
use crate::order::{Graph, Keys, Limits, Order, justified, list, releases};

/// Time by which backwards are more urgent than their starts, in mean ops.
const LEADS: [f64; 2] = [0.0, 2.0];

/// Time by which an op that adds saved activations may begin earlier than in the order before, in
/// mean ops.
const SLACKS: [f64; 2] = [4.0, f64::INFINITY];

/// The most times that an order is justified, while it gets shorter.
const N_JUSTIFIED: usize = 4;

/// The shortest timetable found in which workers run any cell that may run, if it is shorter than
/// `by_time` and holds no more activations. `starts` has the start of each cell, row by row.
pub(super) fn sooner(
    by_time: Timetable,
    starts: &[f64],
    costs: &impl Costs,
) -> Result<Timetable, TooNarrow> {
    let known = dry_run(&by_time, costs)?.objective;
    let graph = Graph::of(&by_time, costs);
    let limits = Limits { worker: Some(known.peak), pipe: None };
    let Some(order) = shortest_order(&graph, starts, &limits) else { return Ok(by_time) };
    let other = Timetable { rows: order.cells(&graph), ..by_time.clone() };
    Ok(match dry_run(&other, costs) {
        Ok(run) if run.objective.makespan < known.makespan => other,
        _ => by_time,
    })
}

/// The shortest of the orders that run cells by their `starts`, and of their [justified](justified)
/// orders.
fn shortest_order(graph: &Graph, starts: &[f64], limits: &Limits) -> Option<Order> {
    let graphs = [graph, &graph.reversed()];
    let mut best: Option<Order> = None;
    for lead in LEADS {
        let urgency = starts
            .iter()
            .zip(&graph.nodes)
            .map(|(start, node)| if node.frees > 0.0 { start - lead * graph.unit } else { *start });
        let keys = Keys { urgency: urgency.collect(), releases: Vec::new(), patience: 0.0 };
        // A cell that begins whenever there is room may take the room that others need.
        let late = || Keys { releases: releases(graph, starts, graph.unit), ..keys.clone() };
        let listed = list(graph, &keys, limits).or_else(|| list(graph, &late(), limits));
        let Some(listed) = listed else { continue };
        for slack in SLACKS {
            let order = justified_while_shorter(graphs, listed.clone(), limits, slack * graph.unit);
            if best.as_ref().is_none_or(|best| is_shorter(order.makespan, best.makespan)) {
                best = Some(order);
            }
        }
    }
    best
}

/// Returns an order, justified while it gets shorter.
fn justified_while_shorter(
    graphs: [&Graph; 2],
    mut order: Order,
    limits: &Limits,
    slack: f64,
) -> Order {
    for _ in 0..N_JUSTIFIED {
        match justified(graphs, &order, limits, slack, 0.0) {
            Some(next) if is_shorter(next.makespan, order.makespan) => order = next,
            _ => break,
        }
    }
    order
}

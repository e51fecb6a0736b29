//! Double justification: an order scheduled anew from its end, and what that gives from its start, is
//! hardly ever longer and often shorter (Valls, Ballestín, Quintanilla, EJOR 2005).

use super::graph::{Graph, Node};
use super::list::{Keys, Limits, Order, list};

/// `order` of the first graph, scheduled anew by the second, its [reversal](Graph::reversed), and back.
pub(crate) fn justified(
    [graph, reversed]: [&Graph; 2],
    order: &Order,
    limits: &Limits,
    slack: f64,
    patience: f64,
) -> Option<Order> {
    let again = |graph: &Graph, order: &Order, patience: f64| {
        let ends = order.starts.iter().zip(&graph.nodes);
        let urgency: Vec<f64> =
            ends.map(|(start, node)| order.makespan - start - node.takes).collect();
        let releases = releases(graph, &urgency, slack);
        list(graph, &Keys { urgency, releases, patience }, limits)
    };
    again(graph, &again(reversed, order, patience)?, 0.0)
}

/// The earliest starts for cells that are wanted at `starts`. What adds residuals begins at most `slack`
/// sooner: begun whenever there is room, it would take the room that another needs later.
pub(crate) fn releases(graph: &Graph, starts: &[f64], slack: f64) -> Vec<f64> {
    let release = |(node, start): (&Node, &f64)| match node.adds > 0.0 {
        true => (start - slack).max(0.0),
        false => 0.0,
    };
    graph.nodes.iter().zip(starts).map(release).collect()
}

//! Double justification: an order is scheduled again from its end, and then from its start. The
//! result is hardly ever longer and often shorter (Valls, Ballestín, Quintanilla, EJOR 2005).

use super::graph::{Graph, Node};
use super::list::{Keys, Limits, Order, list};

/// `order` of the first graph, rescheduled in the second, its [reversal](Graph::reversed), and
/// back.
pub(crate) fn justified(
    [graph, reversed]: [&Graph; 2],
    order: &Order,
    limits: &Limits,
    slack: f64,
    patience: f64,
) -> Option<Order> {
    let back = again(reversed, order, limits, slack, |_| 0.0, patience)?;
    again(graph, &back, limits, slack, |_| 0.0, 0.0)
}

/// [`justified`], with workers that end one after another in the way they begin: each as long
/// before the last end as it begins before the last start. So no worker idles between its first
/// cell and its last only because of the makespan.
pub(crate) fn staggered(
    [graph, reversed]: [&Graph; 2],
    order: &Order,
    limits: &Limits,
    slack: f64,
) -> Option<Order> {
    let mut begins = vec![f64::INFINITY; graph.n_workers];
    for (head, node) in graph.heads().iter().zip(&graph.nodes) {
        let begin = &mut begins[usize::from(node.worker)];
        *begin = begin.min(*head);
    }
    let last = begins.iter().copied().fold(0.0, f64::max);
    let ahead = |node: &Node| last - begins[usize::from(node.worker)];
    let back = again(reversed, order, limits, slack, ahead, 0.0)?;
    again(graph, &back, limits, slack, |_| 0.0, 0.0)
}

/// `order` of the reversal of `graph` as an order of `graph`, in which no node starts before
/// `earliest`.
fn again(
    graph: &Graph,
    order: &Order,
    limits: &Limits,
    slack: f64,
    earliest: impl Fn(&Node) -> f64,
    patience: f64,
) -> Option<Order> {
    let ends = order.starts.iter().zip(&graph.nodes);
    let urgency: Vec<f64> = ends.map(|(start, node)| order.makespan - start - node.takes).collect();
    let mut releases = releases(graph, &urgency, slack);
    for (release, node) in releases.iter_mut().zip(&graph.nodes) {
        *release = release.max(earliest(node));
    }
    list(graph, &Keys { urgency, releases, patience }, limits)
}

/// The earliest starts for cells with desired `starts`. Cells that add saved activations begin at
/// most `slack` sooner: if they began whenever there is room, they would take the room that others
/// need later. Cells that keep an input for a recomputation begin no sooner either: there is always
/// room for inputs, so they would pile up.
pub(crate) fn releases(graph: &Graph, starts: &[f64], slack: f64) -> Vec<f64> {
    let release = |(node, start): (&Node, &f64)| {
        if node.adds > 0.0 || node.keeps > 0.0 { (start - slack).max(0.0) } else { 0.0 }
    };
    graph.nodes.iter().zip(starts).map(release).collect()
}

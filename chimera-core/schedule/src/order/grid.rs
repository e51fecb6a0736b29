//! Times that are whole multiples of a unit.

use super::graph::Graph;

/// A unit has to be at least this part of the shortest time.
const MAX_PARTS: u32 = 1000;

/// Times are compared with multiples up to this part of them.
const ROUNDING: f64 = 1e-12;

/// The longest time found of which all times of a graph are whole multiples, and so the makespans
/// of all its orders. `None` if times have none, as measured ones.
pub(crate) fn unit(graph: &Graph) -> Option<f64> {
    let lags = (0..graph.nodes.len()).flat_map(|node| graph.preds(node)).map(|edge| edge.lag);
    let times = graph.nodes.iter().map(|node| node.takes).chain(lags).filter(|time| *time > 0.0);
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let shortest = *times.first()?;
    let is_unit = |unit: &f64| {
        let is_multiple = |time: &f64| {
            let n = time / unit;
            (n - n.round()).abs() <= n * ROUNDING
        };
        times.iter().all(is_multiple)
    };
    (1..=MAX_PARTS).map(|parts| shortest / f64::from(parts)).find(is_unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::{StageCosts, UniformCosts};
    use crate::ir::placement::Placement;
    use crate::order::unordered;

    fn of(first: (f64, f64), second: (f64, f64), message: f64) -> Option<f64> {
        let stage = |(forward, backward)| UniformCosts::new(forward, backward, message);
        let costs = StageCosts::new(vec![stage(first), stage(second)]);
        unit(&Graph::of(&unordered(Placement::line(2), 2, true), &costs))
    }

    #[test]
    fn all_times_are_multiples_of_the_unit() {
        let near = |unit: Option<f64>, other: f64| {
            unit.is_some_and(|unit| (unit - other).abs() < 1e-9 * other)
        };
        assert!(near(of((1.0, 2.0), (3.0, 4.0), 0.0), 1.0));
        assert!(near(of((0.6, 1.6), (0.9, 0.8), 0.5), 0.1));
        assert!(near(of((6e-6, 1.6e-5), (9e-6, 8e-6), 5e-6), 1e-6));
        assert!(near(of((0.25, 0.4), (0.4, 0.64), 0.5), 0.01));
        assert_eq!(of((1.0, std::f64::consts::PI), (1.5, 2.0), 0.1), None);
    }
}

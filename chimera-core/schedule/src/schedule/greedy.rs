//! The tool for schedules that are a rule of preference: whenever a worker is free, it runs the most
//! urgent of the ops that may run.
//!
//! ```
//! use chimera_schedule::costs::UniformCosts;
//! use chimera_schedule::lower::{Lowering, lower};
//! use chimera_schedule::placement::Placement;
//! use chimera_schedule::schedule::greedy::{Greedy, Limits};
//! use chimera_schedule::schedule::{Citation, Schedule, Shape, Unfit};
//! use chimera_schedule::timetable::Timetable;
//!
//! struct BackwardsFirst;
//!
//! impl Schedule for BackwardsFirst {
//!     fn name(&self) -> &'static str {
//!         "backwards-first"
//!     }
//!     fn about(&self) -> &'static str {
//!         "any backward before any forward, on a wave of two chunks"
//!     }
//!     fn source(&self) -> Citation {
//!         Citation { paper: "", place: "" }
//!     }
//!     fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
//!         let greedy = Greedy {
//!             placement: Placement::wave(shape.depth, 2),
//!             splits: false,
//!             costs: UniformCosts::new(1.0, 2.0, 0.0),
//!             limits: Limits { worker: Some(shape.depth as f64), pipe: None },
//!         };
//!         let urgency = greedy.backwards_first(shape);
//!         greedy.timetable(self, shape, urgency)
//!     }
//! }
//!
//! let program = lower(&BackwardsFirst.timetable(&Shape::new(4, 8))?, &Lowering::default())?;
//! assert!(program.peak() <= 4.0); // micro-batches
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{Schedule, Shape, Unfit};
use crate::costs::UniformCosts;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
pub use crate::order::Limits;
use crate::order::{Graph, Keys, justified, list, releases, staggered, unordered};

/// A rule of preference on a placement.
pub struct Greedy {
    /// The worker of each stage.
    pub placement: Placement,
    /// Whether backwards are split.
    pub splits: bool,
    /// Assumed costs of the ops.
    pub costs: UniformCosts,
    /// Memory limits of workers.
    pub limits: Limits,
}

impl Greedy {
    /// The timetable in which the op with the least key is the most urgent.
    ///
    /// # Errors
    /// If the limits leave no room, or there are more ops than a search can hold; `schedule` is
    /// named.
    pub fn timetable(
        self,
        schedule: &dyn Schedule,
        shape: &Shape,
        key: impl Fn(&Op) -> f64,
    ) -> Result<Timetable, Unfit> {
        self.order(schedule, shape, key, None)
    }

    /// The timetable with every op in its slot, squeezed: rescheduled from both ends, so that
    /// workers that begin early also end early if that costs nothing. With a finite slack no op
    /// adds saved activations before its slot, nor, while it is squeezed, more than `slack` sooner
    /// than before.
    ///
    /// # Errors
    /// If the limits leave no room, or there are more ops than a search can hold; `schedule` is
    /// named.
    pub fn squeezed(
        self,
        schedule: &dyn Schedule,
        shape: &Shape,
        slot: impl Fn(&Op) -> f64,
        slack: f64,
    ) -> Result<Timetable, Unfit> {
        self.order(schedule, shape, slot, Some(slack))
    }

    /// Priorities: backwards first, oldest micro-batch first; among forwards, the one furthest
    /// along.
    pub fn backwards_first(&self, shape: &Shape) -> impl Fn(&Op) -> f64 + use<> {
        let behind = f64::from(shape.n_micro_batches) + self.placement.n_stages() as f64;
        move |op| match op.kind {
            Kind::Forward => behind - f64::from(op.stage.0),
            _ => f64::from(op.span.start),
        }
    }

    fn order(
        self,
        schedule: &dyn Schedule,
        shape: &Shape,
        key: impl Fn(&Op) -> f64,
        slack: Option<f64>,
    ) -> Result<Timetable, Unfit> {
        let n_forwards = self.placement.n_stages() as u64 * u64::from(shape.n_micro_batches);
        if n_forwards > MAX_FORWARDS {
            let reason = format!("{n_forwards} forwards are more than {MAX_FORWARDS}");
            let nearest = Shape::micro_batches_within(MAX_FORWARDS, self.placement.n_stages());
            return Err(Unfit::new(schedule, reason, nearest));
        }
        let mut timetable = unordered(self.placement, shape.n_micro_batches, self.splits);
        let graph = Graph::of(&timetable, &self.costs);
        let key = |cell: &Cell| cell.ops().map(|op| key(&op)).fold(f64::INFINITY, f64::min);
        let urgency: Vec<f64> = graph.nodes.iter().map(|node| key(&node.cell)).collect();
        let releases = match slack {
            Some(slack) if slack.is_finite() => releases(&graph, &urgency, 0.0),
            _ => Vec::new(),
        };
        let keys = Keys { urgency, releases, patience: 0.0 };
        let mut order = list(&graph, &keys, &self.limits).ok_or_else(|| {
            Unfit::new(schedule, "its limits leave no room for one micro-batch", "")
        })?;
        if let Some(slack) = slack {
            let graphs = [&graph, &graph.reversed()];
            for _ in 0..N_SQUEEZES {
                match justified(graphs, &order, &self.limits, slack, 0.0) {
                    Some(shorter) if shorter.makespan < order.makespan => order = shorter,
                    _ => break,
                }
            }
            if let Some(even) = staggered(graphs, &order, &self.limits, slack)
                && even.makespan <= order.makespan
                && even.longest_span(&graph) < order.longest_span(&graph)
            {
                order = even;
            }
        }
        timetable.rows = order.cells(&graph);
        timetable.schedule = schedule.name().to_string();
        Ok(timetable)
    }
}

/// A graph takes some hundreds of bytes per op.
const MAX_FORWARDS: u64 = 1 << 21;
/// More than any shape up to D = 16, N = 40 can use.
const N_SQUEEZES: usize = 4;

//! Start and end of every op, simulated or measured.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::effects::Token;
use crate::ir::ids::{BucketId, WorkerId};
use crate::ir::op::{Cell, Op};

/// The work that an event records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// Compute.
    #[serde(with = "ops")]
    Cell(Cell),
    /// The sum of a bucket's gradients over its replicas, which runs in parallel to compute.
    Reduce(BucketId),
    /// The optimizer's update of a bucket.
    Step(BucketId),
    /// A move of saved activations, which runs in parallel to compute.
    Move(Op),
}

impl Work {
    /// Returns true if the worker does nothing else during the work.
    pub fn occupies(&self) -> bool {
        matches!(self, Work::Cell(_) | Work::Step(_))
    }
}

/// One piece of work in time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The worker that did it.
    pub worker: WorkerId,
    /// The work.
    pub work: Work,
    /// Start, in the unit of the costs, or in seconds if measured.
    pub start: f64,
    /// End, in the same unit.
    pub end: f64,
    /// The event that let this one begin, perhaps through a message; `None` at the start of a step
    /// and in measured timelines.
    pub after: Option<u32>,
}

/// Something that an idle worker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Awaited {
    /// A message.
    Message(Token),
    /// The sum of a bucket's gradients.
    Sum(BucketId),
    /// The step sync of all ranks.
    Agreement,
    /// The weights of a bucket, which other replicas update.
    Weights(BucketId),
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Message(token) => write!(f, "{token}"),
            Awaited::Sum(bucket) => write!(f, "the gradient reduction of {bucket}"),
            Awaited::Agreement => write!(f, "the agreement of all ranks"),
            Awaited::Weights(bucket) => write!(f, "the weights of {bucket}"),
        }
    }
}

/// Measured time that a worker spends waiting. It is not an [`Event`], since it is not work.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// The worker that waited.
    pub worker: WorkerId,
    /// The thing it waited for.
    pub awaited: Awaited,
    /// Start of the wait, in seconds.
    pub start: f64,
    /// End of the wait, in seconds.
    pub end: f64,
}

/// One kernel, or one product of matrices, that a device has done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelRun {
    /// The kernel's name, or `product m x k x n`.
    pub name: String,
    /// Start, in seconds.
    pub start: f64,
    /// Duration, in seconds.
    pub seconds: f64,
    /// Floating-point operations of a product; 0 for other kernels, which count none.
    pub flops: f64,
}

/// The events of one step, in order of time for each worker.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// Number of workers, D.
    pub n_workers: usize,
    /// All events. Events of one worker stand in order; different workers are interleaved.
    pub events: Vec<Event>,
}

impl Timeline {
    /// The time from the start of the step, at 0, to the last end.
    pub fn makespan(&self) -> f64 {
        self.events.iter().map(|e| e.end).fold(0.0, f64::max)
    }

    /// The events of each worker, in order.
    pub(crate) fn rows(&self) -> Vec<Vec<&Event>> {
        let mut rows = vec![Vec::new(); self.n_workers];
        self.events.iter().for_each(|event| rows[event.worker.index()].push(event));
        rows
    }

    /// Time each worker spends in compute and optimizer updates.
    pub fn busy(&self) -> Vec<f64> {
        let mut busy = vec![0.0; self.n_workers];
        for e in self.events.iter().filter(|e| e.work.occupies()) {
            busy[e.worker.index()] += e.end - e.start;
        }
        busy
    }

    /// Idle time over makespan times workers; 0 for an empty timeline.
    pub fn bubble_ratio(&self) -> f64 {
        bubble_ratio(&self.busy(), self.makespan())
    }

    /// The chain of events that determines the makespan, first to last: each began as soon as the
    /// one before it allowed. Empty for measured timelines.
    pub fn critical_path(&self) -> Vec<&Event> {
        let last = self.events.iter().max_by(|a, b| a.end.total_cmp(&b.end));
        let mut path: Vec<&Event> =
            std::iter::successors(last, |e| e.after.and_then(|i| self.events.get(i as usize)))
                .collect();
        if path.len() == 1 && path[0].start > 0.0 {
            path.clear();
        }
        path.reverse();
        path
    }
}

/// The bubble ratio: the fraction of a `span` of time in which workers are idle, given how long
/// each is `busy`; 0 for an empty span.
pub fn bubble_ratio(busy: &[f64], span: f64) -> f64 {
    let total = span * busy.len() as f64;
    let share = if total > 0.0 { busy.iter().sum::<f64>() / total } else { 1.0 };
    (1.0 - share).max(0.0) // the sum may exceed it by rounding
}

/// A cell in messages between ranks; [`interchange`](crate::interchange) has a form for people.
mod ops {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::ir::op::{Cell, Op};

    pub(super) fn serialize<S: Serializer>(cell: &Cell, to: S) -> Result<S::Ok, S::Error> {
        cell.parts().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Cell, D::Error> {
        let (first, second) = <(Op, Option<Op>)>::deserialize(from)?;
        Ok(second.map_or(Cell::One(first), |second| Cell::Pair(first, second)))
    }
}

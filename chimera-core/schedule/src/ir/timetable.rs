//! Timetable: the work of a schedule's author. Each worker has one row of cells, for compute and
//! for moves of saved activations.

use crate::ir::graph::StageGraph;
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Lane, Op, Span};
use crate::ir::placement::Placement;
use crate::ir::update::Update;

/// A schedule for one shape: the stages of each worker, and the order of its ops.
///
/// It holds no times, messages, reductions or optimizer steps: they follow from it (see
/// [`simulate`](crate::analyze::simulate()) and [`lower`](mod@crate::lower)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timetable {
    /// Name of the schedule that made it.
    pub schedule: String,
    /// The worker of each stage.
    pub placement: Placement,
    /// The edges between stages, and the stages with a loss.
    pub graph: StageGraph,
    /// Number of micro-batches: N per step, times the steps of an asynchronous window.
    pub n_micro_batches: u32,
    /// Number of micro-batches of each [model](StageGraph::models), if they differ: the first ones of
    /// `n_micro_batches`, which is the largest number. Empty if every model has all.
    pub micro_batches_of: Vec<u32>,
    /// Number of units that a micro-batch is cut into: 2 for backward halving, k for k slices of
    /// its sequence, otherwise 1.
    pub units_per_micro: u32,
    /// Whether the units of a micro-batch are slices of its sequence, in order, and not shares of
    /// its samples.
    pub is_sliced: bool,
    /// The rule by which weights are updated, and the version of them that an op reads.
    pub update: Update,
    /// The cells of each worker, in order. Moves are listed among compute: they run in parallel to
    /// it, in their own order. Memory for saved activations is handed out in the order of both
    /// together.
    pub rows: Vec<Vec<Cell>>,
    /// Stages of pipes that recompute selectively: their forwards keep the saved activations that
    /// are expensive to recompute. Other stages that recompute keep only their input.
    pub selective: Vec<(PipeId, StageId)>,
    /// Whether a recomputation waits for the gradient that its backward receives, as in frameworks
    /// that recompute within the backward. Otherwise it runs while the gradient is awaited.
    pub on_demand: bool,
    /// Stages without trained weights. They have only the ops that others need of them, see
    /// [`freeze`](crate::lower::freeze).
    pub frozen: Vec<StageId>,
}

impl Timetable {
    /// A synchronous timetable of a chain of stages and whole micro-batches, which keeps all saved
    /// activations.
    pub fn new(
        schedule: impl Into<String>,
        placement: Placement,
        n_micro_batches: u32,
        rows: Vec<Vec<Cell>>,
    ) -> Timetable {
        Timetable {
            schedule: schedule.into(),
            graph: StageGraph::chain(placement.n_stages()),
            placement,
            n_micro_batches,
            micro_batches_of: Vec::new(),
            units_per_micro: 1,
            is_sliced: false,
            update: Update::Flush,
            rows,
            selective: Vec::new(),
            on_demand: false,
            frozen: Vec::new(),
        }
    }

    /// Number of units; the spans of all ops lie in `0..n_units()`.
    pub fn n_units(&self) -> u32 {
        self.n_micro_batches.saturating_mul(self.units_per_micro)
    }

    /// Slices of the sequence of a micro-batch, each of them a unit; 1 where units are not slices.
    pub fn n_slices(&self) -> u32 {
        if self.is_sliced { self.units_per_micro } else { 1 }
    }

    /// The row of `worker`.
    pub fn row(&self, worker: WorkerId) -> &[Cell] {
        &self.rows[worker.index()]
    }

    /// Number of micro-batches per step, N.
    pub fn micro_batches_per_step(&self) -> u32 {
        self.n_micro_batches / self.update.n_steps().max(1)
    }

    /// All ops, worker by worker.
    pub fn ops(&self) -> impl Iterator<Item = Op> {
        self.rows.iter().flatten().flat_map(Cell::ops)
    }

    /// Returns true if some op is of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.ops().any(|op| op.kind == kind)
    }

    /// The timetable without moves of saved activations: each worker holds its own.
    pub(crate) fn without_moves(&self) -> Timetable {
        let compute = |cell: &&Cell| cell.lane() == Lane::Compute;
        let rows = self.rows.iter().map(|row| row.iter().filter(compute).copied().collect());
        Timetable { rows: rows.collect(), ..self.clone() }
    }

    /// Repeats each row `n` times, with new micro-batches for each repetition.
    pub(crate) fn repeated(&self, n: u32) -> Timetable {
        let later = |by: u32| {
            let start =
                move |op: Op| op.span.start.saturating_add(by.saturating_mul(self.n_units()));
            move |op: Op| Op { span: Span { start: start(op), ..op.span }, ..op }
        };
        let of = |row: &Vec<Cell>| {
            (0..n).flat_map(|by| row.iter().map(move |cell| cell.map(later(by)))).collect()
        };
        Timetable {
            n_micro_batches: self.n_micro_batches.saturating_mul(n),
            rows: self.rows.iter().map(of).collect(),
            ..self.clone()
        }
    }

    /// Number of ops in all rows.
    pub fn n_ops(&self) -> usize {
        self.ops().count()
    }
}

//! Demand: the units that pass through a stage, and the results that training needs there.

use crate::ir::graph::StageGraph;
use crate::ir::ids::StageId;
use crate::ir::op::Kind;
use crate::ir::timetable::Timetable;

/// The results that are needed of a unit on a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The gradients of its weights, and the gradient of its input unless no stage before needs it.
    Trained,
    /// Only the gradient of its input: the stage is frozen, and an earlier stage is trained.
    InputGradient,
    /// Only its output: neither the stage nor any before it is trained.
    Output,
}

/// The demand on each stage. It follows from the frozen stages, the edges between stages, and the
/// micro-batches of each model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    frozen: Vec<StageId>,
    /// By stage; empty if no stage is frozen.
    wanted: Vec<Wanted>,
    /// By model; empty if every model has all micro-batches.
    micro_batches_of: Vec<u32>,
    /// By stage; empty if every model has all micro-batches.
    n_units: Vec<u32>,
}

impl Demand {
    /// The demand of a timetable.
    pub fn in_timetable(timetable: &Timetable) -> Demand {
        let Timetable { graph, frozen, micro_batches_of, units_per_micro, .. } = timetable;
        let models = if micro_batches_of.is_empty() { Vec::new() } else { graph.models() };
        // The checker refuses a model without a number.
        let n_micros = |model: usize| micro_batches_of.get(model).copied().unwrap_or_default();
        let n_units = |model| n_micros(model).saturating_mul(*units_per_micro);
        Demand {
            micro_batches_of: micro_batches_of.clone(),
            n_units: models.into_iter().map(n_units).collect(),
            ..Demand::new(graph, frozen)
        }
    }

    /// The demand of a training that freezes some stages of a graph.
    pub fn new(graph: &StageGraph, frozen: &[StageId]) -> Demand {
        let mut frozen = frozen.to_vec();
        frozen.sort_unstable();
        frozen.dedup();
        if frozen.is_empty() {
            return Demand { frozen, ..Demand::default() };
        }
        let mut wanted: Vec<Wanted> = Vec::new();
        // Edges lead to later stages, so earlier stages are known.
        for stage in graph.stages() {
            let has_trained_input =
                graph.inputs(stage).iter().any(|from| wanted[from.index()] != Wanted::Output);
            wanted.push(if frozen.binary_search(&stage).is_err() {
                Wanted::Trained
            } else if has_trained_input {
                Wanted::InputGradient
            } else {
                Wanted::Output
            });
        }
        Demand { frozen, wanted, ..Demand::default() }
    }

    /// The frozen stages, ascending.
    pub fn frozen(&self) -> &[StageId] {
        &self.frozen
    }

    /// The results that are needed of a stage.
    pub fn of(&self, stage: StageId) -> Wanted {
        self.wanted.get(stage.index()).copied().unwrap_or(Wanted::Trained)
    }

    /// Number of micro-batches of each model, if they differ; otherwise empty.
    pub fn micro_batches_of(&self) -> &[u32] {
        &self.micro_batches_of
    }

    /// Number of units that pass through a stage: the first ones of `all`.
    pub fn n_units(&self, stage: StageId, all: u32) -> u32 {
        self.n_units.get(stage.index()).copied().unwrap_or(all)
    }

    /// Returns true if a stage has a backward.
    pub fn has_backward(&self, stage: StageId) -> bool {
        self.of(stage) != Wanted::Output
    }

    /// Returns true if weights of a stage are trained.
    pub fn trains(&self, stage: StageId) -> bool {
        self.of(stage) == Wanted::Trained
    }

    /// Returns true if ops of this kind are wanted of a stage.
    pub fn wants(&self, kind: Kind, stage: StageId) -> bool {
        match self.of(stage) {
            Wanted::Trained => true,
            Wanted::InputGradient => !kind.adds_gradient(),
            Wanted::Output => kind == Kind::Forward,
        }
    }
}

//! Demand: the results that a training wants of a unit on each stage, if some stages are frozen.

use crate::ir::graph::StageGraph;
use crate::ir::ids::StageId;
use crate::ir::op::Kind;

/// The results that are wanted of a unit on a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The gradients of its weights, and the gradient of its input unless no stage before needs it.
    Trained,
    /// Only the gradient of its input: the stage is frozen, and an earlier stage is trained.
    InputGradient,
    /// Only its output: neither the stage nor any before it is trained.
    Output,
}

/// The demand on each stage. It follows from the frozen stages and the edges between stages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    frozen: Vec<StageId>,
    /// By stage; empty if no stage is frozen.
    wanted: Vec<Wanted>,
}

impl Demand {
    /// The demand of a training that freezes some stages of a graph.
    pub fn new(graph: &StageGraph, frozen: &[StageId]) -> Demand {
        let mut frozen = frozen.to_vec();
        frozen.sort_unstable();
        frozen.dedup();
        let mut wanted: Vec<Wanted> = Vec::new();
        if frozen.is_empty() {
            return Demand { frozen, wanted };
        }
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
        Demand { frozen, wanted }
    }

    /// The frozen stages, ascending.
    pub fn frozen(&self) -> &[StageId] {
        &self.frozen
    }

    /// The results that are wanted of a stage.
    pub fn of(&self, stage: StageId) -> Wanted {
        self.wanted.get(stage.index()).copied().unwrap_or(Wanted::Trained)
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

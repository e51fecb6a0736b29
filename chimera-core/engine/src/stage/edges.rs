//! Calls to stages according to their edges.

use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::StageId;

use super::{DynBranched, Micro, Output, Stage};
use crate::device::{Device, DeviceError, Result};

/// The numbers of edges of a stage.
#[derive(Clone, Copy)]
pub(crate) struct StageEdges {
    n_inputs: usize,
    /// Number of output edges to other stages.
    n_outputs: usize,
    has_loss: bool,
}

/// The activations and the loss, if any, that a stage returns; and its saved activations.
pub(crate) type ForwardResult<S> = (Vec<Output<<S as Stage>::Tensor>>, <S as Stage>::Saved);

impl StageEdges {
    /// The edges of `stage` in a graph.
    pub(crate) fn of(graph: &StageGraph, stage: StageId) -> StageEdges {
        let has_loss = graph.has_loss(stage);
        let n_outputs = graph.outputs(stage).len() - usize::from(has_loss);
        StageEdges { n_inputs: graph.inputs(stage).len(), n_outputs, has_loss }
    }

    /// Runs `stage` forward on the activations of its input edges.
    pub(crate) fn forward<S: Stage>(
        self,
        stage: &S,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        mut inputs: Vec<S::Tensor>,
    ) -> Result<ForwardResult<S>> {
        let (outputs, saved) = if self.is_of_chain(stage) {
            let (output, saved) = stage.forward(w, micro, inputs.pop())?;
            (vec![output], saved)
        } else {
            branched(stage, "forward_edges", inputs.len())?.forward_edges(w, micro, inputs)?
        };
        // Without targets there is an output instead of the loss.
        let is_loss = |output: &Output<_>| matches!(output, Output::Loss { .. });
        let n_losses = usize::from(self.has_loss && !micro.target.is_empty());
        let given: Vec<bool> = outputs.iter().map(is_loss).collect();
        let n_given = self.n_given(stage) + usize::from(self.has_loss);
        let asked: Vec<bool> = (0..n_given).map(|at| at + n_losses >= n_given).collect();
        if given == asked {
            return Ok((outputs, saved));
        }
        let n_losses = given.iter().filter(|is_loss| **is_loss).count();
        let reason = format!(
            "it gave {} activation(s) and {n_losses} loss(es), but its place in the graph requires \
            {} activation(s) first and, if there are targets, {} loss(es) last",
            given.len() - n_losses,
            self.n_given(stage),
            usize::from(self.has_loss),
        );
        Err(misplaced("forward", reason))
    }

    /// Recomputes the saved activations from the activations of the input edges.
    pub(crate) fn recompute<S: Stage>(
        self,
        stage: &S,
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        mut inputs: Vec<S::Tensor>,
    ) -> Result<S::Saved> {
        if self.is_of_chain(stage) {
            stage.recompute(w, micro, inputs.pop())
        } else {
            branched(stage, "forward_edges", inputs.len())?.recompute_edges(w, micro, inputs)
        }
    }

    /// Runs the input half of a backward pass. Takes the gradients of the output edges, that of the
    /// loss last, and returns those of the input edges. Gradients of one activation are added up in
    /// the order of its edges.
    pub(crate) fn backward_input<S: Stage<Tensor = D::Tensor>, D: Device>(
        self,
        (stage, device): (&S, &D),
        w: &[S::Tensor],
        micro: &Micro<'_, S::Item>,
        saved: S::Saved,
        mut gradients: Vec<S::Tensor>,
    ) -> Result<(Vec<S::Tensor>, S::Deferred)> {
        if self.n_outputs > self.n_given(stage) {
            let of_loss = gradients.split_off(self.n_outputs);
            let mut sum = device.zeros(&device.shape(&gradients[0]))?;
            gradients.iter().try_for_each(|gradient| device.accumulate(&mut sum, gradient))?;
            gradients = vec![sum];
            gradients.extend(of_loss);
        }
        let (given, deferred) = match gradients.pop() {
            Some(gradient) if self.is_of_chain(stage) => {
                let (dx, deferred) = stage.backward_input(w, micro, saved, gradient)?;
                (Vec::from_iter(dx), deferred)
            }
            last => {
                gradients.extend(last);
                branched(stage, "backward_input_edges", gradients.len())?
                    .backward_input_edges(w, micro, saved, gradients)?
            }
        };
        // No stage needs the input gradient of a source.
        if given.len() == self.n_inputs || self.n_inputs == 0 {
            return Ok((given, deferred));
        }
        let (given, asked) = (given.len(), self.n_inputs);
        let reason = format!("it gave {given} gradient(s) of inputs, of which it has {asked}");
        Err(misplaced("backward", reason))
    }

    /// The activations of a stage, one per output edge to another stage.
    pub(crate) fn along_edges<T: Clone>(self, mut activations: Vec<T>) -> Vec<T> {
        if let [one] = &activations[..] {
            activations = vec![one.clone(); self.n_outputs];
        }
        activations
    }

    /// Number of input edges.
    pub(crate) fn n_inputs(self) -> usize {
        self.n_inputs
    }

    /// Number of activations that the stage returns for other stages.
    fn n_given<S: Stage>(self, stage: &S) -> usize {
        if has_output_per_edge(stage) { self.n_outputs } else { self.n_outputs.min(1) }
    }

    /// Returns true if the stage fits a chain: at most one input, and one output or loss.
    fn is_of_chain<S: Stage>(self, stage: &S) -> bool {
        self.n_inputs <= 1 && self.n_given(stage) + usize::from(self.has_loss) == 1
    }
}

/// The error for a stage that does not fit its place in the graph.
fn misplaced(op: &'static str, reason: String) -> DeviceError {
    DeviceError::Failed { device: "the stage".into(), op, reason }
}

/// Returns true if `stage` returns one activation per output edge.
pub(crate) fn has_output_per_edge<S: Stage>(stage: &S) -> bool {
    stage.branched().is_some_and(|stage| stage.has_output_per_edge())
}

/// Returns the stage as `Branched`, for a place that a stage of a chain cannot fill.
fn branched<'s, S: Stage>(
    stage: &'s S,
    op: &'static str,
    n: usize,
) -> Result<&'s DynBranched<'s, S>> {
    stage.branched().map_or_else(|| no_edges(op, n), Ok)
}

/// The error for a stage of a chain at a place in a graph that it cannot fill.
pub(super) fn no_edges<T>(op: &'static str, n: usize) -> Result<T> {
    let reason = format!(
        "it takes one activation at most and gives one activation or one loss, but its place in the graph of stages asks for \
         another number ({n} came): implement `forward_edges` and what belongs to it"
    );
    Err(misplaced(op, reason))
}

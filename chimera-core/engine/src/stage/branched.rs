//! Stages with several input or output edges.

use super::{Micro, Output, Stage};
use crate::device::Result;

/// A stage of a graph with more than one input activation, or more than one output.
pub trait Branched: Stage {
    /// Runs the stage; `inputs` has the activation of each input edge, in order.
    ///
    /// Returns one activation, which goes along all output edges to other stages. With
    /// [`has_output_per_edge`](Branched::has_output_per_edge) it returns one activation per edge,
    /// in order. If the stage has a loss, that comes last.
    fn forward_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<(Vec<Output<Self::Tensor>>, Self::Saved)>;

    /// Maps the gradient of each output of [`forward_edges`](Branched::forward_edges) to the
    /// gradients of its inputs, both in order. The engine adds up the gradients of an activation
    /// that goes along several edges.
    fn backward_input_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        saved: Self::Saved,
        gradients: Vec<Self::Tensor>,
    ) -> Result<(Vec<Self::Tensor>, Self::Deferred)>;

    /// Computes the saved activations again, bit for bit, without the output (full recomputation).
    fn recompute_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward_edges(w, micro, inputs)?.1)
    }

    /// Returns true if [`forward_edges`](Branched::forward_edges) returns one activation per output
    /// edge to another stage, instead of one for all edges.
    fn has_output_per_edge(&self) -> bool {
        false
    }
}

/// Any [`Branched`] stage with the types of `S`.
pub type DynBranched<'s, S> = dyn Branched<
        Tensor = <S as Stage>::Tensor,
        Item = <S as Stage>::Item,
        Saved = <S as Stage>::Saved,
        Deferred = <S as Stage>::Deferred,
    > + 's;

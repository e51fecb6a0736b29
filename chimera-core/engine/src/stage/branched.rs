//! Stages with several input or output edges.

use super::{Micro, Output, Stage};
use crate::device::Result;

/// A stage of a graph that does not take one activation at most and give one activation or one loss.
pub trait Branched: Stage {
    /// Runs the stage; `inputs` has the activation of each input edge, in their order.
    ///
    /// Gives an activation, which goes along all output edges to other stages, or with
    /// [`has_output_per_edge`](Branched::has_output_per_edge) one for each of these edges, in their order. Its loss, if it
    /// has one, comes last.
    fn forward_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<(Vec<Output<Self::Tensor>>, Self::Saved)>;

    /// From the gradient of each output of [`forward_edges`](Branched::forward_edges) to the gradients of its inputs, both
    /// in their order. The engine adds up the gradients of an activation that goes along several edges.
    fn backward_input_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        saved: Self::Saved,
        gradients: Vec<Self::Tensor>,
    ) -> Result<(Vec<Self::Tensor>, Self::Deferred)>;

    /// Makes the saved activations again, to the bit, without the output (full recomputation).
    fn recompute_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward_edges(w, micro, inputs)?.1)
    }

    /// Returns true if [`forward_edges`](Branched::forward_edges) gives an activation for each output edge to another
    /// stage, not one for all of them.
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

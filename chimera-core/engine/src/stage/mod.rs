//! The seam between a model and the engine: a [`Stage`] is one piece of a model, and [`Data`] is where samples
//! come from.
//!
//! A stage has four required functions: its parameters, a forward pass, and the two halves of a backward pass, that
//! of the input and that of the weights. What only some stages can do is a trait of its own, which the engine asks for by
//! an accessor: [`Branched`] stages have several edges in a [graph](chimera_schedule::graph::StageGraph), [`Selective`] ones
//! recompute a part of their activations, [`Sliced`] ones run on parts of a sequence, saved activations of [`Movable`] and
//! [`Splittable`] ones can be moved and cut, and [`Sizes`] tells the extents and bytes of activations.
//! A framework with automatic differentiation implements [`Differentiable`] instead, a forward pass and a
//! vector-Jacobian product, and [`Autograd`] makes a stage of it. [`conformance`] is the suite that every stage calls.

mod autograd;
mod boxed;
mod branched;
pub mod conformance;
mod data;
mod edges;
mod erased;
mod init;
mod measure;
mod movable;
mod param;
mod samples;
mod selective;
mod sizes;
mod slice;

pub use autograd::{Autograd, Differentiable};
pub use branched::{Branched, DynBranched};
pub use data::{Data, Micro};
pub(crate) use edges::{ForwardResult, StageEdges, has_output_per_edge};
pub use erased::{AnyStage, AnyValue, erase};
pub use init::initial;
pub use measure::measure;
pub use movable::{DynMovable, DynSplittable, Movable, Reassemble, Splittable, TakenApart};
pub use param::{Init, LinearLayer, Param, name_conflict};
pub use samples::samples;
pub use selective::{DynSelective, Selective};
pub use sizes::{DynSizes, Sizes};
pub use slice::{DynSliced, Left, Slice, SliceGradients, Sliced, slice_range};

use crate::device::Result;

/// Result of a forward pass.
#[derive(Clone, Debug)]
pub enum Output<T> {
    /// Input of the next stage; from the last stage, without targets, the model's output.
    Activation(T),
    /// From a stage that has a loss, given targets: the scaled loss (`[1]`) and what its
    /// [`backward_input`](Stage::backward_input) takes as `dy`. A step's loss is the sum over all stages that have one: a
    /// stage whose loss counts for more or less than another's multiplies it.
    Loss {
        /// Loss of the micro-batch times [`loss_scale`](Micro::loss_scale).
        loss: T,
        /// Gradient of that loss, wherever in the stage it is cheapest to begin.
        grad: T,
    },
}

/// One piece of a model.
///
/// A stage keeps nothing between two calls: weights come in as an argument, saved activations go out as a value and
/// come back by move. So weight versions, recomputation and memory accounting belong to the engine, once.
/// A clone of a weight must not outlive the saved activations that it is part of, since updates write in place.
///
/// The first extent of every activation counts samples, or rows of samples: the engine cuts activations and their
/// gradients into parts of equally many samples, and joins such parts, along it.
pub trait Stage: Send {
    /// Activations, gradients and weights.
    type Tensor: Clone + Send;
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;
    /// What the backward pass needs of the forward pass.
    type Saved: Send;
    /// What the weight half of the backward pass needs of the input half.
    type Deferred: Send;

    /// The parameters, in the order in which `w` and `into` below hold their tensors.
    fn params(&self) -> &[Param];

    /// Runs the stage on `x`, the previous stage's activation (`None` for the first stage).
    fn forward(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        x: Option<Self::Tensor>,
    ) -> Result<(Output<Self::Tensor>, Self::Saved)>;

    /// From the gradient `dy` of the output to the gradient of the input (`None` for the first stage).
    fn backward_input(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        saved: Self::Saved,
        dy: Self::Tensor,
    ) -> Result<(Option<Self::Tensor>, Self::Deferred)>;

    /// **Adds** the gradients of the weights to `into`.
    fn backward_weight(
        &self,
        micro: &Micro<'_, Self::Item>,
        deferred: Self::Deferred,
        into: &mut [Self::Tensor],
    ) -> Result<()>;

    /// Makes the saved activations again, to the bit, without the output (full recomputation).
    fn recompute(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        x: Option<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward(w, micro, x)?.1)
    }

    /// Returns true if the stage reads [`Micro::input`] or [`Micro::target`]; if not, no samples are read for it.
    fn needs_inputs(&self) -> bool {
        true
    }

    /// Input `[rows, inputs]` and output gradient `[rows, outputs]` of each linear layer that [`Param::shown`] names, in the
    /// order of the parameters, for work beside the training such as the factors of K-FAC. The gradient of a layer's matrix
    /// is the sum over rows of the products of both.
    fn operands(&self, _deferred: &Self::Deferred) -> Vec<[Self::Tensor; 2]> {
        Vec::new()
    }

    /// The stage, if its place in a graph of stages may have several input edges or outputs.
    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        None
    }

    /// The stage, if it has selective recomputation. A program with it is refused for a stage without.
    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        None
    }

    /// The stage, if it runs on slices of sequences. A program with slices is refused for a stage that does not.
    fn sliced(&self) -> Option<&DynSliced<'_, Self>> {
        None
    }

    /// The stage, if its saved activations can be cut by samples.
    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        None
    }

    /// The stage, if its saved activations can be moved. A program with moves is refused for a stage without.
    fn movable(&self) -> Option<&DynMovable<'_, Self>> {
        None
    }

    /// The stage, if it knows the sizes of its activations.
    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        None
    }
}

//! The interface between a model and the engine: a [`Stage`] is one piece of a model, and [`Data`]
//! is the source of samples.
//!
//! A stage has four required functions: its parameters, a forward pass, and the two halves of a
//! backward pass, for the input and for the weights. Optional abilities are traits of their own,
//! which the engine reaches through accessors. [`Branched`] stages have several edges in a
//! [graph](chimera_schedule::graph::StageGraph). [`Selective`] stages recompute a part of their
//! activations. [`Sliced`] stages run on parts of a sequence. The saved activations of [`Movable`]
//! and [`Splittable`] stages can be moved and cut. [`Sizes`] reports shapes and bytes of
//! activations. A framework with automatic differentiation implements [`Differentiable`] instead, a
//! forward pass and a vector-Jacobian product, and [`Autograd`] turns it into a stage.
//! [`conformance`] is the test suite for stages.

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
mod patterns;
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
pub use param::{Init, LinearLayer, OutputNorms, Param, name_conflict};
pub use patterns::ParamPatterns;
pub(crate) use patterns::matches_name;
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
    /// Returned by a stage that has a loss, given targets: the scaled loss, of shape `[1]`, and the
    /// `dy` of its [`backward_input`](Stage::backward_input). The loss of a step is the sum over
    /// all stages that have one. A stage weights its loss relative to the others by a factor of its
    /// own.
    Loss {
        /// Loss of the micro-batch times [`loss_scale`](Micro::loss_scale).
        loss: T,
        /// Gradient of that loss, taken where the backward pass begins most cheaply.
        grad: T,
    },
}

/// One piece of a model.
///
/// A stage keeps nothing between two calls: weights come in as an argument, saved activations go
/// out as a value and come back by move. Weight versions, recomputation and memory accounting are
/// therefore the engine's job. A clone of a weight must not outlive the saved activations that
/// contain it, since updates write in place.
///
/// The first dimension of every activation counts samples, or rows of samples. Along it the engine
/// cuts activations and gradients into parts of equally many samples, and joins parts.
pub trait Stage: Send {
    /// Activations, gradients and weights.
    type Tensor: Clone + Send;
    /// The type of a sample's numbers.
    type Item: Copy + Send + Sync + 'static;
    /// The saved activations: data that the backward pass needs from the forward pass.
    type Saved: Send;
    /// Deferred weight work: data that the weight half needs from the input half.
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

    /// Maps the output's gradient `dy` to the input's (`None` for the first stage).
    fn backward_input(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        saved: Self::Saved,
        dy: Self::Tensor,
    ) -> Result<(Option<Self::Tensor>, Self::Deferred)>;

    /// **Adds** the gradients of the weights to `into`, except for [frozen](Param::frozen)
    /// parameters, for which `into` has empty tensors of shape `[0]`.
    fn backward_weight(
        &self,
        micro: &Micro<'_, Self::Item>,
        deferred: Self::Deferred,
        into: &mut [Self::Tensor],
    ) -> Result<()>;

    /// Computes the saved activations again, bit for bit, without the output (full recomputation).
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

    /// The input `[rows, inputs]` and output gradient `[rows, outputs]` of each linear layer marked
    /// by [`Param::shown`], in the order of the parameters, for work beside the training such as
    /// K-FAC. The gradient of a layer's matrix is the sum over rows of their products.
    fn operands(&self, _deferred: &Self::Deferred) -> Vec<[Self::Tensor; 2]> {
        Vec::new()
    }

    /// The stage as `Branched`, if it may have several input edges or outputs in a graph of stages.
    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        None
    }

    /// The stage as `Selective`, if it supports that. Programs that need it are refused otherwise.
    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        None
    }

    /// The stage as `Sliced`, if it supports that. Programs with slices are refused otherwise.
    fn sliced(&self) -> Option<&DynSliced<'_, Self>> {
        None
    }

    /// The stage as `Splittable`, if its saved activations can be cut by samples.
    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        None
    }

    /// The stage as `Movable`, if it supports that. Programs with moves are refused otherwise.
    fn movable(&self) -> Option<&DynMovable<'_, Self>> {
        None
    }

    /// The stage as `Sizes`, if it knows the sizes of its activations.
    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        None
    }
}

//! The seam between a model and the engine: a [`Stage`] is one piece of a model, and [`Data`] is where samples
//! come from.
//!
//! A stage has four required functions: its parameters, a forward pass, and the two halves of a backward pass, that
//! of the input and that of the weights. Everything else has a default, which is always correct and at times slower.
//! Where stages are no chain but a [graph](chimera_schedule::graph::StageGraph), one that has several input edges, an activation for
//! each output edge, or an activation and a loss, has [`Stage::forward_edges`] and [`Stage::backward_input_edges`] too.
//! A framework with automatic differentiation implements [`Differentiable`] instead, a forward pass and a
//! vector-Jacobian product, and [`Autograd`] makes a stage of it. [`conformance`] is the suite that every stage calls.

mod autograd;
mod boxed;
pub mod conformance;
mod data;
mod edges;
mod erased;
mod init;
mod measure;
mod param;
mod samples;
mod slice;

pub use autograd::{Autograd, Differentiable};
pub use data::{Data, Micro};
pub(crate) use edges::{ForwardResult, StageEdges};
pub use erased::{AnyStage, AnyValue, erase};
pub use init::initial;
pub use measure::measure;
pub use param::{Init, LinearLayer, Param, name_conflict};
pub use samples::samples;
pub use slice::slice_range;
pub use slice::{Left, Slice, SliceGradients};

use self::edges::no_edges;
use self::slice::no_slices;
use crate::device::{DeviceError, Result};

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

/// Puts saved activations together of their tensors.
pub type Reassemble<T, S> = Box<dyn FnOnce(Vec<T>) -> Result<S> + Send>;

/// The tensors of saved activations, and what puts them together again.
pub type TakenApart<T, S> = (Vec<T>, Reassemble<T, S>);

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

    /// Input `[rows, inputs]` and output gradient `[rows, outputs]` of each linear layer that [`Param::shown`] names, in the
    /// order of the parameters, for work beside the training such as the factors of K-FAC. The gradient of a layer's matrix
    /// is the sum over rows of the products of both.
    fn operands(&self, _deferred: &Self::Deferred) -> Vec<[Self::Tensor; 2]> {
        Vec::new()
    }

    /// Runs a stage of a graph that does not take one activation at most and give one activation or one loss: `inputs` has
    /// the activation of each input edge, in their order.
    ///
    /// Gives an activation, which goes along all output edges to other stages, or with
    /// [`has_output_per_edge`](Stage::has_output_per_edge) one for each of these edges, in their order; and behind them its
    /// loss, if it has one.
    fn forward_edges(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<(Vec<Output<Self::Tensor>>, Self::Saved)> {
        no_edges("forward_edges", inputs.len())
    }

    /// From the gradient of each output of [`forward_edges`](Stage::forward_edges) to the gradients of its inputs, both in
    /// their order. The engine adds up the gradients of an activation that goes along several edges.
    fn backward_input_edges(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        _saved: Self::Saved,
        gradients: Vec<Self::Tensor>,
    ) -> Result<(Vec<Self::Tensor>, Self::Deferred)> {
        no_edges("backward_input_edges", gradients.len())
    }

    /// Whether [`forward_edges`](Stage::forward_edges) gives an activation for each output edge to another stage, and not
    /// one for all of them.
    fn has_output_per_edge(&self) -> bool {
        false
    }

    /// Whether the stage reads [`Micro::input`] or [`Micro::target`]; if not, no samples are read for it.
    fn needs_inputs(&self) -> bool {
        true
    }

    /// Extents of the activation that the stage takes for a number of samples, against which the engine checks what
    /// another rank sends; `None` checks nothing. With several input edges nothing is checked.
    fn input_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Extents of the activation that the stage gives for a number of samples; `None` checks nothing. With an activation
    /// for each output edge nothing is checked.
    fn output_shape(&self, _samples: usize) -> Option<Vec<usize>> {
        None
    }

    /// Makes the saved activations again, to the bit, without the output (full recomputation).
    fn recompute(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        x: Option<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward(w, micro, x)?.1)
    }

    /// [`recompute`](Stage::recompute) for a stage that [`forward_edges`](Stage::forward_edges) runs.
    fn recompute_edges(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        inputs: Vec<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward_edges(w, micro, inputs)?.1)
    }

    /// Whether [`select`](Stage::select) and [`restore`](Stage::restore) are there. A program with selective
    /// recomputation is refused for a stage without them.
    fn has_selective_recompute(&self) -> bool {
        false
    }

    /// Drops those saved activations that are cheap to compute again.
    fn select(&self, saved: Self::Saved) -> Self::Saved {
        saved
    }

    /// Computes again, to the bit, what [`select`](Stage::select) dropped.
    fn restore(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        Ok(selected)
    }

    /// Whether [`forward_slice`](Stage::forward_slice) and [`backward_input_slice`](Stage::backward_input_slice) are there. A
    /// program that cuts sequences into slices is refused for a stage without them.
    fn has_slices(&self) -> bool {
        false
    }

    /// Runs the stage on a slice of the sequence of each sample. `micro` holds the samples whole, `x` and the output have the
    /// rows of the slice alone, those of one sample after those of another. Also gives what the slice leaves for those behind
    /// it.
    fn forward_slice(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        _x: Option<Self::Tensor>,
    ) -> Result<(Output<Self::Tensor>, Self::Saved, Left<Self::Tensor>)> {
        no_slices("forward_slice", slice.of)
    }

    /// Makes the saved activations of a slice again, to the bit.
    fn recompute_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        x: Option<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward_slice(w, micro, slice, x)?.1)
    }

    /// Computes again of a slice, to the bit, what [`select`](Stage::select) dropped of it.
    fn restore_slice(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_, Self::Item>,
        _slice: Slice<'_, Self::Tensor>,
        selected: Self::Saved,
    ) -> Result<Self::Saved> {
        self.restore(w, micro, selected)
    }

    /// From the gradient of a slice's output, and of what it left, to that of its input, and of what the slices before it
    /// left, as far as this slice read it. Slices go backward from the last to the first, so that what a slice left has all
    /// of its gradient by then; the engine adds it up.
    fn backward_input_slice(
        &self,
        _w: &[Self::Tensor],
        _micro: &Micro<'_, Self::Item>,
        slice: Slice<'_, Self::Tensor>,
        _saved: Self::Saved,
        _gradients: SliceGradients<Self::Tensor>,
    ) -> Result<(Option<Self::Tensor>, Self::Deferred, Vec<Left<Self::Tensor>>)> {
        no_slices("backward_input_slice", slice.of)
    }

    /// Whether [`split_saved`](Stage::split_saved) is there. For a stage without it the engine runs a forward over
    /// several parts, as of backward halving and forward doubling, part by part.
    fn can_split_saved(&self) -> bool {
        false
    }

    /// Cuts saved activations into `parts` of equally many samples, in order.
    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>> {
        match parts {
            1 => Ok(vec![saved]),
            _ => Err(DeviceError::Failed {
                device: "the stage".into(),
                op: "split_saved",
                reason: "it has no such function".into(),
            }),
        }
    }

    /// Whether [`take_apart`](Stage::take_apart) is there, which programs need that move saved activations.
    fn can_take_apart(&self) -> bool {
        false
    }

    /// The tensors of saved activations, and what puts saved activations together of such tensors again, to the bit.
    /// Between the two the tensors may have been in another memory.
    fn take_apart(&self, _saved: Self::Saved) -> Result<TakenApart<Self::Tensor, Self::Saved>> {
        Err(DeviceError::Failed {
            device: "the stage".into(),
            op: "take_apart",
            reason: "it has no such function".into(),
        })
    }

    /// Device memory that `saved` holds, in bytes, whole or [selected](Stage::select). Reports of activation memory
    /// leave out a stage that does not say it.
    fn saved_bytes(&self, _saved: &Self::Saved) -> u64 {
        0
    }

    /// Device memory that `deferred` holds, in bytes. Reports of activation memory leave out a stage that does not
    /// say it.
    fn deferred_bytes(&self, _deferred: &Self::Deferred) -> u64 {
        0
    }
}

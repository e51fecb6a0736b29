//! The seam between a model and the engine.

use crate::device::Result;

/// One micro-batch (or unit of one) as a stage sees it.
#[derive(Clone, Copy, Debug)]
pub struct Micro<'a> {
    /// Number of the step, from 0. With `sample` it keys whatever a stage draws at random.
    pub step: u64,
    /// Number of the first sample within the global batch of the step.
    pub sample: u64,
    /// What goes into the model, all samples one after another: the ids of tokens, and what else it reads of a
    /// sample. Only for stages that [read samples](Stage::reads_samples).
    pub input: &'a [u32],
    /// The target ids, likewise; read by the last stage alone. Empty when only outputs are wanted.
    pub target: &'a [u32],
    /// What the summed loss is multiplied by: one over the number of targets of the global batch.
    pub loss_scale: f64,
    /// Whether it is trained on: nothing is dropped in an evaluation.
    pub training: bool,
}

/// What a forward pass hands on.
#[derive(Clone, Debug)]
pub enum Output<T> {
    /// The input of the next stage; from the last stage (without targets) the model's output.
    Activation(T),
    /// From the last stage, given targets: the scaled loss (`[1]`) and what its
    /// [`backward_input`](Stage::backward_input) takes as `dy`.
    Loss {
        /// The loss of the micro-batch times [`loss_scale`](Micro::loss_scale).
        loss: T,
        /// Gradient of that loss, wherever in the last stage it is cheapest to begin.
        grad: T,
    },
}

/// How the initial values of a tensor are drawn, from (seed, name) alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
}

/// One weight tensor of a stage.
#[derive(Clone, PartialEq, Debug)]
pub struct Param {
    /// Unique in the model, and the same whatever the number of stages; keys checkpoints.
    pub name: String,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether weight decay applies (matrices, not biases and norms).
    pub decay: bool,
    /// Whether the last and the first stage share this tensor (a tied head); its gradient is then
    /// summed over the workers of both.
    pub tied: bool,
}

impl Param {
    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One piece of a model.
///
/// Stateless per micro-batch: weights come in as an argument, residuals go out as a value and come
/// back by move. So weight versions, recomputation and memory accounting belong to the engine, once.
/// A stage of a framework with autograd fits too: its `backward_input` runs the whole backward and
/// `Deferred` holds the finished weight gradients.
pub trait Stage: Send {
    /// Activations, gradients and weights.
    type Tensor: Clone + Send;
    /// What the backward pass needs of the forward pass.
    type Saved: Send;
    /// The part of `Saved` that selective recomputation keeps.
    type Selected: Send;
    /// What the weight half of the backward pass needs of the input half.
    type Deferred: Send;

    /// The weights, in the order in which `w` and `into` below hold them.
    fn params(&self) -> &[Param];

    /// Whether it reads [`Micro::input`] or [`Micro::target`]; else they may be empty.
    fn reads_samples(&self) -> bool;

    /// Extents of what passes between stages for so many samples: an activation, or its gradient.
    fn passed(&self, samples: usize) -> Vec<usize>;

    /// Runs the stage on `x`, the previous stage's activation (`None` for the first stage).
    fn forward(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_>,
        x: Option<Self::Tensor>,
    ) -> Result<(Output<Self::Tensor>, Self::Saved)>;

    /// The residuals of [`forward`](Stage::forward) again, to the bit, without its output (full recomputation).
    fn recompute(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_>,
        x: Option<Self::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(self.forward(w, micro, x)?.1)
    }

    /// From the gradient `dy` of the output to that of the input (`None` for the first stage).
    fn backward_input(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_>,
        saved: Self::Saved,
        dy: Self::Tensor,
    ) -> Result<(Option<Self::Tensor>, Self::Deferred)>;

    /// Adds the gradients of the weights to `into`.
    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: Self::Deferred,
        into: &mut [Self::Tensor],
    ) -> Result<()>;

    /// Drops those residuals that are cheap to compute again.
    fn select(&self, saved: Self::Saved) -> Self::Selected;

    /// Computes them again: the residuals that [`select`](Stage::select) took, to the bit.
    fn restore(
        &self,
        w: &[Self::Tensor],
        micro: &Micro<'_>,
        selected: Self::Selected,
    ) -> Result<Self::Saved>;

    /// Cuts residuals into `parts` of equally many samples, in order (backward halving).
    fn split_saved(&self, saved: Self::Saved, parts: usize) -> Result<Vec<Self::Saved>>;

    /// Cuts a gradient into `parts` of equally many samples, in order.
    fn split_tensor(&self, tensor: Self::Tensor, parts: usize) -> Result<Vec<Self::Tensor>>;

    /// Device memory that `saved` holds on to.
    fn saved_bytes(&self, saved: &Self::Saved) -> u64;

    /// Device memory that `selected` holds on to.
    fn selected_bytes(&self, selected: &Self::Selected) -> u64;

    /// Device memory that `deferred` holds on to.
    fn deferred_bytes(&self, deferred: &Self::Deferred) -> u64;
}

//! The values of live tokens.

use chimera_schedule::effects::{Token, TokenKind};

use crate::comm::Comm;
use crate::device::{self, Device};
use crate::engine::state::held_stage::Weights;
use crate::engine::state::rank_state::{StageOn, State};
use crate::engine::state::work_piece::Shown;
use crate::stage::{Left, Stage};

/// The value of a live token.
pub(crate) enum Value<S: Stage> {
    /// An activation or a gradient.
    Tensor(S::Tensor),
    /// The checkpointed inputs, one per input edge. A source has none, since its samples come with
    /// the micro-batch. For a slice of a sequence, also what it and earlier slices left.
    Inputs(Vec<S::Tensor>, Vec<Left<S::Tensor>>),
    /// Saved activations, whole or selected; and what slices of a sequence left, up to this one.
    Saved(S::Saved, Vec<Left<S::Tensor>>),
    /// Deferred weight work.
    Deferred(S::Deferred),
    /// The tensors of saved activations that are being moved, or are at another worker.
    Tensors(Vec<S::Tensor>),
    /// Saved activations outside of the device's memory, as a function that reloads them.
    Offloaded(Box<dyn FnOnce() -> device::Result<Vec<S::Tensor>> + Send>),
    /// Memory for saved activations.
    Memory,
    /// A version of the stage's weights.
    Version(Weights<S>),
    /// The tensors that the slices of a sequence have left so far.
    Past(Vec<Left<S::Tensor>>),
    /// Gradients of what slices left.
    PastGradient(Vec<Left<S::Tensor>>),
    /// Operands of linear layers for work beside the training.
    Shown(Shown<S::Tensor>),
}

/// Tokens of a kind always carry the same kind of value, so a different one is a bug.
impl<S: Stage> Value<S> {
    pub(crate) fn tensor(self) -> S::Tensor {
        match self {
            Value::Tensor(tensor) => tensor,
            other => panic!("a tensor was expected, not {}", other.name()),
        }
    }

    pub(crate) fn saved(self) -> S::Saved {
        match self {
            Value::Saved(saved, _) => saved,
            other => panic!("saved activations were expected, not {}", other.name()),
        }
    }

    pub(crate) fn deferred(self) -> S::Deferred {
        match self {
            Value::Deferred(deferred) => deferred,
            other => panic!("deferred weight work was expected, not {}", other.name()),
        }
    }

    pub(crate) fn version(self) -> Weights<S> {
        match self {
            Value::Version(weights) => weights,
            other => panic!("a version of the weights was expected, not {}", other.name()),
        }
    }

    pub(crate) fn shown(self) -> Shown<S::Tensor> {
        match self {
            Value::Shown(shown) => shown,
            other => panic!("shown operands were expected, not {}", other.name()),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Value::Tensor(_) => "a tensor",
            Value::Inputs(..) => "checkpointed inputs",
            Value::Saved(..) => "saved activations",
            Value::Deferred(_) => "deferred weight work",
            Value::Version(_) => "a version of the weights",
            Value::Past(_) => "what slices left",
            Value::Shown(_) => "operands that are shown",
            Value::PastGradient(_) => "gradients of what slices left",
            Value::Tensors(_) => "moved activations",
            Value::Offloaded(_) => "offloaded activations",
            Value::Memory => "memory for activations",
        }
    }
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    /// Bytes that `values` keep for later backwards.
    pub(crate) fn kept_bytes<'v>(
        &self,
        tokens: &[Token],
        values: impl Iterator<Item = &'v Value<S>>,
    ) -> u64
    where
        S: 'v,
    {
        let bytes = |(token, value): (&Token, &Value<S>)| {
            let sizes = || self.stages.held(token.stage).stage.sizes();
            match value {
                Value::Saved(saved, _) => sizes().map_or(0, |sizes| sizes.saved_bytes(saved)),
                Value::Deferred(deferred) => {
                    sizes().map_or(0, |sizes| sizes.deferred_bytes(deferred))
                }
                Value::Inputs(inputs, lefts) => {
                    let n_before = token.span.start % self.job.program.rules().n_slices();
                    let own = lefts.iter().skip(n_before as usize).flatten();
                    inputs.iter().chain(own).map(|input| self.device.bytes(input)).sum()
                }
                Value::Tensors(kept) if token.kind == TokenKind::Guest => {
                    kept.iter().map(|tensor| self.device.bytes(tensor)).sum()
                }
                Value::Tensor(_)
                | Value::Version(_)
                | Value::Past(_)
                | Value::PastGradient(_)
                | Value::Tensors(_)
                | Value::Offloaded(_)
                | Value::Memory
                | Value::Shown(_) => 0,
            }
        };
        tokens.iter().zip(values).map(bytes).sum()
    }
}

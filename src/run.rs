//! Runs: a training from settings to trained weights, over threads or processes, and the evaluation
//! of a model.

pub use chimera_run::run::*;

use crate::device::Kernels;

/// A run after all checks that are possible before it starts. It trains a model on text, or another
/// [`Subject`].
pub type Run<S = Transformer> = chimera_run::run::Run<S>;
/// A model of the [table](crate::core::model), a text, and devices of this build.
pub type Transformer = chimera_run::run::Transformer<Kernels>;

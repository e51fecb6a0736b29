//! What is done with a run besides training.

use std::sync::Mutex;

use anyhow::Result;
use chimera_core::engine::{Fields, StepReport};
use chimera_core::stage::Data;

use crate::observe::Recorder;

/// Who is told of every step.
pub(crate) type Observer<'r> = dyn FnMut(&StepReport) -> Result<()> + Send + 'r;

/// What is done with a run besides training.
pub struct Watch<'r, I> {
    /// What all ranks must have in common.
    pub(crate) fingerprint: Fields,
    pub(crate) observe: Mutex<&'r mut Observer<'r>>,
    pub(crate) held_out: Option<HeldOut<'r, I>>,
    pub(crate) recorder: Option<Recorder<'r>>,
    /// Whether each rank is a process, which knows nothing of the others but by messages.
    pub(crate) by_processes: bool,
}

/// Samples that are evaluated and not trained on.
pub struct HeldOut<'r, I> {
    pub(crate) data: Box<dyn Data<I> + 'r>,
    pub(crate) n_samples: u64,
}

//! Observers of a run: reports, evaluation, trace.

use std::sync::Mutex;

use anyhow::Result;
use chimera_core::engine::{Fields, StepReport};
use chimera_core::stage::Data;

use crate::observe::Recorder;

/// The function called after every step.
pub type Observer<'r> = dyn FnMut(&StepReport) -> Result<()> + Send + 'r;

/// The work that a run does besides training: reports, evaluation, trace.
pub struct Watch<'r, I> {
    /// The values that must be equal on all ranks.
    pub(crate) fingerprint: Fields,
    pub(crate) observe: Mutex<&'r mut Observer<'r>>,
    pub(crate) held_out: Option<HeldOut<'r, I>>,
    pub(crate) recorder: Option<Recorder<'r>>,
    /// Whether each rank is a process, which knows the others only through messages.
    pub(crate) by_processes: bool,
}

/// Samples that are evaluated and not trained on.
pub struct HeldOut<'r, I> {
    pub(crate) data: Box<dyn Data<I> + 'r>,
    pub(crate) n_samples: u64,
}

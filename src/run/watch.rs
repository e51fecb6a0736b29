//! What is done with a run besides training.

use std::sync::Mutex;

use chimera_core::engine::Fields;

use super::samples::HeldOut;
use crate::observe::Recorder;

/// What is done with a run besides training.
pub(super) struct Watch<'r, O> {
    /// What all ranks must have in common.
    pub(super) fingerprint: Fields,
    pub(super) observe: Mutex<O>,
    pub(super) held_out: HeldOut,
    pub(super) recorder: Option<Recorder<'r>>,
    /// Whether each rank is a process, which knows nothing of the others but by messages.
    pub(super) by_processes: bool,
}

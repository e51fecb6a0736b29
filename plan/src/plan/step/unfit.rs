//! Errors for steps that do not fit, after which another configuration is tried.

use anyhow::{Error, Result};
use chimera_core::analyze::Refusal;
use chimera_core::notation::size;
use chimera_core::search::AutoError;
use chimera_formats::timetable::name;
use chimera_settings::schedules::Named;

/// A step that needs more bytes than a rank has.
#[derive(Debug, thiserror::Error)]
#[error(
    "a step does not fit into rank-memory though all stages recompute: worker {worker} needs {}, and a rank has {}: choose a \
     smaller micro-batch-size, a schedule that holds fewer micro-batches, or more rank-memory",
    size(*needs),
    size(*has)
)]
pub(crate) struct NoRoom {
    worker: usize,
    needs: f64,
    has: f64,
}

impl NoRoom {
    /// Returns an error for the worker that needs most bytes, if these are more than a rank `has`.
    pub(crate) fn of(needs: impl Iterator<Item = f64>, has: f64) -> Option<NoRoom> {
        let (worker, needs) = needs.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (needs > has).then_some(NoRoom { worker, needs, has })
    }
}

/// Returns true if an error refuses this particular program, so that another one may do.
pub(crate) fn is_refused(error: &Error) -> bool {
    error.is::<Refusal>()
        || error.is::<NoRoom>()
        || matches!(error.downcast_ref(), Some(AutoError::Memory(_)))
}

/// Names a refused timetable from a file by its file, since the name within may be another
/// schedule's.
pub fn by_file_name(mut error: Error, schedule: &Named) -> Error {
    if let Some(refusal) = error.downcast_mut::<Refusal>() {
        name_by_file(refusal, schedule);
    }
    error
}

/// Applies [`by_file_name`] to a refusal.
pub fn name_by_file(refusal: &mut Refusal, schedule: &Named) {
    if let Named::File(file) = schedule
        && file.as_os_str() != "-"
    {
        refusal.schedule = name(file);
    }
}

/// Returns the time of a step for comparisons: a refused step is longer than all others.
///
/// # Errors
/// All other errors.
pub fn endless_if_refused(takes: Result<f64>) -> Result<f64> {
    match takes {
        Err(error) if is_refused(&error) => Ok(f64::INFINITY),
        takes => takes,
    }
}

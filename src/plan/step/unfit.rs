//! What does not fit: errors after which another way is tried.

use anyhow::{Error, Result};
use chimera_core::analyze::Refusal;
use chimera_core::notation::size;
use chimera_core::search::AutoError;

use crate::formats::timetable::name;
use crate::settings::schedules::Named;

/// A step for whose bytes a rank has no room.
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
    /// The worker that needs most bytes, if these are more than a rank `has`.
    pub(crate) fn of(needs: impl Iterator<Item = f64>, has: f64) -> Option<NoRoom> {
        let (worker, needs) = needs.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        (needs > has).then_some(NoRoom { worker, needs, has })
    }
}

/// Whether an error refuses a program for what it is or holds, so that another one may do.
pub(crate) fn is_refused(error: &Error) -> bool {
    error.is::<Refusal>()
        || error.is::<NoRoom>()
        || matches!(error.downcast_ref(), Some(AutoError::Memory(_)))
}

/// The error with a refused timetable under the name of its file, if it is from one: the name within may be another
/// schedule's.
pub fn by_file_name(mut error: Error, schedule: &Named) -> Error {
    if let Some(refusal) = error.downcast_mut::<Refusal>() {
        name_by_file(refusal, schedule);
    }
    error
}

/// [`by_file_name`] of a refusal.
pub fn name_by_file(refusal: &mut Refusal, schedule: &Named) {
    if let Named::File(file) = schedule
        && file.as_os_str() != "-"
    {
        refusal.schedule = name(file);
    }
}

/// What a step takes that is compared with others: one that is refused is longer than all.
///
/// # Errors
/// Whatever else there is.
pub fn endless_if_refused(takes: Result<f64>) -> Result<f64> {
    match takes {
        Err(error) if is_refused(&error) => Ok(f64::INFINITY),
        takes => takes,
    }
}

//! The proof of a timetable in a file.

use std::path::Path;

use anyhow::{Context, Result};
use chimera_core::interchange::ReadError;
use chimera_core::program::Program;

use super::costs::CostArgs;
use super::scheduled::Scheduled;
use super::shape::PassArgs;
use crate::formats::timetable::read;
use crate::plan::by_file_name;
use crate::settings::schedules::Named;

/// Proves the timetable in a file; errors name the file.
pub(crate) fn proven(
    file: &Path,
    passes: &PassArgs,
    costs: &CostArgs,
) -> Result<(Scheduled, Program)> {
    let timetable = match read(file) {
        Err(unreadable @ ReadError::Unreadable { .. }) => return Err(unreadable.into()),
        read => read.map_err(anyhow::Error::from),
    };
    let prove = |timetable| {
        let plan = Scheduled::of_timetable(timetable, passes, costs)?;
        let program = plan.prove()?;
        Ok((plan, program))
    };
    let named = |error| by_file_name(error, &Named::File(file.to_path_buf()));
    timetable.and_then(prove).map_err(named).with_context(|| file.display().to_string())
}

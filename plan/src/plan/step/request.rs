//! Requests from settings: for a schedule, for the timetable in a file, or for a search.

use anyhow::{Context, Result, ensure};
use chimera_core::lower::Passes;
use chimera_core::request::{Request, Source};
use chimera_core::schedule::find;
use chimera_formats::timetable::read;
use chimera_settings::Config;
use chimera_settings::schedules::{ALONE, Named};

use super::conflicts::check_schedule;

/// Returns the request of the settings. A timetable in a file is read.
///
/// # Errors
/// If it cannot be read, or if settings contradict each other.
pub fn request(config: &Config) -> Result<Request<'static>> {
    check_schedule(config)?;
    let source = match &config.schedule.name {
        Named::Schedule(schedule) => Source::Schedule(*schedule),
        Named::File(path) => {
            Source::Timetable(read(path).with_context(|| path.display().to_string())?)
        }
        Named::Auto => match &config.schedule.own_placement {
            Some(path) => {
                let own = read(path).with_context(|| path.display().to_string())?;
                Source::SearchWith(own.placement, config.search())
            }
            None => Source::Search(config.schedule.placement, config.search()),
        },
    };
    Ok(Request { source, shape: config.shape(), passes: config.passes() })
}

/// Returns the passes over the schedule, for a window of this many steps if there is no border between steps.
pub(crate) fn passes_of_window(config: &Config, window: u32) -> Passes {
    let passes = config.passes();
    Passes { free_border: passes.free_border.map(|_| window), ..passes }
}

/// Returns the request of the settings, for a window of this many steps if there is no flush after each.
pub(crate) fn request_of_window(config: &Config, window: u32) -> Result<Request<'static>> {
    let mut request = request(config)?;
    request.shape.window = window;
    request.passes = passes_of_window(config, window);
    if let Source::Timetable(timetable) = &request.source {
        let counts = (timetable.rows.len(), timetable.micro_batches_per_step() as usize);
        ensure!(
            counts == (config.schedule.depth, config.schedule.micro_batches),
            "{} changed while it was read",
            config.schedule.name
        );
    } else if config.schedule.depth == 1 {
        request.source = Source::Schedule(find(ALONE)?);
    }
    Ok(request)
}

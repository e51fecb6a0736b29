//! How drawings and comparisons of schedules are asked for and headed.

use chimera_core::timetable::Timetable;
use clap::ValueEnum;

/// How a drawing or a comparison is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Svg,
    Json,
}

/// A title such as `chimera, D = 4, N = 8`.
pub(crate) fn title(timetable: &Timetable) -> String {
    let (d, n) = (timetable.rows.len(), timetable.micro_batches_per_step());
    let title = format!("{}, D = {d}, N = {n}", timetable.schedule);
    match timetable.update.n_steps() {
        0 | 1 => title,
        steps => format!("{title}, {steps} steps"),
    }
}

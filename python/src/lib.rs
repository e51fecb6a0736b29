//! The core of the Python package `chimera-pipeline`: timetables, programs and timelines as Python objects.
//!
//! Names, defaults and error messages are those of the command `chimera`.

mod errors;
mod make;
mod notation;
mod options;
mod program;
mod timeline;
mod timetable;

use pyo3::prelude::*;

/// The module `chimera_pipeline._core`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::errors::{Bug, Error, Refusal, Unfit};
    #[pymodule_export]
    use super::make::{auto, parse, schedule, schedules};
    #[pymodule_export]
    use super::program::Program;
    #[pymodule_export]
    use super::timeline::Timeline;
    #[pymodule_export]
    use super::timetable::Timetable;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

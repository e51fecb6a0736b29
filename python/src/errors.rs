//! Failures, and the Python exceptions that they become.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use chimera_schedule::analyze::Refusal as Refused;
use chimera_schedule::costs::Miscounted;
use chimera_schedule::interchange::ReadError;
use chimera_schedule::interchange::csv::Inexpressible;
use chimera_schedule::request::UnfitPasses;
use chimera_schedule::schedule::{Unfit as DoesNotFit, UnknownSchedule};
use chimera_schedule::search::AutoError;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(chimera_pipeline, Error, PyValueError, "The request is impossible.");
create_exception!(
    chimera_pipeline,
    Unfit,
    Error,
    "A schedule does not support the shape. `nearest` describes the nearest shape that it supports, or is empty."
);
create_exception!(
    chimera_pipeline,
    Refusal,
    Error,
    "A timetable is not safe: `worker` and `cell` give the place (None without one), `row` is that \
     row with the cell marked, and `reason` is the mistake."
);
create_exception!(
    chimera_pipeline,
    Bug,
    PyRuntimeError,
    "A mistake in chimera itself. Please report it."
);

/// Any failure of this package.
pub(crate) enum Failure {
    DoesNotFit(DoesNotFit),
    Refused(Box<Refused>),
    Search(AutoError),
    Invalid(String),
}

impl Failure {
    pub(crate) fn invalid(reason: impl Into<String>) -> Failure {
        Failure::Invalid(reason.into())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let with = |error: PyErr, attributes: &[(&str, Attribute)]| {
            Python::attach(|py| {
                let value = error.value(py);
                for (name, attribute) in attributes {
                    match attribute {
                        Attribute::Text(text) => value.setattr(*name, text)?,
                        Attribute::Number(number) => value.setattr(*name, number)?,
                    }
                }
                Ok(())
            })
            .err()
            .unwrap_or(error)
        };
        match failure {
            Failure::Invalid(reason) => Error::new_err(reason),
            Failure::DoesNotFit(unfit) => {
                let text = unfit.to_string();
                let DoesNotFit { schedule, reason, nearest } = unfit;
                let attributes = [
                    ("schedule", Attribute::Text(schedule.to_string())),
                    ("reason", Attribute::Text(reason)),
                    ("nearest", Attribute::Text(nearest)),
                ];
                with(Unfit::new_err(text), &attributes)
            }
            Failure::Search(error) => {
                let text = error.to_string();
                let attributes = [
                    ("schedule", Attribute::Text("auto".to_string())),
                    ("reason", Attribute::Text(text.clone())),
                    ("nearest", Attribute::Text(String::new())),
                ];
                with(Unfit::new_err(text), &attributes)
            }
            Failure::Refused(refusal) => {
                let text = refusal.to_string();
                let Refused { schedule, at, reason, drawing } = *refusal;
                let attributes = [
                    ("schedule", Attribute::Text(schedule)),
                    ("worker", Attribute::Number(at.map(|(worker, _)| worker.index()))),
                    ("cell", Attribute::Number(at.map(|(_, cell)| cell))),
                    ("reason", Attribute::Text(reason.to_string())),
                    ("row", Attribute::Text(drawing)),
                ];
                with(Refusal::new_err(text), &attributes)
            }
        }
    }
}

enum Attribute {
    Text(String),
    Number(Option<usize>),
}

macro_rules! failures {
    ($($error:ty),+) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::Invalid(error.to_string())
            }
        }
    )+};
}

failures!(Miscounted, ReadError, Inexpressible, UnfitPasses, UnknownSchedule, String);

impl From<DoesNotFit> for Failure {
    fn from(unfit: DoesNotFit) -> Failure {
        Failure::DoesNotFit(unfit)
    }
}

impl From<AutoError> for Failure {
    fn from(error: AutoError) -> Failure {
        Failure::Search(error)
    }
}

impl From<Refused> for Failure {
    fn from(refusal: Refused) -> Failure {
        Failure::Refused(Box::new(refusal))
    }
}

/// Ends the work of [`run`] if a signal that raises, such as Ctrl-C, has arrived. The observer of a
/// search returns nothing that could stop it, so the error unwinds through the search.
pub(crate) fn raise_if_interrupted() {
    if let Err(error) = Python::attach(|py| py.check_signals()) {
        resume_unwind(Box::new(error));
    }
}

/// Runs `work` without the lock of the interpreter. No panic passes through: it becomes a [`Bug`].
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let caught = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    match caught {
        Ok(result) => result.map_err(PyErr::from),
        Err(panic) if panic.is::<PyErr>() => {
            Err(*panic.downcast::<PyErr>().expect("it is one of Python"))
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("it says nothing");
            Err(Bug::new_err(format!(
                "chimera {} has a bug: {text}. Please report it with what you called",
                env!("CARGO_PKG_VERSION")
            )))
        }
    }
}

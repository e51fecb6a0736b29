//! Keyword arguments: times of ops, links, and numbers in their ranges.

use std::fmt;

use chimera_schedule::analyze::Link;
use chimera_schedule::costs::{GivenTimes, PerStage, StageCosts};
use chimera_schedule::notation::near;
use chimera_schedule::timetable::Timetable;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Error, Failure};

/// One number for all stages, or one for each.
#[derive(FromPyObject)]
pub(crate) enum Numbers {
    One(f64),
    Each(Vec<f64>),
}

impl Numbers {
    pub(crate) fn per_stage(self) -> Result<PerStage, Failure> {
        let numbers = match self {
            Numbers::One(number) => vec![number],
            Numbers::Each(numbers) => numbers,
        };
        match numbers.iter().find(|x| !is_sound(**x)) {
            Some(bad) => Err(not_a_number(*bad)),
            None if numbers.is_empty() => Err(Failure::invalid("a list of times has no number")),
            None => Ok(PerStage(numbers)),
        }
    }
}

fn is_sound(x: f64) -> bool {
    (0.0..=1e12).contains(&x)
}

fn not_a_number(x: f64) -> Failure {
    Failure::Invalid(format!("`{x}` is not a number from 0 to 1e12"))
}

/// Times of ops and messages, per stage or per D-th of the model.
#[derive(Clone, Default)]
pub(crate) struct Times {
    pub(crate) given: GivenTimes,
    of_model: bool,
}

impl Times {
    /// Returns the costs of a timetable's stages.
    pub(crate) fn costs(&self, timetable: &Timetable) -> Result<StageCosts, Failure> {
        if self.of_model {
            Ok(self.given.of_model(timetable)?)
        } else {
            Ok(self.given.of_stages(timetable)?)
        }
    }

    /// Returns the keyword arguments from which [`times`] reads these times.
    pub(crate) fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let GivenTimes { forward, backward, input, weight, pair, recompute, message, transfer } =
            &self.given;
        let fields = [forward, backward, input, weight, pair, recompute, message, transfer];
        let said = PyDict::new(py);
        for (name, field) in TIMES.into_iter().zip(fields) {
            if let Some(PerStage(numbers)) = field {
                said.set_item(name, numbers)?;
            }
        }
        said.set_item("of_model", self.of_model)?;
        Ok(said)
    }
}

/// Keyword arguments for times: the fields of [`GivenTimes`] in their order, and `of_model`.
const TIMES: [&str; 9] = [
    "forward",
    "backward",
    "input",
    "weight",
    "pair",
    "recompute_time",
    "message",
    "transfer",
    "of_model",
];

/// Reads times among keyword arguments. Python has read the `others`; more are errors.
pub(crate) fn times(given: Option<&Bound<'_, PyDict>>, others: &[&str]) -> PyResult<Times> {
    let (mut times, mut of_model) = (GivenTimes::default(), false);
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        if name == "of_model" {
            of_model = value.extract()?;
            continue;
        }
        let field = match name.as_str() {
            "forward" => &mut times.forward,
            "backward" => &mut times.backward,
            "input" => &mut times.input,
            "weight" => &mut times.weight,
            "pair" => &mut times.pair,
            "recompute_time" => &mut times.recompute,
            "message" => &mut times.message,
            "transfer" => &mut times.transfer,
            _ => {
                let known =
                    "forward, backward, input, weight, pair, recompute_time, message and transfer";
                let all = others.iter().chain(&TIMES).map(|name| name.replace('_', "-"));
                let all: Vec<String> = all.collect();
                let text = match near(&name, all.iter().map(String::as_str)) {
                    Some(near) => format!(
                        "unknown keyword argument `{name}`: did you mean `{}`?",
                        near.replace('-', "_")
                    ),
                    None => format!(
                        "unknown keyword argument `{name}`: times are {known}; `of_model` may stand beside them"
                    ),
                };
                return Err(PyTypeError::new_err(text));
            }
        };
        if !value.is_none() {
            let numbers: Numbers = value.extract().map_err(|_| {
                PyTypeError::new_err(format!("`{name}` is no number and no list of numbers"))
            })?;
            *field = Some(numbers.per_stage()?);
        }
    }
    if times.backward.is_some() && (times.input.is_some() || times.weight.is_some()) {
        let text = "`backward` is the time of both halves: leave it or `input` and `weight` out";
        return Err(Error::new_err(text));
    }
    Ok(Times { given: times, of_model })
}

/// Makes a link from the time per message and the time per byte.
pub(crate) fn link(given: Option<(f64, f64)>) -> Result<Option<Link>, Failure> {
    let Some((alpha, beta)) = given else {
        return Ok(None);
    };
    match [alpha, beta].into_iter().find(|x| !is_sound(*x)) {
        Some(bad) => Err(not_a_number(bad)),
        None => Ok(Some(Link { alpha, beta })),
    }
}

/// A whole number from Python, of any size, or the nearest that fits.
#[derive(Clone, Copy)]
pub(crate) struct Whole(pub(crate) i64);

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            i64::MAX => f.write_str("2^63 or more"),
            i64::MIN => f.write_str("-2^63 or less"),
            number => write!(f, "{number}"),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Whole {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Whole> {
        number(&given).map(Whole)
    }
}

/// Reads the number of a [`Whole`], for arguments with a default.
pub(crate) fn number(given: &Bound<'_, PyAny>) -> PyResult<i64> {
    given.extract::<i64>().or_else(|error| {
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            Ok(if given.lt(0)? { i64::MIN } else { i64::MAX })
        } else {
            Err(error)
        }
    })
}

pub(crate) fn seed(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    given.extract::<u64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(given.py()) {
            Error::new_err(format!(
                "`search_seed` is {given}: choose a number from 0 to {}",
                u64::MAX
            ))
        } else {
            error
        }
    })
}

/// Checks that a whole number is in a range that begins with 1.
pub(crate) fn whole(name: &str, value: i64, most: u32) -> Result<u32, Failure> {
    u32::try_from(value).ok().filter(|n| (1..=most).contains(n)).ok_or_else(|| {
        let value = Whole(value);
        Failure::Invalid(format!("`{name}` is {value}: choose a number from 1 to {most}"))
    })
}

/// Checks the id of a worker, stage or pipe, of which there are `n`.
pub(crate) fn id(what: &str, value: Whole, n: usize) -> Result<u16, Failure> {
    let is_there = |id: &u16| usize::from(*id) < n;
    u16::try_from(value.0).ok().filter(is_there).ok_or_else(|| {
        Failure::Invalid(format!("there is no {what} {value}: choose one from 0 to {}", n - 1))
    })
}

/// Checks that a number is in a range that begins with 0.
pub(crate) fn real(name: &str, value: f64, most: f64) -> Result<f64, Failure> {
    if (0.0..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::Invalid(format!("`{name}` is {value}: choose a number from 0 to {most}")))
    }
}

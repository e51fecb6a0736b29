//! Sources of timetables: a schedule by name, a search, a file.

use std::time::Duration;

use chimera_schedule::interchange::json::{MAX_NAME, is_unprintable};
use chimera_schedule::interchange::{from_csv, from_json};
use chimera_schedule::lower::Passes;
use chimera_schedule::notation::by_name;
use chimera_schedule::request::{Request, Source};
use chimera_schedule::schedule::{
    self as table, NUMBERS, Number, Parameter, SCHEDULES, Scaling, Shape,
};
use chimera_schedule::search::{Search, Where};
use chimera_schedule::timetable as core;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{Failure, raise_if_interrupted, run};
use crate::options::{Whole, number, real, seed, times, whole};
use crate::timetable::Timetable;

/// The largest `depth`, and the largest of parameters with this limit on the command line.
const MOST: u32 = 1 << 13;
/// The largest number of micro-batches or steps.
const MOST_MICRO_BATCHES: u32 = 1 << 20;

/// Every schedule by name, with `aliases`, `about`, `paper`, `place`, `reads` and `variants`.
#[pyfunction]
pub(crate) fn schedules(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for schedule in SCHEDULES {
        let entry = PyDict::new(py);
        let is_read = |(_, parameter): &&(_, Parameter)| schedule.reads().contains(parameter);
        let reads: Vec<String> =
            Parameter::ALL.iter().filter(is_read).map(|(name, _)| name.replace('-', "_")).collect();
        entry.set_item("aliases", schedule.aliases())?;
        entry.set_item("about", schedule.about())?;
        entry.set_item("paper", schedule.source().paper)?;
        entry.set_item("place", schedule.source().place)?;
        entry.set_item("reads", reads)?;
        entry.set_item("variants", schedule.variants())?;
        all.set_item(schedule.name(), entry)?;
    }
    Ok(all)
}

/// The timetable of a schedule, by name, with the parameters that it reads.
#[pyfunction]
#[pyo3(signature = (name, *, depth=4, micro_batches=None, scaling="auto", **others))]
pub(crate) fn schedule(
    py: Python<'_>,
    name: &str,
    #[pyo3(from_py_with = number)] depth: i64,
    micro_batches: Option<Whole>,
    scaling: &str,
    others: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let (numbers, others) = numbers(others, |_| true)?;
    let times = times(others.as_ref(), &known(&numbers, &["depth", "micro_batches", "scaling"]))?;
    run(py, || {
        let (scaling, is_auto) = scaling_of(scaling)?;
        let shape = Shape { scaling, ..shape(depth, micro_batches, &numbers)? };
        let source = Source::Schedule(table::find(name)?);
        let mut request = Request { source, shape, passes: Passes::default() };
        let costs = |timetable: &core::Timetable| times.costs(timetable);
        if is_auto {
            request.take_shorter_scaling(&costs)?;
        }
        let ordered = request.timetable(&costs, &mut |_| ())?;
        Ok(Timetable::plain(ordered.timetable))
    })
}

/// The shortest order that a search finds on a placement.
#[pyfunction]
#[pyo3(signature = (*, placement="mirrored", depth=4, micro_batches=None, scaling="auto", recompute="none",
                    split_backward=false, memory_cap=None, search_time=10.0, search_seed=1, **others))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub(crate) fn auto(
    py: Python<'_>,
    placement: &str,
    #[pyo3(from_py_with = number)] depth: i64,
    micro_batches: Option<Whole>,
    scaling: &str,
    recompute: &str,
    split_backward: bool,
    memory_cap: Option<f64>,
    search_time: f64,
    #[pyo3(from_py_with = seed)] search_seed: u64,
    others: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let is_read =
        |row: &Number| Where::ALL.iter().any(|(_, place)| place.reads().contains(&row.parameter));
    let (numbers, others) = numbers(others, is_read)?;
    let names = [
        "placement",
        "depth",
        "micro_batches",
        "scaling",
        "recompute",
        "split_backward",
        "memory_cap",
        "search_time",
        "search_seed",
    ];
    let times = times(others.as_ref(), &known(&numbers, &names))?;
    run(py, || {
        let scaling = scaling_of(scaling)?.0;
        let shape = Shape { scaling, ..shape(depth, micro_batches, &numbers)? };
        let search = Search {
            max_peak: memory_cap.map(|cap| real("memory_cap", cap, 1e6)).transpose()?,
            time_limit: Duration::from_secs_f64(real("search_time", search_time, 1e6)?),
            seed: search_seed,
            ..Search::default()
        };
        let source = Source::Search(placement.parse::<Where>()?, search);
        let passes = Passes { recompute: recompute.parse()?, split_backward, ..Passes::default() };
        let request = Request { source, shape, passes };
        let ordered = request.timetable(
            &|timetable: &core::Timetable| times.costs(timetable),
            &mut |_| {
                raise_if_interrupted();
            },
        )?;
        Ok(Timetable { timetable: ordered.timetable, search: ordered.search })
    })
}

/// Reads a timetable, JSON or PyTorch's CSV (`compute_only`); what begins with `{` is JSON.
#[pyfunction]
#[pyo3(signature = (content, *, format=None, name="timetable"))]
pub(crate) fn parse(
    py: Python<'_>,
    content: &Bound<'_, PyAny>,
    format: Option<&str>,
    name: &str,
) -> PyResult<Timetable> {
    let bytes = match content.cast::<PyBytes>() {
        Ok(bytes) => bytes.as_bytes().to_vec(),
        Err(_) => content.extract::<String>()?.into_bytes(),
    };
    run(py, move || {
        if name.len() > MAX_NAME || name.chars().any(is_unprintable) {
            let reason = format!("`name` has more than {MAX_NAME} bytes or control characters");
            return Err(Failure::Invalid(reason));
        }
        let is_json = match format {
            None => bytes.trim_ascii_start().first() == Some(&b'{'),
            Some(format) => by_name("format", format, &[("json", true), ("csv", false)])?,
        };
        let timetable = if is_json { from_json(&bytes)? } else { from_csv(&bytes, name)? };
        Ok(Timetable::plain(timetable))
    })
}

/// A parameter with its keyword, and its number if one was given.
type Given = (&'static Number, String, Option<Whole>);

/// Takes the parameters for which `is_read` out of the keyword arguments.
fn numbers<'py>(
    given: Option<&Bound<'py, PyDict>>,
    is_read: impl Fn(&Number) -> bool,
) -> PyResult<(Vec<Given>, Option<Bound<'py, PyDict>>)> {
    let others = given.map(|given| given.copy()).transpose()?;
    let mut numbers = Vec::new();
    for row in NUMBERS.iter().filter(|row| is_read(row)) {
        let keyword = row.name.replace('-', "_");
        let mut number = None;
        if let Some(others) = &others
            && let Some(value) = others.get_item(&keyword)?
        {
            others.del_item(&keyword)?;
            let read = if value.is_none() && row.default.is_none() {
                Ok(None)
            } else {
                value.extract().map(Some)
            };
            number = read.map_err(|error: PyErr| {
                let reason = error.value(value.py());
                PyTypeError::new_err(format!("argument '{keyword}': {reason}"))
            })?;
        }
        numbers.push((row, keyword, number));
    }
    Ok((numbers, others))
}

/// Lists the keywords of parameters and `others`.
fn known<'k>(numbers: &'k [Given], others: &[&'k str]) -> Vec<&'k str> {
    let keywords = numbers.iter().map(|(_, keyword, _)| keyword.as_str());
    others.iter().copied().chain(keywords).collect()
}

/// Returns the shape with the given numbers, whose scaling is direct.
fn shape(depth: i64, micro_batches: Option<Whole>, numbers: &[Given]) -> Result<Shape, Failure> {
    let depth = whole("depth", depth, MOST)?;
    let micro_batches = micro_batches.map_or(i64::from(depth), |n| n.0);
    let n_micro_batches = whole("micro_batches", micro_batches, MOST_MICRO_BATCHES)?;
    let mut shape = Shape::new(depth as usize, n_micro_batches);
    for (row, keyword, number) in numbers {
        if let Some(number) = number {
            let most = if row.most > MOST { MOST_MICRO_BATCHES } else { MOST };
            shape = shape.with(row.parameter, Some(whole(keyword, number.0, most)?));
        }
    }
    Ok(shape)
}

/// Returns the scaling of a shape, and whether to find the shorter of both.
fn scaling_of(name: &str) -> Result<(Scaling, bool), Failure> {
    let known = Scaling::ALL.map(|(name, scaling)| (name, (scaling, false)));
    let all = [&[("auto", (Scaling::Direct, true))], &known[..]].concat();
    Ok(by_name("scaling", name, &all)?)
}

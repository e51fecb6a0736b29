//! Sources of timetables: a schedule by name, a search, a file.

use std::time::Duration;

use chimera_schedule::interchange::json::{MAX_NAME, is_unprintable};
use chimera_schedule::interchange::{from_csv, from_json};
use chimera_schedule::lower::Passes;
use chimera_schedule::notation::by_name;
use chimera_schedule::request::{Request, Source};
use chimera_schedule::schedule::{self as table, Parameter, SCHEDULES, Scaling, Shape};
use chimera_schedule::search::{Search, Where};
use chimera_schedule::timetable as core;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{Failure, raise_if_interrupted, run};
use crate::options::{Whole, number, real, seed, times, whole};
use crate::timetable::Timetable;

/// The largest `depth`, `pipes`, `chunks` and `waves`.
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

/// The timetable of a schedule, by name.
#[pyfunction]
#[pyo3(signature = (name, *, depth=4, micro_batches=None, pipes=2, chunks=2, scaling="auto", in_turn=1, waves=2,
                    in_flight=None, window=2, slices=4, **times))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub(crate) fn schedule(
    py: Python<'_>,
    name: &str,
    #[pyo3(from_py_with = number)] depth: i64,
    micro_batches: Option<Whole>,
    #[pyo3(from_py_with = number)] pipes: i64,
    #[pyo3(from_py_with = number)] chunks: i64,
    scaling: &str,
    #[pyo3(from_py_with = number)] in_turn: i64,
    #[pyo3(from_py_with = number)] waves: i64,
    in_flight: Option<Whole>,
    #[pyo3(from_py_with = number)] window: i64,
    #[pyo3(from_py_with = number)] slices: i64,
    times: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let times = self::times(
        times,
        &[
            "depth",
            "micro_batches",
            "pipes",
            "chunks",
            "scaling",
            "in_turn",
            "waves",
            "in_flight",
            "window",
            "slices",
        ],
    )?;
    run(py, || {
        let in_flight =
            in_flight.map(|k| whole("in_flight", k.0, MOST_MICRO_BATCHES)).transpose()?;
        let (scaling, is_auto) = scaling_of(scaling)?;
        let shape = Shape {
            n_pipes: whole("pipes", pipes, MOST)? as usize,
            n_chunks: whole("chunks", chunks, MOST)? as usize,
            n_in_turn: whole("in_turn", in_turn, MOST_MICRO_BATCHES)?,
            n_waves: whole("waves", waves, MOST)? as usize,
            window: whole("window", window, MOST_MICRO_BATCHES)?,
            n_slices: whole("slices", slices, MOST_MICRO_BATCHES)?,
            in_flight,
            scaling,
            ..plain_shape(depth, micro_batches)?
        };
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
#[pyo3(signature = (*, placement="mirrored", depth=4, micro_batches=None, pipes=2, chunks=2, waves=2, scaling="auto",
                    recompute="none", split_backward=false, memory_cap=None, search_time=10.0, search_seed=1, **times))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub(crate) fn auto(
    py: Python<'_>,
    placement: &str,
    #[pyo3(from_py_with = number)] depth: i64,
    micro_batches: Option<Whole>,
    #[pyo3(from_py_with = number)] pipes: i64,
    #[pyo3(from_py_with = number)] chunks: i64,
    #[pyo3(from_py_with = number)] waves: i64,
    scaling: &str,
    recompute: &str,
    split_backward: bool,
    memory_cap: Option<f64>,
    search_time: f64,
    #[pyo3(from_py_with = seed)] search_seed: u64,
    times: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let times = self::times(
        times,
        &[
            "placement",
            "depth",
            "micro_batches",
            "pipes",
            "chunks",
            "waves",
            "scaling",
            "recompute",
            "split_backward",
            "memory_cap",
            "search_time",
            "search_seed",
        ],
    )?;
    run(py, || {
        let shape = Shape {
            n_pipes: whole("pipes", pipes, MOST)? as usize,
            n_chunks: whole("chunks", chunks, MOST)? as usize,
            n_waves: whole("waves", waves, MOST)? as usize,
            scaling: scaling_of(scaling)?.0,
            ..plain_shape(depth, micro_batches)?
        };
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

fn plain_shape(depth: i64, micro_batches: Option<Whole>) -> Result<Shape, Failure> {
    let depth = whole("depth", depth, MOST)?;
    let micro_batches = micro_batches.map_or(i64::from(depth), |n| n.0);
    Ok(Shape::new(depth as usize, whole("micro_batches", micro_batches, MOST_MICRO_BATCHES)?))
}

/// Returns the scaling of a shape, and whether to find the shorter of both.
fn scaling_of(name: &str) -> Result<(Scaling, bool), Failure> {
    let known = Scaling::ALL.map(|(name, scaling)| (name, (scaling, false)));
    let all = [&[("auto", (Scaling::Direct, true))], &known[..]].concat();
    Ok(by_name("scaling", name, &all)?)
}

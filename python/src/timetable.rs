//! Timetables: made by schedules, found by a search, or read.

use std::collections::BTreeSet;
use std::time::Duration;

use chimera_core::ids::{PipeId, StageId, WorkerId};
use chimera_core::interchange::json::MAX_NAME;
use chimera_core::interchange::{from_csv, from_json, to_csv, to_json};
use chimera_core::lower::{Hoist, Lowering, Passes, Recompute, lower_at};
use chimera_core::notation::by_name;
use chimera_core::op::{Cell, Op};
use chimera_core::request::{Request, Source};
use chimera_core::schedule::{self as table, Parameter, SCHEDULES, Scaling, Shape};
use chimera_core::search::{Report, Search, Where};
use chimera_core::timetable as core;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{Failure, run};
use crate::options::{real, times, whole};
use crate::program::Program;
use crate::timeline::Timeline;

/// Most of `depth`, `pipes`, `chunks` and `waves`.
const MOST: u32 = 1 << 13;
/// Most of what counts micro-batches or steps.
const MOST_MICRO_BATCHES: u32 = 1 << 20;

/// A schedule at a shape: who holds which stage, and in which order each worker computes.
#[pyclass(frozen, eq, module = "chimera")]
#[derive(PartialEq)]
pub(crate) struct Timetable {
    pub(crate) timetable: core::Timetable,
    search: Option<Report>,
}

impl Timetable {
    fn plain(timetable: core::Timetable) -> Timetable {
        Timetable { timetable, search: None }
    }
}

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
                    in_flight=None, window=2, **times))]
#[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
pub(crate) fn schedule(
    py: Python<'_>,
    name: &str,
    depth: i64,
    micro_batches: Option<i64>,
    pipes: i64,
    chunks: i64,
    scaling: &str,
    in_turn: i64,
    waves: i64,
    in_flight: Option<i64>,
    window: i64,
    times: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let times = self::times(times)?;
    run(py, || {
        let in_flight = in_flight.map(|k| whole("in_flight", k, MOST_MICRO_BATCHES)).transpose()?;
        let (scaling, is_auto) = scaling_of(scaling)?;
        let shape = Shape {
            n_pipes: whole("pipes", pipes, MOST)? as usize,
            n_chunks: whole("chunks", chunks, MOST)? as usize,
            n_in_turn: whole("in_turn", in_turn, MOST_MICRO_BATCHES)?,
            n_waves: whole("waves", waves, MOST)? as usize,
            window: whole("window", window, MOST_MICRO_BATCHES)?,
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
    depth: i64,
    micro_batches: Option<i64>,
    pipes: i64,
    chunks: i64,
    waves: i64,
    scaling: &str,
    recompute: &str,
    split_backward: bool,
    memory_cap: Option<f64>,
    search_time: f64,
    search_seed: u64,
    times: Option<&Bound<'_, PyDict>>,
) -> PyResult<Timetable> {
    let times = self::times(times)?;
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
        let ordered = request
            .timetable(&|timetable: &core::Timetable| times.costs(timetable), &mut |_| ())?;
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
        if name.len() > MAX_NAME || name.chars().any(char::is_control) {
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

fn plain_shape(depth: i64, micro_batches: Option<i64>) -> Result<Shape, Failure> {
    let depth = whole("depth", depth, MOST)?;
    let micro_batches = micro_batches.unwrap_or(i64::from(depth));
    Ok(Shape::new(depth as usize, whole("micro_batches", micro_batches, MOST_MICRO_BATCHES)?))
}

/// The scaling of a shape, and whether the shorter one is to be found.
fn scaling_of(name: &str) -> Result<(Scaling, bool), Failure> {
    let known = Scaling::ALL.map(|(name, scaling)| (name, (scaling, false)));
    let all = [&[("auto", (Scaling::Direct, true))], &known[..]].concat();
    Ok(by_name("scaling", name, &all)?)
}

#[pymethods]
impl Timetable {
    /// Name of the schedule.
    #[getter]
    fn schedule(&self) -> &str {
        &self.timetable.schedule
    }

    /// Workers of the pipeline group, D.
    #[getter]
    fn depth(&self) -> usize {
        self.timetable.placement.n_workers()
    }

    /// Number of stages.
    #[getter]
    fn stages(&self) -> usize {
        self.timetable.placement.n_stages()
    }

    /// Number of pipes.
    #[getter]
    fn pipes(&self) -> usize {
        self.timetable.placement.n_pipes()
    }

    /// Micro-batches of a step, N.
    #[getter]
    fn micro_batches(&self) -> u32 {
        self.timetable.micro_batches_per_step()
    }

    /// Into how many units a micro-batch is cut.
    #[getter]
    fn units_per_micro(&self) -> u32 {
        self.timetable.units_per_micro
    }

    /// The worker of each stage, for each pipe.
    #[getter]
    fn placement(&self) -> Vec<Vec<u16>> {
        let workers = |pipe: &Vec<WorkerId>| pipe.iter().map(|worker| worker.0).collect();
        self.timetable.placement.pipes().iter().map(workers).collect()
    }

    /// For each worker its cells, each a list of ops `(kind, pipe, stage, units)`: one, or a pair.
    #[getter]
    fn rows(&self) -> Vec<Vec<Vec<WrittenOp>>> {
        let ops = |cell: &Cell| cell.ops().map(written).collect();
        self.timetable.rows.iter().map(|row| row.iter().map(ops).collect()).collect()
    }

    /// What the search came to, if it is one's: `makespan`, `lower_bound`, `orders` and `like`.
    #[getter]
    fn search<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(Report { progress, like }) = &self.search else {
            return Ok(None);
        };
        let report = PyDict::new(py);
        report.set_item("makespan", progress.makespan)?;
        report.set_item("lower_bound", progress.lower_bound)?;
        report.set_item("orders", progress.n_orders)?;
        report.set_item("like", like)?;
        Ok(Some(report))
    }

    /// What passes make of it: recomputation, and backwards that are split.
    #[pyo3(signature = (*, recompute="none", hoist=None, split_backward=false, memory_cap=None, **times))]
    fn passes(
        &self,
        py: Python<'_>,
        recompute: &str,
        hoist: Option<&Bound<'_, PyAny>>,
        split_backward: bool,
        memory_cap: Option<f64>,
        times: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Timetable> {
        let times = self::times(times)?;
        let hoist = hoist.map(|hoist| hoist.str()?.extract::<String>()).transpose()?;
        run(py, || {
            let passes = Passes {
                recompute: recompute.parse::<Recompute>()?,
                hoist: hoist.as_deref().unwrap_or("0").parse::<Hoist>()?,
                split_backward,
            };
            let source = Source::Timetable(self.timetable.clone());
            let request = Request { source, shape: Shape::new(1, 1), passes };
            let costs = |timetable: &core::Timetable| times.costs(timetable);
            let ordered = request.timetable(&costs, &mut |_| ())?;
            let costs = costs(&ordered.timetable)?;
            let max_peak = memory_cap.map(|cap| real("memory_cap", cap, 1e6)).transpose()?;
            let how = Lowering { max_peak, ..Lowering::default() };
            Ok(Timetable::plain(ordered.passed(&how, &costs)?))
        })
    }

    /// The proven program: messages, gradient reductions and optimizer steps are added.
    #[pyo3(signature = (*, sync="eager-opt", tied=None, barrier=true, memory_cap=None, **times))]
    pub(crate) fn lower(
        &self,
        py: Python<'_>,
        sync: &str,
        tied: Option<Vec<Vec<u16>>>,
        barrier: bool,
        memory_cap: Option<f64>,
        times: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Program> {
        let times = self::times(times)?;
        run(py, move || {
            let stages = |set: Vec<u16>| set.into_iter().map(StageId).collect();
            let how = Lowering {
                sync: sync.parse()?,
                barrier,
                tied: tied.unwrap_or_default().into_iter().map(stages).collect(),
                max_peak: memory_cap.map(|cap| real("memory_cap", cap, 1e6)).transpose()?,
            };
            let costs = times.costs(&self.timetable)?;
            let program = lower_at(&self.timetable, &how, &costs)?;
            Ok(Program::new(program, &self.timetable, times))
        })
    }

    /// The timetable as JSON, which `parse` and the command read.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(to_json(&self.timetable)))
    }

    /// One pipe as CSV that PyTorch's pipelining runtime loads (`compute_only`).
    #[pyo3(signature = (pipe=None))]
    fn to_csv(&self, py: Python<'_>, pipe: Option<u16>) -> PyResult<String> {
        run(py, || {
            let pipes: BTreeSet<PipeId> = self.timetable.ops().map(|op| op.pipe).collect();
            let one = pipe.map(PipeId).or(pipes.first().copied().filter(|_| pipes.len() == 1));
            let Some(pipe) = one else {
                let choice: Vec<_> = pipes.iter().map(|pipe| pipe.0.to_string()).collect();
                return Err(Failure::Invalid(format!(
                    "the micro-batches of {} go through {} pipes, and PyTorch's CSV holds one: choose one of \
                     pipe {}",
                    self.timetable.schedule,
                    pipes.len(),
                    choice.join(", ")
                )));
            };
            Ok(to_csv(&self.timetable, pipe)?)
        })
    }

    /// The simulated step as text, at the costs that the command draws it with.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        self.simulated(py)?.text(py)
    }

    /// The simulated step as SVG.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        self.simulated(py)?.svg(py)
    }

    /// A page with the drawing of the simulated step and its figures.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        self.simulated(py)?.html(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((py.import("chimera")?.getattr("parse")?, (self.to_json(py)?,)))
    }

    fn __repr__(&self) -> String {
        format!("<Timetable {}>", title(&self.timetable))
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py)
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        self.svg(py)
    }
}

impl Timetable {
    fn simulated(&self, py: Python<'_>) -> PyResult<Timeline> {
        let program = self.lower(py, "eager-opt", None, true, None, None)?;
        program.simulate(py, 1, None, None, None, None, None, None)
    }
}

/// An op as Python has it: kind, pipe, stage and units.
pub(crate) type WrittenOp = (char, u16, u16, Vec<u32>);

pub(crate) fn written(op: Op) -> WrittenOp {
    (op.kind.letter(), op.pipe.0, op.stage.0, op.span.units().collect())
}

/// A title such as `chimera, D = 4, N = 8`.
pub(crate) fn title(timetable: &core::Timetable) -> String {
    let (d, n) = (timetable.rows.len(), timetable.micro_batches_per_step());
    let title = format!("{}, D = {d}, N = {n}", timetable.schedule);
    match timetable.update.n_steps() {
        0 | 1 => title,
        steps => format!("{title}, {steps} steps"),
    }
}

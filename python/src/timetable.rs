//! Timetables: their passes, their proof, and their drawings.

use std::collections::BTreeSet;

use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::{PipeId, StageId, WorkerId};
use chimera_schedule::interchange::{to_csv, to_json};
use chimera_schedule::lower::{Hoist, Lowering, Moves, Passes, Recompute, lower_at};
use chimera_schedule::op::Cell;
use chimera_schedule::request::{Request, Source};
use chimera_schedule::schedule::Shape;
use chimera_schedule::search::Report;
use chimera_schedule::timetable as core;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Failure, run};
use crate::notation::{WrittenOp, title, written};
use crate::options::{Whole, id, real, times};
use crate::program::Program;
use crate::timeline::Timeline;

/// A schedule at a shape: who holds which stage, and in which order each worker computes.
#[pyclass(frozen, eq, module = "chimera_pipeline")]
#[derive(PartialEq)]
pub(crate) struct Timetable {
    pub(crate) timetable: core::Timetable,
    pub(crate) search: Option<Report>,
}

impl Timetable {
    pub(crate) fn plain(timetable: core::Timetable) -> Timetable {
        Timetable { timetable, search: None }
    }
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

    /// The number of units into which a micro-batch is cut.
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

    /// The graph of the stages: `sources`, `edges` and `losses`, as in `with_graph`.
    #[getter]
    fn graph<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let graph = &self.timetable.graph;
        let edges: Vec<(u16, u16)> = graph.edges().map(|(from, to)| (from.0, to.0)).collect();
        let said = PyDict::new(py);
        said.set_item("sources", graph.sources().map(|stage| stage.0).collect::<Vec<_>>())?;
        said.set_item("edges", edges)?;
        said.set_item("losses", graph.losses().map(|stage| stage.0).collect::<Vec<_>>())?;
        Ok(said)
    }

    /// The timetable for a graph of stages: `sources` begin with the samples, each pair of `edges`
    /// is a stage and a later one that it feeds, and `losses` have a loss.
    #[pyo3(signature = (*, sources, edges, losses))]
    fn with_graph(
        &self,
        py: Python<'_>,
        sources: Vec<u16>,
        edges: Vec<(u16, u16)>,
        losses: Vec<u16>,
    ) -> PyResult<Timetable> {
        run(py, || {
            let n_stages = self.timetable.placement.n_stages();
            let graph = StageGraph::new(n_stages, &sources, &edges, &losses);
            let graph = graph.map_err(|e| Failure::Invalid(e.to_string()))?;
            Ok(Timetable::plain(core::Timetable { graph, ..self.timetable.clone() }))
        })
    }

    /// For each worker its cells, each a list of ops `(kind, pipe, stage, units)`: one, or a pair.
    #[getter]
    fn rows(&self) -> Vec<Vec<Vec<WrittenOp>>> {
        let ops = |cell: &Cell| cell.ops().map(written).collect();
        self.timetable.rows.iter().map(|row| row.iter().map(ops).collect()).collect()
    }

    /// The result of the search, if one found it: `makespan`, `lower_bound`, `orders` and `like`.
    #[getter]
    fn search<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(Report { progress, like, .. }) = &self.search else {
            return Ok(None);
        };
        let report = PyDict::new(py);
        report.set_item("makespan", progress.makespan)?;
        report.set_item("lower_bound", progress.lower_bound)?;
        report.set_item("orders", progress.n_orders)?;
        report.set_item("like", like)?;
        Ok(Some(report))
    }

    /// Applies passes: recomputation, split backwards and moved activations.
    #[pyo3(signature = (*, recompute="none", hoist=None, split_backward=false, bpipe=false, offload="none",
                        memory_cap=None, **times))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn passes(
        &self,
        py: Python<'_>,
        recompute: &str,
        hoist: Option<&Bound<'_, PyAny>>,
        split_backward: bool,
        bpipe: bool,
        offload: &str,
        memory_cap: Option<f64>,
        times: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Timetable> {
        let others = ["recompute", "hoist", "split_backward", "bpipe", "offload", "memory_cap"];
        let times = self::times(times, &others)?;
        let hoist = hoist.map(|hoist| hoist.str()?.extract::<String>()).transpose()?;
        run(py, || {
            let passes = Passes {
                recompute: recompute.parse::<Recompute>()?,
                hoist: hoist.as_deref().unwrap_or("0").parse::<Hoist>()?,
                split_backward,
                moves: Moves::of(bpipe, offload.parse()?),
                ..Passes::default()
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
        tied: Option<Vec<Vec<Whole>>>,
        barrier: bool,
        memory_cap: Option<f64>,
        times: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Program> {
        let times = self::times(times, &["sync", "tied", "barrier", "memory_cap"])?;
        run(py, move || {
            let stage = |stage: Whole| match u16::try_from(stage.0) {
                Ok(stage) => Ok(StageId(stage)),
                Err(_) => Err(Failure::Invalid(format!(
                    "a tied tensor cannot live on stage {stage}, which does not exist"
                ))),
            };
            let stages = |set: Vec<Whole>| set.into_iter().map(stage).collect::<Result<_, _>>();
            let how = Lowering {
                sync: sync.parse()?,
                barrier,
                tied: tied.unwrap_or_default().into_iter().map(stages).collect::<Result<_, _>>()?,
                max_peak: memory_cap.map(|cap| real("memory_cap", cap, 1e6)).transpose()?,
                whole_stages: 0,
            };
            let costs = times.costs(&self.timetable)?;
            let program = lower_at(&self.timetable, &how, &costs)?;
            Ok(Program::new(program, &self.timetable, how, times))
        })
    }

    /// The timetable as JSON, which `parse` and the command read.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(to_json(&self.timetable)))
    }

    /// One pipe as CSV that PyTorch's pipelining runtime loads (`compute_only`).
    #[pyo3(signature = (pipe=None))]
    fn to_csv(&self, py: Python<'_>, pipe: Option<Whole>) -> PyResult<String> {
        run(py, || {
            let pipes: BTreeSet<PipeId> = self.timetable.ops().map(|op| op.pipe).collect();
            let n_pipes = self.timetable.placement.n_pipes();
            let pipe = pipe.map(|pipe| id("pipe", pipe, n_pipes).map(PipeId)).transpose()?;
            let one = pipe.or(pipes.first().copied().filter(|_| pipes.len() == 1));
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
        Ok((py.import("chimera_pipeline")?.getattr("parse")?, (self.to_json(py)?,)))
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

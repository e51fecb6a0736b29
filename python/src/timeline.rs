//! Timelines: simulated or measured times of all events, with figures and drawings.

use std::sync::Arc;

use chimera_schedule::analyze::{Event, Timeline as Times, Work, windows};
use chimera_schedule::program::Program;
use chimera_schedule::render::{chrome, html, svg, text};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::run;
use crate::notation::written;

/// Start and end of every piece of work of a step.
#[pyclass(frozen, module = "chimera_pipeline")]
pub(crate) struct Timeline {
    pub(crate) program: Arc<Program>,
    pub(crate) timeline: Times,
    pub(crate) title: String,
    pub(crate) unit: &'static str,
}

#[pymethods]
impl Timeline {
    /// The time of the step.
    #[getter]
    fn makespan(&self) -> f64 {
        self.timeline.makespan()
    }

    /// The share of time in which workers idle.
    #[getter]
    fn bubble_ratio(&self) -> f64 {
        self.timeline.bubble_ratio()
    }

    /// The time for which each worker computes.
    #[getter]
    fn busy(&self) -> Vec<f64> {
        self.timeline.busy()
    }

    /// For each worker the times in which it computes nothing, as start, end, and free activation
    /// memory: the micro-batches by which it holds fewer activations than at its peak.
    #[getter]
    fn windows(&self) -> Vec<Vec<(f64, f64, f64)>> {
        let windows = windows(&self.program, &self.timeline).into_iter();
        windows.map(|of| of.iter().map(|w| (w.from, w.to, w.free)).collect()).collect()
    }

    /// The work that takes time 1.
    #[getter]
    fn unit(&self) -> &str {
        self.unit
    }

    /// All events, as dictionaries: `worker`, `start`, `end`, and `ops`, `reduce`, `step` or `move`.
    #[getter]
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let event = |event: &Event| {
            let entry = PyDict::new(py);
            entry.set_item("worker", event.worker.0)?;
            entry.set_item("start", event.start)?;
            entry.set_item("end", event.end)?;
            match event.work {
                Work::Cell(cell) => {
                    entry.set_item("ops", cell.ops().map(written).collect::<Vec<_>>())?;
                }
                Work::Reduce(bucket) => entry.set_item("reduce", bucket.0)?,
                Work::Step(bucket) => entry.set_item("step", bucket.0)?,
                Work::Move(op) => entry.set_item("move", written(op))?,
            }
            Ok(entry)
        };
        self.timeline.events.iter().map(event).collect()
    }

    /// The drawing as text.
    pub(crate) fn text(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(text::timeline(&self.timeline)))
    }

    /// The drawing as SVG.
    pub(crate) fn svg(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(svg::step(&self.program, &self.timeline, &self.title)))
    }

    /// A page with the drawing and the figures.
    pub(crate) fn html(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(html::page(&self.program, &self.timeline, &self.title)))
    }

    /// A trace for ui.perfetto.dev or chrome://tracing.
    fn chrome(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(chrome::trace(&self.program, &self.timeline)))
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py)
    }

    fn __repr__(&self) -> String {
        format!("<Timeline {}, makespan {}>", self.title, self.timeline.makespan())
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        self.svg(py)
    }
}

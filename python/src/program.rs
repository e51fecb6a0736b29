//! Proven programs: timetables with messages, gradient reductions and updates.

use std::sync::Arc;

use chimera_schedule::analyze::{
    Event, Network, NetworkCosts, Timeline as Measured, Work, peak_kept, simulate,
};
use chimera_schedule::costs::{GivenTimes, StageCosts};
use chimera_schedule::ids::{StageId, WorkerId};
use chimera_schedule::interchange::{
    program_to_json, rows_in_one_order_to_json, to_comms_csv, to_json,
};
use chimera_schedule::lower::{Lowering, Sync as SyncPolicy};
use chimera_schedule::op::{Cell, Lane};
use chimera_schedule::program as core;
use chimera_schedule::program::Instr;
use chimera_schedule::timetable::Timetable;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{Failure, run};
use crate::notation::title;
use crate::options::{Numbers, Times, Whole, id, link, number, times, whole};
use crate::timeline::Timeline;

/// The instructions of every worker in a step, proven: no deadlock, and no value used before it
/// exists.
#[pyclass(frozen, module = "chimera_pipeline")]
pub(crate) struct Program {
    program: Arc<core::Program>,
    timetable: Timetable,
    /// The options of lowering.
    how: Lowering,
    times: Times,
}

impl Program {
    pub(crate) fn new(
        program: core::Program,
        timetable: &Timetable,
        how: Lowering,
        times: Times,
    ) -> Program {
        Program { program: Arc::new(program), timetable: timetable.clone(), how, times }
    }

    /// Returns the keyword arguments of `lower` that made it.
    fn lowered_by<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Lowering { sync, barrier, ref tied, max_peak, .. } = self.how;
        let said = self.times.to_dict(py)?;
        let name =
            SyncPolicy::ALL.iter().find(|(_, policy)| *policy == sync).map(|(name, _)| *name);
        let tied = tied.iter().map(|set| set.iter().map(|stage| stage.0).collect());
        said.set_item("sync", name)?;
        said.set_item("barrier", barrier)?;
        said.set_item("tied", tied.collect::<Vec<Vec<u16>>>())?;
        said.set_item("memory_cap", max_peak)?;
        Ok(said)
    }

    fn drawn(&self, timeline: Measured, unit: &'static str) -> Timeline {
        Timeline {
            program: Arc::clone(&self.program),
            timeline,
            title: title(&self.timetable),
            unit,
        }
    }
}

/// The function that a pickle calls, and its arguments: the timetable as JSON, keyword arguments of
/// `lower`, and the fingerprint.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Bound<'py, PyDict>, String));

/// Parses `text` with Python's JSON.
fn loaded<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}

fn instructions<'py>(rows: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    rows.try_iter()?.map(|row| row?.get_item("instructions")).collect()
}

#[pymethods]
impl Program {
    /// Name of the schedule.
    #[getter]
    fn schedule(&self) -> &str {
        self.program.schedule()
    }

    /// Workers of the pipeline group, D.
    #[getter]
    fn depth(&self) -> usize {
        self.program.placement().n_workers()
    }

    /// Number of stages.
    #[getter]
    fn stages(&self) -> usize {
        self.program.placement().n_stages()
    }

    /// Number of pipes.
    #[getter]
    fn pipes(&self) -> usize {
        self.program.placement().n_pipes()
    }

    /// Micro-batches of a step, times the steps of an asynchronous window.
    #[getter]
    fn micro_batches(&self) -> u32 {
        self.program.n_micro_batches()
    }

    /// The stages that a worker holds.
    fn stages_of(&self, worker: Whole) -> PyResult<Vec<u16>> {
        let worker = WorkerId(id("worker", worker, self.depth())?);
        Ok(self.program.placement().stages_of(worker).iter().map(|stage| stage.0).collect())
    }

    /// The workers that hold a stage, in the order of their pipes.
    fn replicas(&self, stage: Whole) -> PyResult<Vec<u16>> {
        let stage = StageId(id("stage", stage, self.stages())?);
        let replicas = self.program.placement().replicas(stage);
        Ok(replicas.iter().map(|worker| worker.0).collect())
    }

    /// The fingerprint of the program. It is equal for equal programs, in Python, in Rust and from
    /// the command.
    #[getter]
    fn fingerprint(&self) -> String {
        self.program.fingerprint()
    }

    /// The number of messages that each channel must hold.
    #[getter]
    fn channel_bound(&self) -> u32 {
        self.program.channel_bound()
    }

    /// The most micro-batches whose activations each worker holds at once.
    #[getter]
    fn peaks(&self) -> Vec<f64> {
        self.program.peaks().to_vec()
    }

    /// The most checkpointed inputs that each worker keeps for recomputation, in micro-batches.
    #[getter]
    fn peak_kept(&self, py: Python<'_>) -> PyResult<Vec<f64>> {
        run(py, || Ok(peak_kept(&self.program)))
    }

    /// The most versions of the weights that each worker holds.
    #[getter]
    fn weight_versions(&self) -> Vec<u32> {
        self.program.weight_versions().to_vec()
    }

    /// Number of messages.
    #[getter]
    fn messages(&self) -> usize {
        self.program.n_messages()
    }

    /// The instructions of each worker, as in the JSON.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        instructions(&self.to_dict(py)?.get_item("rows")?)
    }

    /// The rows for transports without tags, such as NCCL: messages and reductions stand at their
    /// place in the order that all ranks share. A receive is posted there, and waited for before the
    /// cell that eats its token.
    fn one_order_rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let text = run(py, || Ok(rows_in_one_order_to_json(&self.program)?))?;
        instructions(&loaded(py, &text)?)
    }

    /// The program as JSON, format 0.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(program_to_json(&self.program)))
    }

    /// The program as CSV that PyTorch's pipelining runtime executes (`compute_comms`). Stage `s` of pipe `p` is virtual stage
    /// `p * stages + s`.
    fn to_csv(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(to_comms_csv(&self.program)?))
    }

    /// The program as the dictionary that its JSON is.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        loaded(py, &self.to_json(py)?)
    }

    /// Simulates the program: the times of all events, without running anything.
    #[pyo3(signature = (*, width=1, ranks_per_node=None, inside=None, between=None, activation_bytes=None,
                        gradient_bytes=None, **times))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments")]
    pub(crate) fn simulate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] width: i64,
        ranks_per_node: Option<Whole>,
        inside: Option<(f64, f64)>,
        between: Option<(f64, f64)>,
        activation_bytes: Option<Numbers>,
        gradient_bytes: Option<Numbers>,
        times: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Timeline> {
        let times = match self::times(
            times,
            &["width", "ranks_per_node", "inside", "between", "activation_bytes", "gradient_bytes"],
        )? {
            none if none.given == GivenTimes::default() => self.times.clone(),
            given => given,
        };
        run(py, || {
            let costs = times.costs(&self.timetable)?;
            let inside = link(inside)?.unwrap_or_default();
            let depth = self.depth();
            let width = whole("width", width, 65_535)? as usize;
            let ranks =
                ranks_per_node.map(|n| whole("ranks_per_node", n.0, u32::MAX)).transpose()?;
            let network = Network {
                width,
                ranks_per_node: ranks.map_or(width * depth, |n| n as usize),
                inside,
                between: link(between)?.unwrap_or(inside),
                ..Network::free(depth)
            };
            let costs = self.on_network(costs, network, activation_bytes, gradient_bytes)?;
            Ok(self.drawn(simulate(&self.program, &costs), times.given.unit()))
        })
    }

    /// A timeline of a measured step: events `(worker, instruction, start, end)`, each of a row's instruction by its
    /// index, in seconds. Messages and waits are left out.
    fn timeline(
        &self,
        py: Python<'_>,
        events: Vec<(Whole, Whole, f64, f64)>,
    ) -> PyResult<Timeline> {
        run(py, || {
            let mut measured = Vec::with_capacity(events.len());
            for (worker, index, start, end) in events {
                let row = usize::try_from(worker.0).ok().and_then(|w| self.program.rows().get(w));
                let instr = row.and_then(|row| row.get(usize::try_from(index.0).ok()?));
                let instr = instr.ok_or_else(|| {
                    Failure::Invalid(format!("worker {worker} has no instruction {index}"))
                })?;
                if !(start >= 0.0 && end >= start && end.is_finite()) {
                    let text = format!(
                        "worker {worker}, instruction {index}: {start} to {end} is not a time"
                    );
                    return Err(Failure::Invalid(text));
                }
                let work = match *instr {
                    Instr::Run(Cell::One(op)) if op.kind.lane() == Lane::Moves => Work::Move(op),
                    Instr::Run(cell) => Work::Cell(cell),
                    instr => {
                        let updated = instr.updated().map(Work::Step);
                        let Some(work) = updated.or(instr.reduced().map(Work::Reduce)) else {
                            continue;
                        };
                        work
                    }
                };
                let worker = WorkerId(worker.0 as u16); // there are no more
                measured.push(Event { worker, work, start, end, after: None });
            }
            measured.sort_by(|a, b| a.start.total_cmp(&b.start));
            let timeline = Measured { n_workers: self.depth(), events: measured };
            Ok(self.drawn(timeline, "a second"))
        })
    }

    /// A pickle has the timetable as JSON, and the options of `lower`: only the proof makes a
    /// program.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let json = run(py, || Ok(to_json(&self.timetable)))?;
        let lowered = py.import("chimera_pipeline._pickled")?.getattr("lowered")?;
        Ok((lowered, (json, self.lowered_by(py)?, self.fingerprint())))
    }

    fn __repr__(&self) -> String {
        format!("<Program {}, {} messages, proven>", title(&self.timetable), self.messages())
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        self.simulate(py, 1, None, None, None, None, None, None)?.svg(py)
    }
}

impl Program {
    fn on_network(
        &self,
        compute: StageCosts,
        network: Network,
        activation_bytes: Option<Numbers>,
        gradient_bytes: Option<Numbers>,
    ) -> Result<NetworkCosts<StageCosts>, Failure> {
        let (depth, n_stages) = (self.depth(), self.stages());
        if !network.fits(depth) {
            return Err(Failure::Invalid(format!(
                "--ranks-per-node {}: groups of {depth} workers would be placed differently on the \
                 nodes; choose a divisor or a multiple of {depth}",
                network.ranks_per_node
            )));
        }
        let why = format!("{} has {n_stages} stages", self.schedule());
        let bytes = |option, given: Option<Numbers>| {
            let list = given.unwrap_or(Numbers::One(0.0)).per_stage()?;
            list.check(option, n_stages, &why)?;
            Ok::<_, Failure>((0..n_stages).map(|stage| list.at(stage)).collect::<Vec<_>>())
        };
        let activations = bytes("--activation-bytes", activation_bytes)?;
        let gradients: Vec<_> = bytes("--gradient-bytes", gradient_bytes)?
            .into_iter()
            .map(|bytes| vec![bytes])
            .collect();
        let (placement, units) = (self.program.placement(), self.program.units_per_micro());
        let messages = NetworkCosts::of_messages(compute, network, placement, units, &activations);
        Ok(messages.with_sums(&self.program, &gradients, &[]))
    }
}

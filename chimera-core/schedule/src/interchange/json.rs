//! A timetable as JSON: what `schedule show --format json` writes and `schedule check` reads.
//!
//! ```json
//! {
//!   "schedule": "gpipe", "depth": 1, "stages": 1, "pipes": 1, "micro_batches": 1,
//!   "placement": [[0]],
//!   "rows": [
//!     [{"kind":"F","pipe":0,"stage":0,"micro_batches":[0]}, {"kind":"B", …}]
//!   ]
//! }
//! ```
//!
//! `placement` has the worker of each stage for each pipe. A cell is an op or `{"pair":[op, op]}`.
//! If micro-batches are cut in two, there is also `"unit": 0.5`, and ids count halves; `"slices":
//! true` means that the parts are slices of sequences, not of samples. `"selective": [[0, 1]]`
//! lists, by pipe and stage, what is recomputed selectively, and with `"on_demand": true`
//! recomputations wait for the gradients that their backwards receive. `"frozen": [0]` lists stages
//! without trained weights, which have only the passes that other stages need of them. An asynchronous timetable
//! has `"update": "stash"` or `"double-buffer"` and the `"steps"` of its window; `micro_batches`
//! counts the micro-batches of all of them. Stages that are not a chain have `"graph": {"sources":
//! [0], "edges": [[0, 1], [0, 2], [1, 2]], "losses": [2]}`: the stages that begin with the samples,
//! the edges, and the stages with a loss. If ranks were lost, `"counted_stages": 2` is the number
//! of stages of a pipe with saved activations that count as one micro-batch.
//!
//! A file may come from anyone. No number in it decides how much is allocated, and all ids in the
//! result of [`from_json`] are in range. The checker decides whether it is a sound schedule.

use std::fmt::Write;

use super::form::{Edges, File, MAX_COUNT, Object, Rule, Two};
use crate::effects::Rules;
use crate::ir::graph::StageGraph;
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

/// Longest file that is read, in bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Longest name of a schedule, in bytes.
pub const MAX_NAME: usize = 256;
/// Most units that a micro-batch is cut into.
const MAX_UNITS: u32 = 1 << 16;

/// The reason that a file is not a timetable.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read at all.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason, from the system.
        reason: String,
    },
    /// The file is longer than [`MAX_BYTES`].
    #[error("the file has more than {} MiB, the most that is read", MAX_BYTES >> 20)]
    TooLong,
    /// The text does not have the form of a timetable; the message has the place.
    #[error("{0}")]
    Form(String),
    /// A value that contradicts another one or is out of its range.
    #[error("{path}: {reason}")]
    Value {
        /// The place, such as `rows[2][5]` or `row 3 (rank 2), column 6`.
        path: String,
        /// The mistake.
        reason: String,
    },
}

/// The timetable as JSON, one row of cells per line, so that two of them can be compared by line.
pub fn to_json(timetable: &Timetable) -> String {
    let placement = &timetable.placement;
    let mut out = String::from("{\n");
    let name = serde_json::Value::from(timetable.schedule.as_str());
    let counts = [
        ("depth", placement.n_workers()),
        ("stages", placement.n_stages()),
        ("pipes", placement.n_pipes()),
        ("micro_batches", timetable.n_micro_batches as usize),
    ];
    let _ = writeln!(out, r#"  "schedule": {name},"#);
    for (key, count) in counts {
        let _ = writeln!(out, r#"  "{key}": {count},"#);
    }
    if timetable.units_per_micro > 1 {
        let unit = 1.0 / f64::from(timetable.units_per_micro);
        let _ = writeln!(out, r#"  "unit": {unit},"#);
    }
    if timetable.is_sliced {
        let _ = writeln!(out, r#"  "slices": true,"#);
    }
    if !timetable.selective.is_empty() {
        let stage = |(pipe, stage): &(PipeId, StageId)| format!("[{}, {}]", pipe.0, stage.0);
        let _ = writeln!(out, r#"  "selective": {},"#, list(timetable.selective.iter().map(stage)));
    }
    if timetable.on_demand {
        let _ = writeln!(out, r#"  "on_demand": true,"#);
    }
    if !timetable.frozen.is_empty() {
        let _ = writeln!(out, r#"  "frozen": {},"#, ids(&timetable.frozen));
    }
    if timetable.update != Update::Flush {
        let rule = Rule::from(timetable.update);
        let n_steps = timetable.update.n_steps();
        let _ = writeln!(out, "  \"update\": {rule},\n  \"steps\": {n_steps},");
    }
    let graph = graph(&timetable.graph);
    if !graph.is_empty() {
        let _ = writeln!(out, r#"  "graph": {graph},"#);
    }
    if let Some(counted) = placement.counted_stages() {
        let _ = writeln!(out, r#"  "counted_stages": {counted},"#);
    }
    let workers = |pipe: &Vec<WorkerId>| list(pipe.iter().map(|worker| worker.0.to_string()));
    let placement = lines(placement.pipes().iter().map(workers));
    let rows = lines(timetable.rows.iter().map(|row| list(row.iter().map(cell))));
    let _ = writeln!(out, "  \"placement\": {placement},\n  \"rows\": {rows}\n}}");
    out
}

/// A list of stages.
pub(super) fn ids(stages: &[StageId]) -> String {
    list(stages.iter().map(|stage| stage.0.to_string()))
}

/// The edges of stages that are not a chain; empty for a chain.
pub(super) fn graph(graph: &StageGraph) -> String {
    if graph.is_chain() {
        return String::new();
    }
    let number = |stage: StageId| stage.0.to_string();
    let (sources, losses) = (list(graph.sources().map(number)), list(graph.losses().map(number)));
    let edges = list(graph.edges().map(|(from, to)| format!("[{}, {}]", from.0, to.0)));
    format!(r#"{{"sources": {sources}, "edges": {edges}, "losses": {losses}}}"#)
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::One(a) => op(a),
        Cell::Pair(a, b) => format!(r#"{{"pair":[{},{}]}}"#, op(a), op(b)),
    }
}

fn op(op: &Op) -> String {
    let ids: Vec<String> = op.span.units().map(|id| id.to_string()).collect();
    format!(
        r#"{{"kind":"{}","pipe":{},"stage":{},"micro_batches":[{}]}}"#,
        op.kind.letter(),
        op.pipe.0,
        op.stage.0,
        ids.join(",")
    )
}

pub(super) fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

pub(super) fn lines(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| format!("    {item}")).collect();
    format!("[\n{}\n  ]", items.join(",\n"))
}

/// The timetable that `bytes` hold: as many rows as workers, and every id below its count.
///
/// # Errors
/// If the file is too long, is not JSON of this form, or contradicts itself.
pub fn from_json(bytes: &[u8]) -> Result<Timetable, ReadError> {
    if bytes.len() > MAX_BYTES {
        return Err(ReadError::TooLong);
    }
    let Object(file): Object<File> =
        serde_json::from_slice(bytes).map_err(|e| ReadError::Form(printable(&e)))?;
    file.check_counts()?;
    let units_per_micro = file.units_per_micro()?;
    let n_units = file.check_units(units_per_micro)?;
    file.check_cells(n_units)?;
    let update = file.update()?;
    let graph = file.graph()?;
    let placement = Placement::new(file.depth, file.placement)
        .ok_or_else(|| invalid("placement", "not every stage of every pipe has a worker"))?;
    let placement = match file.counted_stages {
        Some(n_stages) => placement.counting(n_stages),
        None => placement,
    };
    let timetable = Timetable {
        schedule: file.schedule,
        placement,
        graph,
        n_micro_batches: file.micro_batches,
        units_per_micro,
        is_sliced: file.slices,
        update,
        rows: file.rows,
        selective: file.selective.iter().map(|Two(pipe, stage)| (*pipe, *stage)).collect(),
        on_demand: file.on_demand,
        frozen: file.frozen,
    };
    let rules = Rules::of(&timetable);
    let is_whole = |(pipe, stage): &(PipeId, StageId)| !rules.is_recomputed(*pipe, *stage);
    match timetable.selective.iter().position(is_whole) {
        Some(at) => Err(invalid(format!("selective[{at}]"), "nothing of this stage is recomputed")),
        None => Ok(timetable),
    }
}

/// Returns true if a character does more on a terminal than show itself: it controls the terminal,
/// or changes the direction of text.
pub fn is_unprintable(character: char) -> bool {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || turns
}

/// The message without content of the file that could confuse or fill a terminal.
fn printable(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(place.as_str()).unwrap_or(&message);
    let shown = message.chars().take(300);
    let shown = shown.map(|c| if is_unprintable(c) { '\u{fffd}' } else { c });
    shown.collect::<String>() + &place
}

fn invalid(path: impl Into<String>, reason: impl Into<String>) -> ReadError {
    ReadError::Value { path: path.into(), reason: reason.into() }
}

impl File {
    /// Checks the counts at the top against the actual arrays, and against their limits.
    fn check_counts(&self) -> Result<(), ReadError> {
        if self.schedule.len() > MAX_NAME || self.schedule.chars().any(is_unprintable) {
            let reason = format!(
                "has more than {MAX_NAME} bytes or control characters, such as those that change \
                 the direction of text"
            );
            return Err(invalid("schedule", reason));
        }
        for (path, count) in [("depth", self.depth), ("stages", self.stages), ("pipes", self.pipes)]
        {
            if !(1..=MAX_COUNT).contains(&count) {
                return Err(invalid(path, format!("{count} is not in 1 to {MAX_COUNT}")));
            }
        }
        same("rows", self.rows.len(), self.depth, "depth")?;
        same("placement", self.placement.len(), self.pipes, "pipes")?;
        for (pipe, workers) in self.placement.iter().enumerate() {
            same(&format!("placement[{pipe}]"), workers.len(), self.stages, "stages")?;
            for (stage, worker) in workers.iter().enumerate() {
                let path = || format!("placement[{pipe}][{stage}]");
                below(path, "worker", worker.index(), self.depth, "depth")?;
            }
        }
        if let Some(counted) = self.counted_stages.filter(|counted| *counted > self.stages) {
            let reason = format!("{counted} is not in 1 to {} (stages)", self.stages);
            return Err(invalid("counted_stages", reason));
        }
        for (at, Two(pipe, stage)) in self.selective.iter().enumerate() {
            let path = || format!("selective[{at}]");
            below(path, "pipe", pipe.index(), self.pipes, "pipes")?;
            below(path, "stage", stage.index(), self.stages, "stages")?;
            if at > 0 && self.selective[at - 1] >= Two(*pipe, *stage) {
                return Err(invalid(path(), "does not follow the one before"));
            }
        }
        for (at, stage) in self.frozen.iter().enumerate() {
            let path = || format!("frozen[{at}]");
            below(path, "stage", stage.index(), self.stages, "stages")?;
            if at > 0 && self.frozen[at - 1] >= *stage {
                return Err(invalid(path(), "does not follow the one before"));
            }
        }
        Ok(())
    }

    fn units_per_micro(&self) -> Result<u32, ReadError> {
        let units = (1.0 / self.unit).round();
        let is_in_range = (1.0..=f64::from(MAX_UNITS)).contains(&units);
        if is_in_range && (units * self.unit - 1.0).abs() < 1e-9 {
            Ok(units as u32)
        } else {
            let unit = self.unit;
            let reason = format!("{unit} is not 1, 0.5 or another 1/k, with k up to {MAX_UNITS}");
            Err(invalid("unit", reason))
        }
    }

    /// The rule of updates, if its window consists of whole steps.
    fn update(&self) -> Result<Update, ReadError> {
        let n_steps = match (self.update, self.steps) {
            (Rule::Flush, None) => return Ok(Update::Flush),
            (Rule::Flush, Some(_)) => {
                return Err(invalid("steps", "a schedule with a flush has one step"));
            }
            (_, None) => return Err(invalid("steps", "is missing, and `update` needs it")),
            (_, Some(n_steps)) => n_steps,
        };
        if n_steps == 0 || !self.micro_batches.is_multiple_of(n_steps) {
            let reason = format!("{n_steps} does not divide micro_batches, {}", self.micro_batches);
            return Err(invalid("steps", reason));
        }
        Ok(match self.update {
            Rule::EachStep => Update::EachStep { n_steps },
            Rule::DoubleBuffer => Update::DoubleBuffer { n_steps },
            _ => Update::Stash { n_steps },
        })
    }

    /// The given graph of stages, or a chain.
    fn graph(&self) -> Result<StageGraph, ReadError> {
        let Some(Object(Edges { sources, edges, losses })) = &self.graph else {
            return Ok(StageGraph::chain(self.stages));
        };
        let ids = |stages: &[StageId]| stages.iter().map(|stage| stage.0).collect::<Vec<_>>();
        let edges: Vec<_> = edges.iter().map(|Two(from, to)| (from.0, to.0)).collect();
        StageGraph::new(self.stages, &ids(sources), &edges, &ids(losses))
            .map_err(|e| invalid("graph", e.to_string()))
    }

    /// Checks the number of units, which must not exceed what the ops of the rows can cover.
    fn check_units(&self, units_per_micro: u32) -> Result<u32, ReadError> {
        let n_units = u64::from(self.micro_batches) * u64::from(units_per_micro);
        let needed = n_units.saturating_mul(self.stages as u64);
        let ops = self.rows.iter().flatten().flat_map(|cell| cell.ops());
        let present = ops.map(|op| u64::from(op.span.len)).sum();
        if n_units == 0 {
            return Err(invalid("micro_batches", "0 is less than 1"));
        }
        match u32::try_from(n_units) {
            Ok(n_units) if needed <= present => Ok(n_units),
            _ => {
                let reason = format!(
                    "{} at {} stages are more than the rows have ops for",
                    self.micro_batches, self.stages
                );
                Err(invalid("micro_batches", reason))
            }
        }
    }

    fn check_cells(&self, n_units: u32) -> Result<(), ReadError> {
        for (worker, row) in self.rows.iter().enumerate() {
            for (at, cell) in row.iter().enumerate() {
                let path = || format!("rows[{worker}][{at}]");
                for op in cell.ops() {
                    below(path, "pipe", op.pipe.index(), self.pipes, "pipes")?;
                    below(path, "stage", op.stage.index(), self.stages, "stages")?;
                    let last = u64::from(op.span.start) + u64::from(op.span.len) - 1;
                    if last >= u64::from(n_units) {
                        let reason = format!("micro-batch {last} is not below {n_units}");
                        return Err(invalid(path(), reason));
                    }
                }
            }
        }
        Ok(())
    }
}

fn same(path: &str, len: usize, count: usize, of: &str) -> Result<(), ReadError> {
    if len == count {
        Ok(())
    } else {
        let entries = if len == 1 { "entry" } else { "entries" };
        Err(invalid(path, format!("{len} {entries}, but {of} is {count}")))
    }
}

fn below(
    path: impl Fn() -> String,
    what: &str,
    id: usize,
    count: usize,
    of: &str,
) -> Result<(), ReadError> {
    if id < count {
        Ok(())
    } else {
        Err(invalid(path(), format!("{what} {id} is not below {count} ({of})")))
    }
}

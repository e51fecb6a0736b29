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
//! has `"update": "stash"`, `"double-buffer"`, `"newest"` or `"predicted"` and the `"steps"` of its window; `micro_batches`
//! counts the micro-batches of all of them. Stages that are not a chain have `"graph": {"sources":
//! [0], "edges": [[0, 1], [0, 2], [1, 2]], "losses": [2]}`: the stages that begin with the samples,
//! the edges, and the stages with a loss. Parts of the graph without an edge between them are models,
//! and `"micro_batches_of": [8, 4]` lists how many of the micro-batches each has. If ranks were lost, `"counted_stages": 2` is the number
//! of stages of a pipe with saved activations that count as one micro-batch.
//!
//! A file may come from anyone. No number in it decides how much is allocated, and all ids in the
//! result of [`from_json`] are in range. The checker decides whether it is a sound schedule.

use std::fmt::Write;

use super::form::{File, Object, Rule, Two};
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
    if !timetable.micro_batches_of.is_empty() {
        let counts = list(timetable.micro_batches_of.iter().map(u32::to_string));
        let _ = writeln!(out, r#"  "micro_batches_of": {counts},"#);
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
    let graph = file.graph()?;
    file.check_models(&graph)?;
    let n_units = file.check_units(units_per_micro, &graph)?;
    file.check_cells(n_units)?;
    let update = file.update()?;
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
        micro_batches_of: file.micro_batches_of,
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

/// Returns true if a character does not only show itself on a terminal: it controls the terminal,
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

pub(super) fn invalid(path: impl Into<String>, reason: impl Into<String>) -> ReadError {
    ReadError::Value { path: path.into(), reason: reason.into() }
}

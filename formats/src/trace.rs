//! Reading of traces that `--trace` and `schedule export --format chrome` write: work, waits and memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::files::{text_at_most, text_regular};

/// Longer files are refused before they are read.
const MAX_BYTES: u64 = 1 << 30;
/// The format's units of time in a second.
const MICROSECONDS: f64 = 1e6;
/// The counter of a rank's activation memory.
const MEMORY: &str = "activation memory";

/// One event of the format, with the fields that are read.
#[derive(Deserialize)]
struct Record {
    ph: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    tid: u32,
    #[serde(default)]
    id: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Args,
}

/// The arguments of an event that are read.
#[derive(Deserialize, Default)]
struct Args {
    #[serde(default)]
    ops: Vec<TracedOp>,
    bytes: Option<f64>,
}

/// An op as traces name it.
#[derive(Deserialize, Serialize, Clone, PartialEq, Debug)]
pub struct TracedOp {
    /// Letter of the op's kind: `F`, `B`, …
    pub kind: String,
    pub pipe: u32,
    pub stage: u32,
    /// The micro-batches, or parts of them, such as `0` or `2..4`.
    pub micro_batches: String,
}

/// The events of a trace. The format allows an object that has them among other fields, or just their list.
struct File(Vec<Record>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileObject {
    trace_events: Vec<Record>,
}

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<File, D::Error> {
        deserializer.deserialize_any(FileVisitor)
    }
}

struct FileVisitor;

impl<'de> Visitor<'de> for FileVisitor {
    type Value = File;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<File, A::Error> {
        let file = FileObject::deserialize(MapAccessDeserializer::new(fields))?;
        Ok(File(file.trace_events))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, events: A) -> Result<File, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(events)).map(File)
    }
}

/// A piece of work on a rank, in seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    pub rank: u32,
    /// The kind of work: `forward`, `update`, …
    pub kind: String,
    pub start: f64,
    pub end: f64,
    /// Whether it occupies the worker, unlike reductions, which run in parallel.
    pub is_busy: bool,
    /// The thread of its rank: 0 for compute.
    pub lane: u32,
    /// Name of the slice in the trace.
    pub name: String,
    /// Ops of the slice, if it is compute.
    pub ops: Vec<TracedOp>,
}

/// Bytes of a rank's activation memory from a time on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Held {
    pub rank: u32,
    pub at: f64,
    pub bytes: f64,
}

/// A message between two ranks: it leaves within the slice that makes it, and arrives at the start of another slice.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Arrow {
    pub from: (u32, f64),
    pub to: (u32, f64),
}

/// The work of ranks from the start of a program to its end: a step, or a window of several.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TracedRun {
    /// The name of the run, if it has one.
    pub name: Option<String>,
    pub slices: Vec<Slice>,
    /// The waits of ranks.
    pub waits: Vec<Slice>,
    /// Activation memory of each rank in order of time; empty if the trace counts no bytes.
    pub memory: Vec<Held>,
    pub arrows: Vec<Arrow>,
}

impl TracedRun {
    /// Returns the start of the first slice and the end of the last one.
    pub fn span(&self) -> (f64, f64) {
        let whole = (f64::INFINITY, f64::NEG_INFINITY);
        self.slices.iter().fold(whole, |(from, to), s| (from.min(s.start), to.max(s.end)))
    }

    /// Parses the number of steps from the name of the run: `step 5`, or `steps 5 to 7` of a window.
    pub fn n_steps(&self) -> Option<u64> {
        let name = self.name.as_deref()?;
        if let Some(step) = name.strip_prefix("step ") {
            return step.parse::<u64>().is_ok().then_some(1);
        }
        let (from, to) = name.strip_prefix("steps ")?.split_once(" to ")?;
        let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
        to.checked_sub(from)?.checked_add(1)
    }
}

/// Reads all runs of a trace, in order of their start.
pub fn read(path: &Path) -> anyhow::Result<Vec<TracedRun>> {
    runs_in(path, text_at_most(path, MAX_BYTES))
}

/// Reads all runs of a trace that was not named on the command line. It must be a regular file: a
/// pipe would block for ever.
pub fn read_regular(path: &Path) -> anyhow::Result<Vec<TracedRun>> {
    runs_in(path, text_regular(path, MAX_BYTES))
}

fn runs_in(path: &Path, text: io::Result<Option<String>>) -> anyhow::Result<Vec<TracedRun>> {
    let text = text
        .with_context(|| format!("cannot read {}", path.display()))?
        .with_context(|| format!("{} is longer than {MAX_BYTES} bytes", path.display()))?;
    runs(&text).with_context(|| {
        format!(
            "{} is not a trace: write one with `train --trace`, `simulate --trace` or `schedule \
             export --format chrome`",
            path.display()
        )
    })
}

/// Returns the runs in the text of a trace. Each rank's part of a run lies within a slice of the
/// category `step`. A simulated step has no such slice, and is one run.
fn runs(text: &str) -> anyhow::Result<Vec<TracedRun>> {
    let File(trace_events) = serde_json::from_str(text)?;
    let is_sound = |r: &Record| r.ts.is_finite() && r.dur.is_finite() && r.dur >= 0.0;
    ensure!(trace_events.iter().all(is_sound), "a time in it is not a number, or is negative");
    let time = |ts: f64| ts / MICROSECONDS;
    // For each rank the names of its runs and their ends, by start.
    let mut steps: BTreeMap<u32, Vec<(f64, f64, &str)>> = BTreeMap::new();
    for r in trace_events.iter().filter(|r| r.ph == "X" && r.cat == "step") {
        steps.entry(r.pid).or_default().push((time(r.ts), time(r.ts + r.dur), &r.name));
    }
    let name_at = |rank: u32, at: f64| {
        let mut mine = steps.get(&rank).into_iter().flatten();
        mine.find(|(from, to, _)| (*from..=*to).contains(&at)).map(|(.., name)| *name)
    };
    let mut runs: BTreeMap<Option<&str>, TracedRun> = BTreeMap::new();
    // Kernels are parts of ops.
    let is_of_a_run =
        |r: &&Record| r.ph == "X" && !matches!(&*r.cat, "step" | "recovery" | "kernel");
    for r in trace_events.iter().filter(is_of_a_run) {
        let run = runs.entry(name_at(r.pid, time(r.ts + r.dur / 2.0))).or_default();
        let is_wait = r.cat == "wait";
        let slices = if is_wait { &mut run.waits } else { &mut run.slices };
        slices.push(Slice {
            rank: r.pid,
            kind: r.cat.clone(),
            start: time(r.ts),
            end: time(r.ts + r.dur),
            is_busy: r.tid == 0 && !is_wait,
            lane: r.tid,
            name: r.name.clone(),
            ops: r.args.ops.clone(),
        });
    }
    runs.retain(|_, run| !run.slices.is_empty());
    for held in counters(&trace_events) {
        if let Some(run) = runs.get_mut(&name_at(held.rank, held.at)) {
            run.memory.push(held);
        }
    }
    let arrives = trace_events.iter().filter(|r| r.ph == "f" && r.cat == "message");
    let arrives: BTreeMap<u64, &Record> = arrives.map(|r| (r.id, r)).collect();
    for leaves in trace_events.iter().filter(|r| r.ph == "s" && r.cat == "message") {
        let Some(arrives) = arrives.get(&leaves.id) else { continue };
        let arrow =
            Arrow { from: (leaves.pid, time(leaves.ts)), to: (arrives.pid, time(arrives.ts)) };
        if let Some(run) = runs.get_mut(&name_at(leaves.pid, arrow.from.1)) {
            run.arrows.push(arrow);
        }
    }
    ensure!(!runs.is_empty(), "no work is in it");
    let named =
        runs.into_iter().map(|(name, run)| TracedRun { name: name.map(str::to_string), ..run });
    let mut runs: Vec<TracedRun> = named.collect();
    runs.sort_by(|a, b| a.span().0.total_cmp(&b.span().0));
    Ok(runs)
}

/// Returns the counters of activation memory among the events, by rank and time.
fn counters(events: &[Record]) -> Vec<Held> {
    let counters = events.iter().filter(|r| r.ph == "C" && r.name == MEMORY);
    let held =
        |r: &Record| Some(Held { rank: r.pid, at: r.ts / MICROSECONDS, bytes: r.args.bytes? });
    let mut held: Vec<Held> = counters.filter_map(held).collect();
    held.sort_by(|a, b| a.rank.cmp(&b.rank).then(a.at.total_cmp(&b.at)));
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_belong_to_the_step_around_them() {
        let text = r#"{"traceEvents":[
            {"ph":"M","name":"process_name","pid":0},
            {"ph":"X","name":"step 1","cat":"step","pid":0,"tid":0,"ts":5e6,"dur":2e6},
            {"ph":"X","name":"step 0","cat":"step","pid":0,"tid":0,"ts":0,"dur":2e6},
            {"ph":"X","name":"F0","cat":"forward","pid":0,"tid":0,"ts":5e6,"dur":1e6},
            {"ph":"X","name":"F0","cat":"forward","pid":0,"tid":0,"ts":0,"dur":1e6},
            {"ph":"X","name":"gelu","cat":"kernel","pid":0,"tid":10000,"ts":1e5,"dur":1e5},
            {"ph":"X","name":"wait","cat":"wait","pid":0,"tid":0,"ts":1e6,"dur":1e6},
            {"ph":"C","name":"activation memory","pid":0,"ts":5.5e6,"args":{"bytes":7.0}},
            {"ph":"C","name":"activation memory","pid":0,"ts":5e6,"args":{"bytes":0.0}},
            {"ph":"C","name":"micro-batches in flight","pid":0,"ts":5e6,"args":{"micro-batches":1.0}},
            {"ph":"s","id":3,"cat":"message","pid":0,"ts":0.9e6},
            {"ph":"f","id":3,"cat":"message","pid":1,"ts":1e6}]}"#;
        let runs = runs(text).unwrap();
        let names: Vec<_> = runs.iter().map(|run| run.name.as_deref()).collect();
        assert_eq!(names, [Some("step 0"), Some("step 1")]);
        assert_eq!((runs[0].span(), runs[1].span()), ((0.0, 1.0), (5.0, 6.0)));
        assert_eq!(runs[0].slices.len(), 1, "a kernel is a part of an op");
        assert_eq!(runs[0].arrows, [Arrow { from: (0, 0.9), to: (1, 1.0) }]);
        assert!(runs[1].arrows.is_empty());
        let held: Vec<_> = runs[1].memory.iter().map(|held| (held.at, held.bytes)).collect();
        assert_eq!(held, [(5.0, 0.0), (5.5, 7.0)]);
        assert_eq!((runs[0].waits.len(), runs[0].waits[0].name.as_str()), (1, "wait"));
    }

    #[test]
    fn a_run_tells_how_many_steps_it_has() {
        for (name, n_steps) in [
            (Some("step 5"), Some(1)),
            (Some("steps 5 to 7"), Some(3)),
            (Some("steps 7 to 5"), None),
            (Some("steps 0 to 18446744073709551615"), None),
            (Some("step one"), None),
            (None, None),
        ] {
            let run = TracedRun { name: name.map(str::to_string), ..TracedRun::default() };
            assert_eq!(run.n_steps(), n_steps, "{name:?}");
        }
    }

    #[test]
    fn a_list_of_events_is_a_trace_too() {
        let events = r#"[{"ph":"X","name":"F0","cat":"forward","ts":0,"dur":1e6}]"#;
        assert_eq!(runs(events).unwrap(), runs(&format!(r#"{{"traceEvents":{events}}}"#)).unwrap());
        let refused = runs("3").unwrap_err().to_string();
        assert!(
            refused.contains("expected an object with `traceEvents`, or a list of events"),
            "{refused}"
        );
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let dur = r#"{"traceEvents":[{"ph":"X","dur":-1}]}"#;
        for bad in ["", "{}", "[]", "[3]", r#"{"traceEvents":[]}"#, dur] {
            assert!(runs(bad).is_err(), "{bad}");
        }
    }
}

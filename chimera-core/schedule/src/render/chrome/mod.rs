//! Timelines as traces that Perfetto (ui.perfetto.dev) and chrome://tracing show.
//!
//! The format is Google's "Trace Event Format". Each worker is a process, with a thread for
//! compute, threads for gradient reductions and, where they are timed, a thread for the kernels of
//! its device. An arrow goes from the op that makes a token to the op that eats it, if these are on
//! two workers. Counters show the memory that a worker holds, and the messages under way to it.
//! Measured timelines also show waits, and one slice around each run of the program. A unit of time
//! is shown as a second, the unit of measured timelines.

mod arrows;
mod counters;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use self::arrows::{arrows, travels};
use self::counters::counters;
use super::rows;
use crate::analyze::{Event, KernelRun, Timeline, Wait, Work};
use crate::costs::StageBytes;
use crate::effects::Rules;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Kind, Op};
use crate::program::Program;

/// Microseconds, the unit of the format, in a unit of time.
const MICROSECONDS: f64 = 1e6;
/// The thread of a worker's kernels. It comes after the threads of moves and reductions, and their
/// number differs between runs.
const KERNELS: usize = 10_000;

/// The trace of a simulated or measured step of `program`, one event per line.
pub fn trace(program: &Program, timeline: &Timeline) -> String {
    let mut events = Vec::new();
    for worker in 0..timeline.n_workers {
        events.extend(process(worker, &format!("worker {worker}")));
    }
    let sized = SizedProgram { program, sizes: None };
    events.extend(slices(&sized, timeline, 0));
    let travels = travels(program, timeline);
    events.extend(arrows(&sized, &travels, 0, 0));
    events.extend(counters(&sized, timeline, &travels, 0));
    written(&events)
}

/// Sizes of the trained model, which a timeline does not have.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizes {
    /// Bytes of a sample, by stage.
    pub bytes: Vec<StageBytes>,
    /// Floating-point operations of a sample's forward, by stage.
    pub forward_flops: Vec<f64>,
    /// Samples of a unit of a micro-batch.
    pub samples: f64,
}

impl Sizes {
    /// Floating-point operations of an op: each half of a backward has as many as its forward. They
    /// are not known for a selective recomputation.
    fn flops(&self, rules: &Rules, op: &Op) -> Option<f64> {
        let forwards = match op.kind {
            Kind::Recompute if rules.is_selective(op.pipe, op.stage) => return None,
            Kind::Forward | Kind::BackwardInput | Kind::BackwardWeight | Kind::Recompute => 1.0,
            Kind::Backward => 2.0,
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {
                return None;
            }
        };
        let sample = self.forward_flops.get(op.stage.index())?;
        Some(forwards * sample * self.samples * f64::from(op.span.len))
    }
}

/// One run of a program by one pipeline group.
#[derive(Clone, Debug)]
pub struct Ran<'p> {
    /// The program.
    pub program: &'p Program,
    /// The group.
    pub group: usize,
    /// The first step of the run.
    pub step: u64,
    /// Work, in seconds.
    pub timeline: Timeline,
    /// Waits, in seconds.
    pub waits: Vec<Wait>,
    /// Kernels of the workers' devices, in seconds, as far as they were timed.
    pub kernels: Vec<(WorkerId, KernelRun)>,
}

/// A time without useful compute.
#[derive(Clone, PartialEq, Debug)]
pub struct Gap {
    /// Start, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// The reason, in words.
    pub reason: String,
}

/// A program, and its sizes if they are known.
struct SizedProgram<'t> {
    program: &'t Program,
    sizes: Option<&'t Sizes>,
}

/// The trace of a training: each rank is a process, and times are on one clock. Gaps apply to all
/// ranks.
pub fn training(runs: &[Ran<'_>], gaps: &[Gap], sizes: Option<&Sizes>) -> String {
    let mut ranks: Vec<(usize, usize, usize)> = Vec::new();
    let mut events = Vec::new();
    let mut n_arrows = 0;
    let mut timed = BTreeSet::new();
    for Ran { program, group, step, timeline, waits, kernels } in runs {
        let first = group * timeline.n_workers;
        ranks.extend((0..timeline.n_workers).map(|worker| (first + worker, *group, worker)));
        events.extend(steps(timeline, waits, first, *step, program.window().n_steps()));
        let sized = SizedProgram { program, sizes };
        events.extend(slices(&sized, timeline, first));
        events.extend(waits.iter().map(|wait| wait_slice(wait, first)));
        events.extend(kernels.iter().map(|(worker, run)| kernel(run, first + worker.index())));
        timed.extend(kernels.iter().map(|(worker, _)| first + worker.index()));
        let travels = travels(program, timeline);
        events.extend(arrows(&sized, &travels, first, n_arrows));
        n_arrows += travels.len();
        events.extend(counters(&sized, timeline, &travels, first));
    }
    ranks.sort();
    ranks.dedup();
    for Gap { start, end, reason } in gaps {
        let name = format!("recovery: {reason}");
        let of = |(rank, ..): &(usize, usize, usize)| {
            complete(&name, "recovery", *rank, 0, (*start, *end), json!({}))
        };
        events.extend(ranks.iter().map(of));
    }
    let processes = ranks.into_iter().flat_map(|(rank, group, worker)| {
        process(rank, &format!("rank {rank} (group {group}, worker {worker})"))
    });
    let lanes = timed.into_iter().map(|rank| named("thread_name", rank, KERNELS, "kernels"));
    written(&processes.chain(lanes).chain(events).collect::<Vec<_>>())
}

fn written(events: &[Value]) -> String {
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn process(pid: usize, name: &str) -> [Value; 3] {
    let order = json!({
        "ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid},
    });
    [named("process_name", pid, 0, name), order, named("thread_name", pid, 0, "compute")]
}

/// The work of all workers; `first` is the process of worker 0.
fn slices(sized: &SizedProgram<'_>, timeline: &Timeline, first: usize) -> Vec<Value> {
    let mut slices = Vec::new();
    for (pid, row) in (first..).zip(rows(timeline)) {
        slices.extend(row.compute.iter().map(|event| slice(sized, event, pid, 0)));
        let moves = (!row.moves.is_empty()).then_some(("moves", &row.moves));
        let reductions = row.reductions.iter().map(|sums| ("gradient reductions", sums));
        for (lane, (name, events)) in (1..).zip(moves.into_iter().chain(reductions)) {
            slices.push(named("thread_name", pid, lane, name));
            slices.extend(events.iter().map(|event| slice(sized, event, pid, lane)));
        }
    }
    slices
}

/// For each worker, one slice around all of its events and waits in a run of the program.
fn steps(timeline: &Timeline, waits: &[Wait], first: usize, step: u64, n_steps: u32) -> Vec<Value> {
    let name = match u64::from(n_steps) {
        1 => format!("step {step}"),
        n => format!("steps {step} to {}", step + n - 1),
    };
    let slice = |worker: usize| {
        let work = timeline.events.iter().map(|e| (e.worker, e.start, e.end));
        let times = work.chain(waits.iter().map(|w| (w.worker, w.start, w.end)));
        let mine = times.filter(|(w, ..)| w.index() == worker);
        let (start, end) = mine
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(start, end), (_, s, e)| {
                (start.min(s), end.max(e))
            });
        (start <= end).then(|| complete(&name, "step", first + worker, 0, (start, end), json!({})))
    };
    (0..timeline.n_workers).filter_map(slice).collect()
}

fn wait_slice(wait: &Wait, first: usize) -> Value {
    let name = format!("wait for {}", wait.awaited);
    let pid = first + wait.worker.index();
    complete(&name, "wait", pid, 0, (wait.start, wait.end), json!({}))
}

fn kernel(run: &KernelRun, pid: usize) -> Value {
    let args = if run.flops > 0.0 { json!({"flops": run.flops}) } else { json!({}) };
    complete(&run.name, "kernel", pid, KERNELS, (run.start, run.start + run.seconds), args)
}

fn complete(
    name: &str,
    category: &str,
    pid: usize,
    lane: usize,
    (start, end): (f64, f64),
    args: Value,
) -> Value {
    let (ts, dur) = (start * MICROSECONDS, (end - start) * MICROSECONDS);
    json!({
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": lane, "ts": ts, "dur": dur,
        "args": args,
    })
}

fn named(what: &str, worker: usize, lane: usize, name: &str) -> Value {
    json!({"ph": "M", "name": what, "pid": worker, "tid": lane, "args": {"name": name}})
}

fn slice(sized: &SizedProgram<'_>, event: &Event, pid: usize, lane: usize) -> Value {
    let (name, category, args) = match event.work {
        Work::Cell(cell) => {
            let names: Vec<String> = cell.ops().map(|op| sized.name(op)).collect();
            let args: Vec<Value> = cell.ops().map(|one| op(sized, one)).collect();
            let category = cell.ops().next().map_or("", |op| category(op.kind));
            (names.join("+"), category, json!({"ops": args}))
        }
        Work::Move(moved) => {
            (sized.name(moved), category(moved.kind), json!({"ops": [op(sized, moved)]}))
        }
        Work::Reduce(bucket) => {
            (format!("reduce {}", bucket.0), "reduction", json!({"bucket": bucket.0}))
        }
        Work::Step(bucket) => {
            (format!("update {}", bucket.0), "update", json!({"bucket": bucket.0}))
        }
    };
    complete(&name, category, pid, lane, (event.start, event.end), args)
}

impl SizedProgram<'_> {
    fn name(&self, op: Op) -> String {
        match op.kind {
            Kind::Work(work) => self.program.rules().works()[work.index()].name.clone(),
            kind => format!("{}{}", kind.letter(), op.span),
        }
    }
}

fn op(sized: &SizedProgram<'_>, op: Op) -> Value {
    let kind = op.kind.letter().to_string();
    let mut args = json!({
        "kind": kind, "pipe": op.pipe.0, "stage": op.stage.0, "micro_batches": op.span.to_string(),
    });
    if let Some(flops) = sized.sizes.and_then(|sizes| sizes.flops(sized.program.rules(), &op)) {
        args["flops"] = json!(flops);
    }
    args
}

fn category(kind: Kind) -> &'static str {
    match kind {
        Kind::Forward => "forward",
        Kind::Backward | Kind::BackwardInput | Kind::BackwardWeight => "backward",
        Kind::Recompute => "recompute",
        Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return => "move",
        Kind::Work(_) => "work beside the training",
    }
}

#[cfg(test)]
mod tests;

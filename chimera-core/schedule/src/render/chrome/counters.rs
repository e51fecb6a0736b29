//! Counter tracks: the memory that each worker holds over time, and the messages in flight to it.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::arrows::Travel;
use super::{MICROSECONDS, SizedProgram};
use crate::activation_memory::{ActivationMemory, rounded};
use crate::analyze::memory::{kept_bytes_change, saved_bytes};
use crate::analyze::{Timeline, Work};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Kind, Lane, Op};
use crate::program::{Instr, Program};

/// A counter of each worker: its changes and their times.
struct Counter {
    name: &'static str,
    unit: &'static str,
    changes: Vec<Vec<Change>>,
}

/// A change of a counter, and its time.
#[derive(Clone)]
struct Change {
    time: f64,
    /// The order among changes at one time.
    order: usize,
    by: f64,
}

impl Counter {
    fn new(name: &'static str, unit: &'static str, n_workers: usize) -> Counter {
        Counter { name, unit, changes: vec![Vec::new(); n_workers] }
    }

    /// Adds `amount` to the counter of a worker between two times.
    fn add(&mut self, worker: WorkerId, (from, to): (f64, f64), amount: f64) {
        self.change(worker, (from, 0), amount);
        self.change(worker, (to, 0), -amount);
    }

    fn change(&mut self, worker: WorkerId, (time, order): (f64, usize), by: f64) {
        if by == 0.0 {
            return;
        }
        if let Some(changes) = self.changes.get_mut(worker.index()) {
            changes.push(Change { time, order, by });
        }
    }

    /// A zero at `start`, and an event for each change of a worker's counter, preceded by one with
    /// the highest value at that time, if that is higher. `first` is the process of worker 0.
    fn events(mut self, first: usize, start: f64) -> Vec<Value> {
        let mut events = Vec::new();
        for (pid, changes) in (first..).zip(&mut self.changes) {
            let mut event = |time: f64, value: f64| {
                events.push(json!({
                    "ph": "C", "name": self.name, "pid": pid, "ts": time * MICROSECONDS,
                    "args": {self.unit: rounded(value) + 0.0}, // no -0
                }));
            };
            event(start, 0.0);
            changes.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.order.cmp(&b.order)));
            let mut now = 0.0f64;
            for at_once in changes.chunk_by(|a, b| a.time == b.time) {
                let before = now;
                let mut most = now;
                for change in at_once {
                    now += change.by;
                    most = most.max(now);
                }
                if rounded(most) > rounded(before.max(now)) {
                    event(at_once[0].time, most);
                }
                event(at_once[0].time, now);
            }
        }
        events
    }
}

/// The places of ops in their rows: the order in which memory is handed out.
struct RowPlaces(FxHashMap<(WorkerId, Op), usize>);

impl RowPlaces {
    fn of(program: &Program) -> RowPlaces {
        let rows = (0..).map(WorkerId).zip(program.rows());
        let ops = rows.flat_map(|(worker, row)| {
            row.iter().enumerate().filter_map(move |(at, instr)| match instr {
                Instr::Run(cell) => Some(((worker, cell.parts().0), at)),
                _ => None,
            })
        });
        RowPlaces(ops.collect())
    }

    /// The position of the start of an op on a worker, which may be the other one of a move.
    fn start(&self, worker: WorkerId, op: Op) -> usize {
        let place = |kind| self.0.get(&(worker, Op { kind, ..op })).copied();
        let mut found = place(op.kind);
        if op.kind.lane() == Lane::Moves {
            found = found.or_else(|| place(Kind::Keep)).or_else(|| place(Kind::Reload));
        }
        2 * found.unwrap_or(0)
    }

    fn end(&self, worker: WorkerId, op: Op) -> usize {
        self.start(worker, op) + 1
    }
}

/// The counters of all workers in one run of a program with the given `travels`. Kept values are
/// counted in bytes if sizes are known, otherwise in micro-batches.
pub(super) fn counters(
    sized: &SizedProgram<'_>,
    timeline: &Timeline,
    travels: &[Travel<'_>],
    first: usize,
) -> Vec<Value> {
    let program = sized.program;
    let n_workers = timeline.n_workers;
    let unit = if sized.sizes.is_some() { "bytes" } else { "micro-batches" };
    let mut memory = Counter::new("activation memory", unit, n_workers);
    let mut inputs = Counter::new("checkpointed inputs", "micro-batches", n_workers);
    let mut in_flight = Counter::new("micro-batches in flight", "micro-batches", n_workers);
    let mut under_way = Counter::new("messages under way", "messages", n_workers);
    let activations = ActivationMemory::new(program.placement(), program.units_per_micro());
    let mut spans: FxHashMap<(WorkerId, u32), (f64, f64)> = FxHashMap::default();
    let places = RowPlaces::of(program);
    let is_known = |worker: WorkerId| worker.index() < program.placement().n_workers();
    for event in timeline.events.iter().filter(|event| is_known(event.worker)) {
        if let Work::Move(op) = event.work {
            let amount = match sized.sizes {
                Some(sizes) => saved_bytes(program, &sizes.bytes, sizes.samples, &op),
                None => activations.moved(&op),
            };
            let (from, to) = program.move_of(&op);
            if let Some(worker) = from {
                memory.change(worker, (event.end, places.end(worker, op)), -amount);
            }
            if let Some(worker) = to {
                memory.change(worker, (event.start, places.start(worker, op)), amount);
            }
        }
        let Work::Cell(cell) = event.work else { continue };
        let (held, kept) = match sized.sizes {
            Some(sizes) => {
                (kept_bytes_change(program, &sizes.bytes, sizes.samples, &cell), (0.0, 0.0))
            }
            None => (
                activations.change(event.worker, &cell, program.rules()),
                activations.kept_change(event.worker, &cell, program.rules()),
            ),
        };
        let changes = [(&mut memory, held), (&mut inputs, kept)];
        let first = cell.parts().0;
        let worker = event.worker;
        for (counter, (more, less)) in changes {
            counter.change(worker, (event.start, places.start(worker, first)), more);
            counter.change(worker, (event.end, places.end(worker, first)), -less);
        }
        for unit in cell.ops().flat_map(|op| op.micro_batch_units()) {
            let span = spans.entry((event.worker, unit)).or_insert((event.start, event.end));
            *span = (span.0.min(event.start), span.1.max(event.end));
        }
    }
    let share = 1.0 / f64::from(program.units_per_micro());
    for ((worker, _), span) in spans {
        in_flight.add(worker, span, share);
    }
    for Travel { from, to, .. } in travels {
        // Clocks of two processes may differ by more than the time of a message.
        under_way.add(to.worker, (from.end, to.start.max(from.end)), 1.0);
    }
    if inputs.changes.iter().all(Vec::is_empty) {
        inputs.changes.clear();
    }
    let start = timeline.events.iter().map(|event| event.start).fold(f64::INFINITY, f64::min);
    let all = [memory, inputs, in_flight, under_way].into_iter();
    if start.is_finite() { all.flat_map(|c| c.events(first, start)).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{events, program};
    use super::super::trace;
    use super::*;
    use crate::analyze::simulate;
    use crate::costs::{PerStage, UniformCosts, WithOwnWork};
    use crate::effects::{OwnWork, Pieces};
    use crate::lower::{Lowering, bpipe, fill, lower, offload};
    use crate::schedule::{SCHEDULES, Shape, find};

    /// The values of each counter by process and name, in order of time.
    fn tracks(events: &[Value]) -> BTreeMap<(u64, String), Vec<f64>> {
        let mut tracks: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "C") {
            let name = event["name"].as_str().unwrap().to_string();
            let value = event["args"].as_object().unwrap().values().next().unwrap().as_f64();
            let track = tracks.entry((event["pid"].as_u64().unwrap(), name)).or_default();
            track.push((event["ts"].as_f64().unwrap(), value.unwrap()));
        }
        let ordered = |mut track: Vec<(f64, f64)>| {
            track.sort_by(|a, b| a.0.total_cmp(&b.0));
            track.into_iter().map(|(_, value)| value).collect()
        };
        tracks.into_iter().map(|(key, track)| (key, ordered(track))).collect()
    }

    #[test]
    fn counters_begin_and_end_at_zero_and_never_go_below_it() {
        for schedule in SCHEDULES {
            let name = schedule.name();
            let program = program(schedule.name(), Shape::new(4, 8));
            let tracks = tracks(&events(&program));
            assert_eq!(tracks.len(), 4 * 3, "{name}");
            for (track, values) in &tracks {
                assert!(values.iter().all(|value| *value >= 0.0), "{name}: {track:?} {values:?}");
                let ends = (values.first(), values.last());
                assert_eq!(ends, (Some(&0.0), Some(&0.0)), "{name}: {track:?} {values:?}");
            }
            for (worker, peak) in (0..).zip(program.peaks()) {
                let highest = tracks[&(worker, "activation memory".to_string())].iter();
                let highest = highest.copied().fold(0.0, f64::max);
                assert!((highest - peak).abs() < 1e-5, "{name}: {highest}, not {peak}");
            }
        }
    }

    /// Moves that take no time count too, in the order in which memory is handed out.
    #[test]
    fn the_highest_counter_is_the_peak_where_activations_are_moved() {
        let costs = UniformCosts::new(1.0, 2.0, 0.0);
        let capped = Lowering { max_peak: Some(1.0), ..Lowering::default() };
        let moved = |name: &str, depth, n, is_shared: bool| {
            let timetable = find(name).unwrap().timetable(&Shape::new(depth, n)).unwrap();
            let moved = if is_shared {
                bpipe(timetable, &costs)
            } else {
                offload(timetable, &capped, &costs)
            };
            lower(&moved.unwrap(), &Lowering::default()).unwrap()
        };
        for (name, depth, n, is_shared) in
            [("gpipe", 2, 4, false), ("gpipe", 4, 12, false), ("1f1b", 4, 8, true)]
        {
            let program = moved(name, depth, n, is_shared);
            for costs in [costs, UniformCosts { transfer: 0.5, ..costs }] {
                let trace = trace(&program, &simulate(&program, &costs));
                let trace: Value = serde_json::from_str(&trace).unwrap();
                let tracks = tracks(trace["traceEvents"].as_array().unwrap());
                for (worker, peak) in (0..).zip(program.peaks()) {
                    let track = &tracks[&(worker, "activation memory".to_string())];
                    let highest = track.iter().copied().fold(0.0, f64::max);
                    // Slower moves may come at times with more room.
                    let is_peak = highest == *peak || costs.transfer > 0.0 && highest < *peak;
                    assert!(is_peak, "{name}, worker {worker}: {highest}, not {peak}: {track:?}");
                    assert!(track.iter().all(|held| *held >= 0.0), "{name}: {track:?}");
                }
            }
        }
    }

    /// Six pieces fit into the idle time of each worker, which has two micro-batches.
    #[test]
    fn pieces_of_work_are_no_micro_batches_in_flight() {
        let plain = program("gpipe", Shape::new(2, 2));
        let training = UniformCosts::new(1.0, 2.0, 0.0);
        let costs = WithOwnWork::new(&training, vec![PerStage(vec![0.5])]);
        let work = OwnWork { name: "factors".into(), pieces: Pieces::Anytime(100) };
        let filled = fill(&plain, &[work], &Lowering::default(), &costs).unwrap();
        let in_flight = |program: &Program| {
            let trace = trace(program, &simulate(program, &costs));
            let trace: Value = serde_json::from_str(&trace).unwrap();
            let tracks = tracks(trace["traceEvents"].as_array().unwrap());
            let is_in_flight = |(_, name): &(u64, String)| name == "micro-batches in flight";
            tracks.into_iter().filter(|(key, _)| is_in_flight(key)).collect::<Vec<_>>()
        };
        assert_eq!(in_flight(&filled), in_flight(&plain));
    }
}

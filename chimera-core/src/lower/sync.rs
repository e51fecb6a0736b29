//! The pass that adds gradient reductions, the agreement and optimizer steps.

use std::str::FromStr;

use rustc_hash::FxHashMap;

use super::Lowering;
use crate::analyze::timeline::{Timeline, Work};
use crate::costs::is_shorter;
use crate::ids::{BucketId, StageId};
use crate::notation::by_name;
use crate::placement::Placement;
use crate::program::{Bucket, Instr, Program};
use crate::update::{Update, Window};

/// When a worker starts the reduction of a bucket (Li & Hoefler, SC'21, section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// After the worker's last op.
    AtEnd,
    /// As soon as the worker's last backward of the bucket is done.
    Eager,
    /// Early only where the worker idles between that backward and the end of its row: elsewhere an
    /// early start only takes cycles from compute.
    EagerOpt,
}

impl Sync {
    /// Every policy with its name on the command line.
    pub const ALL: [(&'static str, Sync); 3] =
        [("at-end", Sync::AtEnd), ("eager", Sync::Eager), ("eager-opt", Sync::EagerOpt)];
}

impl FromStr for Sync {
    type Err = String;

    fn from_str(name: &str) -> Result<Sync, String> {
        by_name("sync policy", name, &Sync::ALL)
    }
}

/// For every update one bucket per stage, then one per set of stages that share tensors.
pub(super) fn buckets(
    placement: &Placement,
    tied: &[Vec<StageId>],
    window: &Window,
) -> Vec<Bucket> {
    let alone = (0..placement.n_stages()).map(|s| vec![StageId(s as u16)]);
    let of_first: Vec<Bucket> = alone
        .chain(tied.iter().cloned())
        .map(|stages| {
            let mut seen = vec![false; placement.n_workers()];
            let mut members =
                stages.iter().flat_map(|&s| placement.replicas(s)).collect::<Vec<_>>();
            members.retain(|w| !std::mem::replace(&mut seen[w.index()], true));
            Bucket { stages, members, update: 0, order: 0 }
        })
        .collect();
    let of = |update| of_first.iter().map(move |bucket| Bucket { update, ..bucket.clone() });
    (0..window.n_updates()).flat_map(of).collect()
}

/// Orders the buckets and adds everything that follows a worker's compute.
///
/// All workers start reductions in one order, that of each bucket's latest last backward over its
/// replicas. If each started a reduction right after its own last backward instead, replicas could
/// start theirs in cyclic orders and wait for each other for ever (any N that is odd or not a multiple
/// of 2f).
pub(super) fn insert(program: &mut Program, compute: &Timeline, how: &Lowering) {
    let Program { rows, buckets, window, has_barrier, .. } = program;
    let ends = Ends::of(compute, buckets, window);
    let mut order: Vec<BucketId> = (0..buckets.len()).map(|b| BucketId(b as u32)).collect();
    order.sort_by(|a, b| ends.latest(*a).total_cmp(&ends.latest(*b)).then(a.cmp(b)));
    for (place, bucket) in order.iter().enumerate() {
        buckets[bucket.index()].order = place as u32;
    }
    let mut by_worker: Vec<Vec<BucketId>> = vec![Vec::new(); rows.len()];
    for bucket in order {
        for member in &buckets[bucket.index()].members {
            by_worker[member.index()].push(bucket);
        }
    }
    for ((row, mine), ends) in rows.iter_mut().zip(&by_worker).zip(&ends.workers) {
        let (sync, updates) = match window.update() {
            Update::Flush if *has_barrier => (how.sync, Updates::Agreed),
            Update::Flush => (how.sync, Updates::AtEnd),
            // The next update's gradients come soon, and its forwards want the weights.
            Update::Stash { .. } | Update::DoubleBuffer { .. } => (Sync::Eager, Updates::AtOnce),
        };
        let starts = starts(row, mine, ends, sync);
        *row = with_sync(row, mine, &starts, updates);
    }
}

/// For each of a worker's buckets, after how many cells of its row the reduction starts.
fn starts(row: &[Instr], mine: &[BucketId], ends: &WorkerEnds, sync: Sync) -> Vec<usize> {
    let n_cells = row.iter().filter(|i| matches!(i, Instr::Run(_))).count();
    let mut earliest = 0;
    mine.iter()
        .map(|b| {
            let after_last = ends.last_backward.get(b).map_or(0, |(cell, _)| cell + 1);
            let start = match sync {
                Sync::AtEnd => n_cells,
                Sync::Eager => after_last,
                Sync::EagerOpt if ends.idles_after(after_last) => after_last,
                Sync::EagerOpt => n_cells,
            };
            earliest = start.max(earliest);
            earliest
        })
        .collect()
}

/// Where the updates of a row stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Updates {
    /// Behind the agreement.
    Agreed,
    /// At the end of the row, before the agreement.
    AtEnd,
    /// Right after the start of their reductions.
    AtOnce,
}

fn with_sync(row: &[Instr], mine: &[BucketId], starts: &[usize], updates: Updates) -> Vec<Instr> {
    let start = |b: BucketId| {
        let update = [Instr::Await(b), Instr::Step(b)];
        let update = update.into_iter().filter(move |_| updates == Updates::AtOnce);
        [Instr::Reduce(b)].into_iter().chain(update)
    };
    let mut out = Vec::with_capacity(row.len() + 3 * mine.len() + 1);
    let mut waiting = mine.iter().zip(starts).peekable();
    let mut n_cells = 0;
    for &instr in row {
        // A reduction starts before the receives of the next cell, but after the sends of the last.
        if !matches!(instr, Instr::Send(..)) {
            while let Some((b, _)) = waiting.next_if(|(_, start)| **start <= n_cells) {
                out.extend(start(*b));
            }
        }
        n_cells += usize::from(matches!(instr, Instr::Run(_)));
        out.push(instr);
    }
    out.extend(waiting.flat_map(|(b, _)| start(*b)));
    let (awaits, steps) =
        (mine.iter().map(|b| Instr::Await(*b)), mine.iter().map(|b| Instr::Step(*b)));
    match updates {
        Updates::Agreed => out.extend(awaits.chain([Instr::Agree]).chain(steps)),
        Updates::AtEnd => {
            out.extend(awaits.zip(steps).flat_map(|(a, s)| [a, s]).chain([Instr::Agree]))
        }
        Updates::AtOnce => out.push(Instr::Agree),
    }
    out
}

/// Where and when each worker's last backwards lie.
struct Ends {
    workers: Vec<WorkerEnds>,
    /// By bucket: the latest over all workers.
    latest: Vec<f64>,
}

#[derive(Clone, Default)]
struct WorkerEnds {
    /// By bucket: the index of the cell and its end.
    last_backward: FxHashMap<BucketId, (usize, f64)>,
    n_cells: usize,
    /// The last cell that the worker idles before.
    last_idle: Option<usize>,
}

impl Ends {
    fn of(compute: &Timeline, buckets: &[Bucket], window: &Window) -> Ends {
        let by_stage = Bucket::by_stage(buckets);
        let mut workers = vec![WorkerEnds::default(); compute.n_workers];
        let mut latest = vec![0.0; buckets.len()];
        let mut clocks = vec![0.0; compute.n_workers];
        for event in &compute.events {
            let Work::Cell(cell) = event.work else {
                continue;
            };
            let worker = &mut workers[event.worker.index()];
            let clock = std::mem::replace(&mut clocks[event.worker.index()], event.end);
            if is_shorter(clock, event.start) {
                worker.last_idle = Some(worker.n_cells);
            }
            for op in cell.ops().filter(|op| op.kind.adds_gradient()) {
                let key = (op.stage, window.update_of(op.span));
                for bucket in by_stage.get(&key).into_iter().flatten() {
                    worker.last_backward.insert(*bucket, (worker.n_cells, event.end));
                    latest[bucket.index()] = event.end.max(latest[bucket.index()]);
                }
            }
            worker.n_cells += 1;
        }
        Ends { workers, latest }
    }

    fn latest(&self, bucket: BucketId) -> f64 {
        self.latest[bucket.index()]
    }
}

impl WorkerEnds {
    fn idles_after(&self, cell: usize) -> bool {
        self.last_idle.is_some_and(|idle| idle >= cell)
    }
}

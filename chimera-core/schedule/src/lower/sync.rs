//! The pass that adds gradient reductions, the step sync and optimizer steps.

mod in_backward;

use rustc_hash::FxHashMap;

use super::Lowering;
use crate::analyze::timeline::{Event, Work};
use crate::costs::is_shorter;
use crate::ir::ids::{BucketId, StageId};
use crate::ir::op::{Kind, Lane};
use crate::ir::placement::Placement;
use crate::ir::update::{Update, Window};
use crate::program::{Bucket, Instr, Program};

named_values! {
    /// The time at which a worker starts the reduction of a bucket (Li & Hoefler, SC'21, section 3.2).
    pub enum Sync: "sync policy" {
        /// After the worker's last op.
        AtEnd = "at-end",
        /// As soon as the worker's last backward of the bucket is done.
        Eager = "eager",
        /// Early only if the worker idles between that backward and the end of its row: otherwise an
        /// early start only takes cycles from compute.
        EagerOpt = "eager-opt",
        /// Inside the last backward of the bucket's replicas: the sum is awaited before the gradient
        /// is sent upstream, as PyTorch's DistributedDataParallel does.
        InBackward = "in-backward",
    }
}

/// The buckets of every update: one per stage, then one per set of stages that share tensors,
/// unless it has only one stage.
pub(super) fn buckets(
    placement: &Placement,
    tied: &[Vec<StageId>],
    window: &Window,
) -> Vec<Bucket> {
    let alone = (0..placement.n_stages()).map(|s| vec![StageId(s as u16)]);
    let of_first: Vec<Bucket> = alone
        .chain(tied.iter().filter(|stages| stages.len() > 1).cloned())
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
/// All workers start reductions in one order: by each bucket's latest last backward over its
/// replicas. If each started a reduction right after its own last backward instead, replicas could
/// start theirs in cyclic orders and wait for each other for ever (any N that is odd or not a
/// multiple of 2f).
pub(super) fn insert(program: &mut Program, ends: &Ends, how: &Lowering) {
    let is_trained: Vec<bool> = program.buckets.iter().map(|b| program.is_trained(b)).collect();
    let Program { rows, buckets, window, has_barrier, .. } = program;
    let mut order: Vec<BucketId> = (0..buckets.len()).map(|b| BucketId(b as u32)).collect();
    // Updates of a stage follow each other, even if a worker finishes one before another has
    // finished the one before.
    let mut latest = ends.latest.clone();
    let n_of_update = buckets.len() / window.n_updates() as usize;
    for bucket in n_of_update..buckets.len() {
        latest[bucket] = latest[bucket].max(latest[bucket - n_of_update]);
    }
    let latest = |bucket: BucketId| latest[bucket.index()];
    order.sort_by(|a, b| latest(*a).total_cmp(&latest(*b)).then(a.cmp(b)));
    for (place, bucket) in order.iter().enumerate() {
        buckets[bucket.index()].order = place as u32;
    }
    let mut by_worker: Vec<Vec<BucketId>> = vec![Vec::new(); rows.len()];
    for bucket in order.into_iter().filter(|bucket| is_trained[bucket.index()]) {
        for member in &buckets[bucket.index()].members {
            by_worker[member.index()].push(bucket);
        }
    }
    for ((row, mine), ends) in rows.iter_mut().zip(&by_worker).zip(&ends.workers) {
        let (sync, updates) = match window.update() {
            Update::Flush if *has_barrier => (how.sync, Updates::Agreed),
            Update::Flush => (how.sync, Updates::AtEnd),
            update if update.is_borderless() => (Sync::Eager, Updates::BeforeUse),
            // The next update's gradients come soon, and its forwards need the weights.
            _ => match how.sync {
                Sync::InBackward => (Sync::InBackward, Updates::AtOnce),
                _ => (Sync::Eager, Updates::AtOnce),
            },
        };
        let starts = match sync {
            Sync::InBackward => mine.iter().map(|b| ends.inside(latest(*b))).collect(),
            _ => starts(mine, ends, sync),
        };
        let places = Places { starts: &starts, updates, is_in_backward: sync == Sync::InBackward };
        add_sync(row, ends, mine, places);
    }
}

/// The place at which a worker starts a reduction.
#[derive(Clone, Copy)]
struct Start {
    /// Number of the row's cells before the start.
    n_cells: usize,
    /// Whether it comes before the sends of the last of these cells.
    is_inside: bool,
}

/// For each of a worker's buckets, the place at which its reduction starts.
fn starts(mine: &[BucketId], ends: &WorkerEnds, sync: Sync) -> Vec<Start> {
    let n_cells = ends.n_cells;
    let mut earliest = 0;
    mine.iter()
        .map(|b| {
            let after_last = ends.last_backward.get(b).map_or(0, |(cell, _)| cell + 1);
            let start = match sync {
                Sync::Eager => after_last,
                Sync::EagerOpt if ends.idles_after(after_last) => after_last,
                _ => n_cells,
            };
            earliest = start.max(earliest);
            Start { n_cells: earliest, is_inside: false }
        })
        .collect()
}

/// The places in a row of everything that is added to it.
struct Places<'s> {
    /// The start of each bucket's reduction.
    starts: &'s [Start],
    updates: Updates,
    /// Whether a reduction is awaited where it starts.
    is_in_backward: bool,
}

/// The places of updates in a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Updates {
    /// After the step sync.
    Agreed,
    /// At the end of the row, before the step sync.
    AtEnd,
    /// Before the first forward that reads their result, or at the end of the row.
    BeforeUse,
    /// Right after the start of their reductions.
    AtOnce,
}

/// Adds reductions, sync and updates to a row that ends with compute.
fn add_sync(row: &mut Vec<Instr>, ends: &WorkerEnds, mine: &[BucketId], places: Places<'_>) {
    let Places { starts, updates, is_in_backward } = places;
    let start = |b: BucketId| {
        let n_instrs = match updates {
            Updates::AtOnce => 3,
            _ if is_in_backward => 2,
            _ => 1,
        };
        [Instr::Reduce(b), Instr::Await(b), Instr::Step(b)].into_iter().take(n_instrs)
    };
    // Nothing comes before the first start, and starts only grow.
    let mut n_cells = starts.first().map_or(ends.n_cells, |first| first.n_cells.min(ends.n_cells));
    let tail = row.split_off(after_cells(row, n_cells));
    let out = row;
    let mut waiting = mine.iter().zip(starts).peekable();
    let first_use = |b: &BucketId| ends.first_use.get(b).copied();
    let mut uses: Vec<_> = mine.iter().filter_map(|b| Some((first_use(b)?, *b))).collect();
    uses.sort_unstable();
    let mut uses = uses.into_iter().peekable();
    for instr in tail {
        // A reduction starts before the receives of the next cell, but after the sends of the last,
        // unless it is part of the last cell.
        let is_of_last = matches!(instr, Instr::Send(..) | Instr::Give(_));
        let may_start = |at: &Start| at.n_cells <= n_cells && (at.is_inside || !is_of_last);
        if instr.lane() == Lane::Compute {
            while let Some((b, _)) = waiting.next_if(|(_, at)| may_start(at)) {
                out.extend(start(*b));
            }
        }
        if !is_of_last && instr.lane() == Lane::Compute {
            while let Some((_, b)) = uses.next_if(|(cell, _)| *cell <= n_cells) {
                out.extend([Instr::Await(b), Instr::Step(b)]);
            }
        }
        n_cells += usize::from(is_compute(&instr));
        out.push(instr);
    }
    out.extend(waiting.flat_map(|(b, _)| start(*b)));
    let rest = mine.iter().filter(|b| first_use(b).is_none());
    let awaits = rest.clone().filter(|_| !is_in_backward).map(|b| Instr::Await(*b));
    let steps = rest.map(|b| Instr::Step(*b));
    match updates {
        Updates::Agreed => out.extend(awaits.chain([Instr::Agree]).chain(steps)),
        Updates::AtEnd | Updates::BeforeUse if is_in_backward => {
            out.extend(steps.chain([Instr::Agree]));
        }
        Updates::AtEnd | Updates::BeforeUse => {
            out.extend(awaits.zip(steps).flat_map(|(a, s)| [a, s]).chain([Instr::Agree]))
        }
        Updates::AtOnce => out.push(Instr::Agree),
    }
}

fn is_compute(instr: &Instr) -> bool {
    matches!(instr, Instr::Run(cell) if cell.lane() == Lane::Compute)
}

/// The place in a row right after its first `n_cells` cells of compute.
fn after_cells(row: &[Instr], n_cells: usize) -> usize {
    let cells = row.iter().enumerate().filter(|(_, instr)| is_compute(instr));
    n_cells.checked_sub(1).and_then(|last| cells.map(|(at, _)| at + 1).nth(last)).unwrap_or(0)
}

/// The place and time of each worker's last backwards, in a simulation of compute.
pub(super) struct Ends {
    workers: Vec<WorkerEnds>,
    /// The latest end of each bucket over all workers.
    latest: Vec<f64>,
    by_stage: FxHashMap<(StageId, u32), Vec<BucketId>>,
    window: Window,
    keeps_cells: bool,
}

#[derive(Clone, Default)]
struct WorkerEnds {
    /// The cell index and the end of each bucket's last backward.
    last_backward: FxHashMap<BucketId, (usize, f64)>,
    /// The places where forwards wait for updates: the buckets that a later cell of the row reads,
    /// each with the first such cell.
    first_use: FxHashMap<BucketId, usize>,
    n_cells: usize,
    /// The end of each cell, if [`Sync::InBackward`] needs it.
    cells: Vec<f64>,
    /// The last cell that follows idle time.
    last_idle: Option<usize>,
    /// End of the last cell so far.
    clock: f64,
}

impl Ends {
    /// The ends of a program before its compute is simulated.
    pub(super) fn new(program: &Program, sync: Sync) -> Ends {
        let Program { rows, buckets, window, .. } = program;
        Ends {
            workers: vec![WorkerEnds::default(); rows.len()],
            latest: vec![0.0; buckets.len()],
            by_stage: Bucket::by_stage(buckets),
            window: *window,
            keeps_cells: sync == Sync::InBackward,
        }
    }

    /// Adds an event of the simulation. Events of a worker come in order.
    pub(super) fn add(&mut self, event: &Event) {
        let Work::Cell(cell) = event.work else { return };
        let worker = &mut self.workers[event.worker.index()];
        let clock = std::mem::replace(&mut worker.clock, event.end);
        if is_shorter(clock, event.start) {
            worker.last_idle = Some(worker.n_cells);
        }
        let waits = self.window.update().is_borderless();
        for op in cell.ops().filter(|op| waits && op.kind == Kind::Forward) {
            // This includes updates whose steps had no forward of the stage here.
            for before in (0..self.window.update_of(op.span)).rev() {
                let buckets = self.by_stage.get(&(op.stage, before)).into_iter().flatten();
                let n_known = worker.first_use.len();
                for bucket in buckets {
                    worker.first_use.entry(*bucket).or_insert(worker.n_cells);
                }
                if worker.first_use.len() == n_known {
                    break;
                }
            }
        }
        for op in cell.ops().filter(|op| op.kind.adds_gradient()) {
            let key = (op.stage, self.window.update_of(op.span));
            for bucket in self.by_stage.get(&key).into_iter().flatten() {
                worker.last_backward.insert(*bucket, (worker.n_cells, event.end));
                self.latest[bucket.index()] = event.end.max(self.latest[bucket.index()]);
            }
        }
        worker.n_cells += 1;
        if self.keeps_cells {
            worker.cells.push(event.end);
        }
    }
}

impl WorkerEnds {
    fn idles_after(&self, cell: usize) -> bool {
        self.last_idle.is_some_and(|idle| idle >= cell)
    }
}

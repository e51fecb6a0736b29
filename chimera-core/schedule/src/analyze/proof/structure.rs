//! Checks of a timetable that need no run: every op is well-formed, is on the worker of its stage,
//! and occurs exactly once.

use rustc_hash::FxHashSet;

use super::models::{check_models, of_its_model};
use super::refusal::{Reason, Refusal};
use crate::effects::{Demand, Wanted};
use crate::ir::ids::{PipeId, StageId, WorkerId};
use crate::ir::notation::marked_row;
use crate::ir::op::{Cell, Kind, Lane, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::{Update, Window};

/// Checks a timetable, and that `tied` names existing stages, each once. Returns its window.
pub(crate) fn check(timetable: &Timetable, tied: &[Vec<StageId>]) -> Result<Window, Refusal> {
    let placement = &timetable.placement;
    let rows = timetable.rows.len();
    let workers = placement.n_workers();
    let refuse = |reason| Err(refusal(timetable, None, reason));
    if rows != workers {
        return refuse(Reason::Rows { rows, workers });
    }
    let edges = timetable.graph.n_stages();
    let stages = placement.n_stages();
    if edges != stages {
        return refuse(Reason::Graph { edges, stages });
    }
    if timetable.units_per_micro == 0 {
        return refuse(Reason::NoUnits);
    }
    let Some(window) =
        Window::new(timetable.update, timetable.n_micro_batches, timetable.units_per_micro)
    else {
        let n_micro_batches = timetable.n_micro_batches;
        let n_steps = timetable.update.n_steps();
        return refuse(Reason::Window { n_micro_batches, n_steps });
    };
    if window.update() != Update::Flush && !tied.is_empty() {
        return refuse(Reason::TiedVersions);
    }
    check_stages(timetable, tied).map_err(|reason| refusal(timetable, None, reason))?;
    check_models(timetable).map_err(|reason| refusal(timetable, None, reason))?;
    let demand = Demand::in_timetable(timetable);
    // Counts come from files: nothing is allocated for passes that cannot exist.
    let mut found = 0;
    each_op(timetable, |worker, op| {
        found += u64::from(op.span.len);
        if !demand.wants(op.kind, op.stage) {
            return Err(Reason::Unwanted { op, wanted: demand.of(op.stage) });
        }
        let changes = demand.trains(op.stage) && !window.update().row().reads_one_version();
        if op.kind == Kind::Recompute && changes {
            return Err(Reason::RecomputedNewer(op));
        }
        well_formed(timetable, &window, worker, &op)?;
        of_its_model(timetable, &demand, op)
    })?;
    let units = |stage| u64::from(demand.n_units(stage, timetable.n_units()));
    let wanted = timetable.graph.stages().map(units).sum();
    if found < wanted {
        return refuse(Reason::Incomplete { found, wanted });
    }
    let mut passes = PassesDone::new(timetable, &demand);
    each_op(timetable, |_, op| passes.add(op))?;
    match passes.absent() {
        None => Ok(window),
        Some((unit, stage, reason)) => {
            let at = match reason {
                Reason::LoneMove { done, .. } => cell_of(timetable, done, stage, unit),
                _ => {
                    // The end of the row that should have it; the first pipe's if no pipe has the micro-batch.
                    let pipe = passes.pipe_of[unit as usize].unwrap_or(PipeId(0));
                    let worker = placement.worker(pipe, stage);
                    Some((worker, timetable.row(worker).len()))
                }
            };
            Err(refusal(timetable, at, reason))
        }
    }
}

/// Checks that tied and frozen stages exist, and that each is tied once.
fn check_stages(timetable: &Timetable, tied: &[Vec<StageId>]) -> Result<(), Reason> {
    let stages = timetable.placement.n_stages();
    let unknown = tied.iter().flatten().find(|s| s.index() >= stages);
    if let Some(stage) = unknown {
        return Err(Reason::Tied(*stage));
    }
    let mut is_tied = vec![false; stages];
    let twice = tied.iter().flatten().find(|s| std::mem::replace(&mut is_tied[s.index()], true));
    if let Some(stage) = twice {
        return Err(Reason::TiedTwice(*stage));
    }
    let unknown = timetable.frozen.iter().find(|s| s.index() >= stages);
    if let Some(stage) = unknown {
        return Err(Reason::Frozen(*stage));
    }
    Ok(())
}

/// Checks all ops, worker by worker. The refusal marks the first that `check` does not accept.
fn each_op(
    timetable: &Timetable,
    mut check: impl FnMut(WorkerId, Op) -> Result<(), Reason>,
) -> Result<(), Refusal> {
    for (worker, row) in (0..).map(WorkerId).zip(&timetable.rows) {
        for (at, cell) in row.iter().enumerate() {
            for op in cell.ops() {
                if matches!(cell, Cell::Pair(..)) && op.kind.lane() == Lane::Moves {
                    return Err(refusal(timetable, Some((worker, at)), Reason::PairedMove(op)));
                }
                if matches!(op.kind, Kind::Work(_)) {
                    return Err(refusal(timetable, Some((worker, at)), Reason::OwnWork(op)));
                }
                check(worker, op)
                    .map_err(|reason| refusal(timetable, Some((worker, at)), reason))?;
            }
        }
    }
    Ok(())
}

fn well_formed(
    timetable: &Timetable,
    window: &Window,
    worker: WorkerId,
    op: &Op,
) -> Result<(), Reason> {
    let placement = &timetable.placement;
    let end = u64::from(op.span.start) + u64::from(op.span.len);
    let is_known = op.pipe.index() < placement.n_pipes()
        && op.stage.index() < placement.n_stages()
        && op.span.len > 0
        && end <= u64::from(timetable.n_units());
    if !is_known {
        return Err(Reason::Unknown(*op));
    }
    let owner = placement.worker(op.pipe, op.stage);
    let is_of_another = matches!(op.kind, Kind::Keep | Kind::Return);
    if is_of_another == (owner == worker) {
        return Err(Reason::Misplaced { op: *op, owner });
    }
    if !window.is_of_one_update(op.span) {
        return Err(Reason::TwoUpdates(*op));
    }
    if timetable.is_sliced && op.span.len > 1 {
        return Err(Reason::SeveralSlices(*op));
    }
    if op.kind.lane() == Lane::Moves && op.span.len > 1 {
        return Err(Reason::SeveralMoves(*op));
    }
    Ok(())
}

/// The place of the op of this kind, stage and unit, on any worker.
fn cell_of(
    timetable: &Timetable,
    kind: Kind,
    stage: StageId,
    unit: u32,
) -> Option<(WorkerId, usize)> {
    let is_it = |op: Op| (op.kind, op.stage) == (kind, stage) && op.span.units().any(|u| u == unit);
    let mut rows = (0..).map(WorkerId).zip(&timetable.rows);
    rows.find_map(|(worker, row)| {
        Some((worker, row.iter().position(|cell| cell.ops().any(is_it))?))
    })
}

fn refusal(timetable: &Timetable, at: Option<(WorkerId, usize)>, reason: Reason) -> Refusal {
    let drawing = at.map(|(worker, cell)| marked_row(timetable.row(worker), cell));
    let schedule = timetable.schedule.clone();
    Refusal { schedule, at, reason, drawing: drawing.unwrap_or_default() }
}

/// The passes of each (micro-batch unit, stage) so far.
struct PassesDone<'d> {
    demand: &'d Demand,
    n_units: u32,
    n_stages: usize,
    pipe_of: Vec<Option<PipeId>>,
    done: Vec<u8>,
    /// By stage: the passes that each of its micro-batches has.
    wanted: Vec<u8>,
}

impl PassesDone<'_> {
    const OFFLOAD: u8 = 16;
    const RELOAD: u8 = 32;
    const KEEP: u8 = 64;
    const RETURN: u8 = 128;
    const FORWARD: u8 = 1;
    const INPUT: u8 = 2;
    const WEIGHT: u8 = 4;
    const RECOMPUTE: u8 = 8;

    fn new<'d>(timetable: &Timetable, demand: &'d Demand) -> PassesDone<'d> {
        let n_units = timetable.n_units();
        let n_stages = timetable.placement.n_stages();
        let wanted = |stage| match demand.of(stage) {
            Wanted::Trained => Self::FORWARD | Self::INPUT | Self::WEIGHT,
            Wanted::InputGradient => Self::FORWARD | Self::INPUT,
            Wanted::Output => Self::FORWARD,
        };
        let wanted = timetable.graph.stages().map(wanted).collect();
        let pipe_of = vec![None; n_units as usize];
        let done = vec![0; n_units as usize * n_stages];
        PassesDone { demand, n_units, n_stages, pipe_of, done, wanted }
    }

    fn add(&mut self, op: Op) -> Result<(), Reason> {
        let bits = match op.kind {
            Kind::Forward => Self::FORWARD,
            Kind::Backward => Self::INPUT | Self::WEIGHT,
            Kind::BackwardInput => Self::INPUT,
            Kind::BackwardWeight => Self::WEIGHT,
            Kind::Recompute => Self::RECOMPUTE,
            Kind::Offload => Self::OFFLOAD,
            Kind::Reload => Self::RELOAD,
            Kind::Keep => Self::KEEP,
            Kind::Return => Self::RETURN,
            Kind::Work(_) => 0,
        };
        for unit in op.span.units() {
            if *self.pipe_of[unit as usize].get_or_insert(op.pipe) != op.pipe {
                return Err(Reason::TwoPipes { op, unit });
            }
            let done = &mut self.done[unit as usize * self.n_stages + op.stage.index()];
            if *done & bits != 0 {
                return Err(Reason::Repeated(op));
            }
            *done |= bits;
        }
        Ok(())
    }

    /// The first missing pass, and the reason why it should exist.
    fn absent(&self) -> Option<(u32, StageId, Reason)> {
        let of = |at: usize| ((at / self.n_stages) as u32, StageId((at % self.n_stages) as u16));
        let refused = |at, reason: fn(u32, StageId, u8) -> Reason| {
            let (unit, stage) = of(at);
            Some((unit, stage, reason(unit, stage, self.done[at])))
        };
        let passes_it = |at: usize| {
            let (unit, stage) = of(at);
            unit < self.demand.n_units(stage, self.n_units)
        };
        let mut each = self.done.iter().zip(self.wanted.iter().cycle()).enumerate();
        let is_absent =
            |(at, (done, wanted)): (usize, (&u8, &u8))| done & wanted != *wanted && passes_it(at);
        if let Some(at) = each.position(is_absent) {
            return refused(at, |unit, stage, done| Reason::Absent {
                unit,
                stage,
                pass: pass(done),
            });
        }
        let recomputes = |done: &u8| done & Self::RECOMPUTE != 0;
        let of_pipe = |at: usize| {
            let (unit, stage) = of(at);
            (self.pipe_of[unit as usize], stage)
        };
        let all = || self.done.iter().enumerate();
        let again = all().filter(|(_, done)| recomputes(done));
        let recomputed: FxHashSet<_> = again.map(|(at, _)| of_pipe(at)).collect();
        let is_kept = |(at, done): (usize, &u8)| {
            !recomputes(done) && recomputed.contains(&of_pipe(at)) && passes_it(at)
        };
        if !recomputed.is_empty()
            && let Some(at) = all().position(is_kept)
        {
            return refused(at, |unit, stage, _| Reason::Unrecomputed { unit, stage });
        }
        let at = self.done.iter().position(|done| lone_move(*done).is_some())?;
        refused(at, |unit, stage, done| {
            let [done, lacks] = lone_move(done).unwrap_or([Kind::Offload, Kind::Reload]);
            Reason::LoneMove { unit, stage, done, lacks }
        })
    }
}

/// A pass that is not among those `done`.
fn pass(done: u8) -> &'static str {
    let has = |bit| done & bit != 0;
    match (has(PassesDone::FORWARD), has(PassesDone::INPUT), has(PassesDone::WEIGHT)) {
        (false, ..) => "forward",
        (_, false, false) => "backward",
        (_, false, _) => "backward's input half",
        _ => "backward's weight half",
    }
}

/// A move among those `done` without its counterpart, and the counterpart.
fn lone_move(done: u8) -> Option<[Kind; 2]> {
    let pairs = [
        (PassesDone::OFFLOAD, PassesDone::RELOAD, [Kind::Offload, Kind::Reload]),
        (PassesDone::KEEP, PassesDone::RETURN, [Kind::Keep, Kind::Return]),
    ];
    pairs.into_iter().find_map(|(away, back, [moved, returned])| {
        match (done & away != 0, done & back != 0) {
            (true, false) => Some([moved, returned]),
            (false, true) => Some([returned, moved]),
            _ => None,
        }
    })
}

//! The bubble: idle time of workers, split by cause.
//!
//! One definition holds for simulated and for measured timelines. A worker is idle while it neither
//! computes nor updates weights. Before an op it waits for a value of another worker until that
//! arrives, and this time is split:
//!
//! - While the value is not made yet, it waits for an **activation** or a **gradient**.
//! - From then on it waits for a **message**.
//! - While a later op of its row could begin, in no more activation memory than the row needs
//!   anyway, the cause is the **order**.
//!
//! Other idle time is a **move** of activations if the op waits for one (its input is not back yet,
//! or memory is not free yet) or one of the worker's moves is under way; a **reduction** if one of
//! the worker's reductions is under way; and the **step sync** after its last op, until the others
//! end, and before an op that reads new weights, until all gradients are there. The rest is
//! **other**: shared cores, and the engine itself. A simulation has none of it.

use rustc_hash::FxHashMap;

use crate::activation_memory::{ActivationMemory, is_within};
use crate::analyze::simulation::critical::Causes;
use crate::analyze::simulation::timeline::{Awaited, Event, Timeline, Wait, Work};
use crate::analyze::simulation::update_waits::UpdateWaits;
use crate::costs::Costs;
use crate::effects::{Token, TokenKind};
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Lane};
use crate::program::{Instr, Program};

/// Idle time of a worker, by cause.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct IdleTime {
    /// An activation was not made yet.
    pub activation: f64,
    /// A gradient was not made yet.
    pub gradient: f64,
    /// A message was under way.
    pub message: f64,
    /// The next op of the row waited, though a later one could run.
    pub order: f64,
    /// Gradients were reduced.
    pub reduction: f64,
    /// Activations were moved.
    pub moves: f64,
    /// The worker had done its part of the step, or waited for the gradients of others.
    pub sync: f64,
    /// Cores were shared, or the engine was at work.
    pub other: f64,
}

impl IdleTime {
    /// Each cause with its name in reports.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        [
            ("activation", self.activation),
            ("gradient", self.gradient),
            ("message", self.message),
            ("order", self.order),
            ("reduction", self.reduction),
            ("move", self.moves),
            ("step sync", self.sync),
            ("other", self.other),
        ]
    }

    /// Causes that take at least a twentieth of a percent, largest first. The values are shares.
    pub fn largest(&self) -> Vec<(&'static str, f64)> {
        let mut causes = self.named().to_vec();
        causes.retain(|(_, share)| *share >= 5e-4);
        causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        causes
    }

    /// Sum of all causes.
    pub fn total(&self) -> f64 {
        self.named().iter().map(|(_, time)| time).sum()
    }

    /// The fraction of the time of all workers for each cause. They add up to the bubble ratio.
    pub fn shares(each: &[IdleTime], makespan: f64) -> IdleTime {
        let total = makespan * each.len() as f64;
        let share = |cause: fn(&IdleTime) -> f64| {
            if total > 0.0 { each.iter().map(cause).sum::<f64>() / total } else { 0.0 }
        };
        IdleTime {
            activation: share(|idle| idle.activation),
            gradient: share(|idle| idle.gradient),
            message: share(|idle| idle.message),
            order: share(|idle| idle.order),
            reduction: share(|idle| idle.reduction),
            moves: share(|idle| idle.moves),
            sync: share(|idle| idle.sync),
            other: share(|idle| idle.other),
        }
    }
}

/// Idle time of each worker in a simulated timeline, or in one of mock compute with messages at
/// their `costs`.
pub fn simulated_idle(program: &Program, timeline: &Timeline, costs: &impl Costs) -> Vec<IdleTime> {
    idle(program, timeline, true, |token, made| made + costs.message(token))
}

/// Idle time of each worker of a measured timeline that begins at 0, with its waits.
pub fn measured_idle(program: &Program, timeline: &Timeline, waits: &[Wait]) -> Vec<IdleTime> {
    let arrived = waits.iter().filter_map(|wait| match wait.awaited {
        Awaited::Message(token) => Some((token, wait.end)),
        _ => None,
    });
    let arrived: FxHashMap<Token, f64> = arrived.collect();
    idle(program, timeline, false, |token, made| arrived.get(token).copied().unwrap_or(made))
}

/// Idle time of each worker. `arrives` returns the time at which a value arrives that another
/// worker made at a given time. In a simulation an op after updates waits only for them and its
/// inputs.
fn idle(
    program: &Program,
    timeline: &Timeline,
    is_simulated: bool,
    arrives: impl Fn(&Token, f64) -> f64,
) -> Vec<IdleTime> {
    let causes = Causes::of(program, timeline);
    let updates = UpdateWaits::of(program, timeline);
    let makespan = timeline.makespan();
    let memory = ActivationMemory::new(program.placement(), program.units_per_micro());
    let workers = (0..timeline.n_workers).map(|w| WorkerId(w as u16));
    let of_worker = |(worker, row): (WorkerId, BusyRow<'_>)| {
        let inputs = |cell: &Cell| Inputs::of(program, (worker, cell), timeline, &causes, &arrives);
        let updated: Vec<_> = updates_before(worker, &row.busy, &updates).collect();
        let later = Later::of((program, worker), &row.busy, &updated, &memory, &inputs);
        let mut held = held_before(program, worker, &memory).into_iter();
        let mut idle = IdleTime::default();
        let mut free = 0.0;
        for (at, event) in row.busy.iter().enumerate() {
            let gap = IdleGap { from: free, to: event.start };
            free = free.max(event.end);
            let Work::Cell(cell) = event.work else {
                idle.add_rest(gap, &row.reductions, |idle| &mut idle.sync);
                continue;
            };
            let held = held.next().unwrap_or(f64::INFINITY);
            if gap.len() > 0.0 {
                let could = later.ready(at + 1, held, program.peaks()[worker.index()]);
                let could = could.max(updated[at].unwrap_or(0.0));
                let rest = idle.add_wait(gap, &inputs(&cell), could);
                let moved = causes.moved(worker, &cell, program, timeline).unwrap_or(gap.to);
                for rest in idle.add_moves(rest, moved, &row.moves) {
                    let updated = match updated[at] {
                        Some(_) if is_simulated => rest.to,
                        updated => updated.unwrap_or(0.0),
                    };
                    let (sync, rest) = rest.split(updated);
                    idle.add_rest(sync, &row.reductions, |idle| &mut idle.sync);
                    idle.add_rest(rest, &row.reductions, |idle| &mut idle.other);
                }
            }
        }
        idle.add_rest(IdleGap { from: free, to: makespan }, &row.reductions, |idle| &mut idle.sync);
        idle
    };
    workers.zip(rows(timeline)).map(of_worker).collect()
}

/// For each event of a busy worker, the time at which the updates that it waits for are done; only
/// ops wait for updates.
fn updates_before(
    worker: WorkerId,
    busy: &[&Event],
    updates: &UpdateWaits,
) -> impl Iterator<Item = Option<f64>> {
    let mut n_cells = 0;
    busy.iter().map(move |event| match event.work {
        Work::Cell(_) => {
            n_cells += 1;
            updates.before(worker, n_cells - 1)
        }
        _ => None,
    })
}

/// The activation memory of a worker before each of its compute cells, in the order of its row.
fn held_before(program: &Program, worker: WorkerId, memory: &ActivationMemory) -> Vec<f64> {
    let mut held = 0.0;
    let mut before = Vec::new();
    for instr in &program.rows()[worker.index()] {
        let Instr::Run(cell) = instr else { continue };
        if cell.lane() == Lane::Compute {
            before.push(held);
        }
        let (more, less) = memory.change(worker, cell, program.rules());
        held += more - less;
    }
    before
}

/// The events of a worker, in order.
#[derive(Clone, Default)]
struct BusyRow<'t> {
    /// Compute and updates.
    busy: Vec<&'t Event>,
    /// Times of reductions, sorted and disjoint.
    reductions: Vec<IdleGap>,
    moves: Vec<&'t Event>,
}

fn rows(timeline: &Timeline) -> Vec<BusyRow<'_>> {
    let mut rows = vec![BusyRow::default(); timeline.n_workers];
    for event in &timeline.events {
        let row = &mut rows[event.worker.index()];
        match event.work {
            Work::Reduce(_) => {
                let from = row.reductions.last().map_or(event.start, |p| p.to.max(event.start));
                row.reductions.push(IdleGap { from, to: event.end.max(from) });
            }
            Work::Cell(_) | Work::Step(_) => row.busy.push(event),
            Work::Move(_) => row.moves.push(event),
        }
    }
    rows
}

/// A time in which a worker is idle.
#[derive(Clone, Copy)]
struct IdleGap {
    from: f64,
    to: f64,
}

impl IdleGap {
    fn len(self) -> f64 {
        (self.to - self.from).max(0.0)
    }

    /// Its parts before and after a time.
    fn split(self, at: f64) -> (IdleGap, IdleGap) {
        let at = at.clamp(self.from, self.to.max(self.from));
        (IdleGap { to: at, ..self }, IdleGap { from: at, ..self })
    }
}

/// The times at which the inputs of a cell are available.
#[derive(Clone, Copy)]
struct Inputs {
    /// The time at which all inputs are available.
    ready: f64,
    /// The time at which all received inputs are made, and whether the last of them is a gradient.
    made: f64,
    is_gradient: bool,
    /// The time at which all received inputs have arrived.
    arrived: f64,
}

impl Inputs {
    fn of(
        program: &Program,
        (worker, cell): (WorkerId, &Cell),
        timeline: &Timeline,
        causes: &Causes,
        arrives: impl Fn(&Token, f64) -> f64,
    ) -> Inputs {
        let mut inputs = Inputs { made: 0.0, is_gradient: false, ready: 0.0, arrived: 0.0 };
        let made_by = |token: &Token| {
            let &(maker, by) = causes.makers.get(token)?;
            Some((timeline.events[maker as usize].end, by))
        };
        for token in program.rules().cell_effects(cell).eats {
            let Some((made, by)) = made_by(&token) else { continue };
            let there = if by == worker { made } else { arrives(&token, made) };
            inputs.ready = inputs.ready.max(there);
        }
        for token in causes.received(worker, cell) {
            let Some((made, _)) = made_by(token) else { continue };
            if made > inputs.made {
                (inputs.made, inputs.is_gradient) = (made, token.kind == TokenKind::Gradient);
            }
            inputs.arrived = inputs.arrived.max(arrives(token, made));
        }
        inputs
    }
}

/// For each place of a row, the earliest time at which any of the following cells could begin, up
/// to the next wait for updates. Cells that add to activation memory are listed separately, with
/// the amount.
struct Later {
    adding: Vec<(f64, f64)>,
    freeing: Vec<f64>,
}

impl Later {
    fn of(
        (program, worker): (&Program, WorkerId),
        busy: &[&Event],
        updated: &[Option<f64>],
        memory: &ActivationMemory,
        inputs: &impl Fn(&Cell) -> Inputs,
    ) -> Later {
        let never = f64::INFINITY;
        let mut later = Later {
            adding: vec![(never, 0.0); busy.len() + 1],
            freeing: vec![never; busy.len() + 1],
        };
        for (at, event) in busy.iter().enumerate().rev() {
            let Work::Cell(cell) = event.work else { continue };
            if updated[at].is_some() {
                continue; // nothing from here on may run before the updates
            }
            (later.adding[at], later.freeing[at]) = (later.adding[at + 1], later.freeing[at + 1]);
            let ready = inputs(&cell).ready;
            let (more, _) = memory.change(worker, &cell, program.rules());
            if more == 0.0 {
                later.freeing[at] = later.freeing[at].min(ready);
            } else if ready < later.adding[at].0 {
                later.adding[at] = (ready, more);
            }
        }
        later
    }

    /// The earliest time at which a cell from a place on could begin, with `held` in memory and at
    /// most `peak` allowed.
    fn ready(&self, from: usize, held: f64, peak: f64) -> f64 {
        let (adding, more) = self.adding[from];
        let adding = if is_within(held + more, Some(peak)) { adding } else { f64::INFINITY };
        adding.min(self.freeing[from])
    }
}

impl IdleTime {
    /// Adds the part of a gap before a cell in which its inputs were not there, and returns the
    /// rest; `could` is when another cell could have begun.
    fn add_wait(&mut self, gap: IdleGap, inputs: &Inputs, could: f64) -> IdleGap {
        let (wait, rest) = gap.split(inputs.arrived);
        let (wait, order) = wait.split(could);
        self.order += order.len();
        let (unmade, message) = wait.split(inputs.made);
        if inputs.is_gradient {
            self.gradient += unmade.len();
        } else {
            self.activation += unmade.len();
        }
        self.message += message.len();
        rest
    }

    /// Adds the part of a gap until the activations for the next op were `moved`, and the part
    /// within the worker's moves. Returns the rest.
    fn add_moves(&mut self, gap: IdleGap, moved: f64, moves: &[&Event]) -> Vec<IdleGap> {
        let (awaited, mut rest) = gap.split(moved);
        self.moves += awaited.len();
        let mut left = Vec::new();
        let first = moves.partition_point(|event| event.end <= rest.from);
        for event in moves[first..].iter().take_while(|event| event.start < gap.to) {
            let (before, from) = rest.split(event.start);
            let (under_way, after) = from.split(event.end);
            self.moves += under_way.len();
            left.push(before);
            rest = after;
        }
        left.push(rest);
        left
    }

    /// Adds a gap: the part during reductions to them, and the rest to the cause `rest`.
    fn add_rest(
        &mut self,
        gap: IdleGap,
        reductions: &[IdleGap],
        rest: impl Fn(&mut IdleTime) -> &mut f64,
    ) {
        let first = reductions.partition_point(|part| part.to <= gap.from);
        let parts = reductions[first..].iter().take_while(|part| part.from < gap.to);
        let within = |part: &IdleGap| {
            IdleGap { from: part.from.max(gap.from), to: part.to.min(gap.to) }.len()
        };
        let reducing: f64 = parts.map(within).sum();
        self.reduction += reducing;
        *rest(self) += gap.len() - reducing;
    }
}

#[cfg(test)]
mod tests;

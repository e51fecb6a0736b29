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
//! end, and before an op that reads new weights, until all gradients are summed. The rest is
//! **other**: shared cores, and the engine itself. A simulation has none of it.

use rustc_hash::FxHashMap;

use crate::activation_memory::{ActivationMemory, is_within};
use crate::analyze::simulation::input::Input;
use crate::analyze::simulation::makers::Makers;
use crate::analyze::simulation::timeline::{Awaited, Event, Timeline, Wait, Work};
use crate::analyze::simulation::update_waits::UpdateWaits;
use crate::costs::Costs;
use crate::effects::{Token, TokenKind};
use crate::ir::ids::WorkerId;
use crate::ir::op::Lane;
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
    let makers = Makers::of(program, timeline);
    let updates = UpdateWaits::of(program, timeline);
    let makespan = timeline.makespan();
    let memory = ActivationMemory::new(program.placement(), program.units_per_micro());
    let workers = (0..timeline.n_workers).map(|w| WorkerId(w as u16));
    let of_worker = |(worker, row): (WorkerId, BusyRow<'_>)| {
        let mut cells = cells((program, worker), &makers, &memory, &arrives);
        for (nth, cell) in cells.iter_mut().enumerate() {
            cell.updated = updates.before(worker, nth);
        }
        cells.resize(row.busy.iter().filter(|work| work.is_cell).count(), BusyCell::default());
        let later = Later::of(&cells);
        let mut cells = cells.iter().zip(&later[1..]);
        let mut idle = IdleTime::default();
        let mut free = 0.0;
        for work in &row.busy {
            let gap = IdleGap { from: free, to: work.from };
            free = free.max(work.to);
            let Some((cell, later)) = work.is_cell.then(|| cells.next()).flatten() else {
                idle.add_rest(gap, &row.reductions, |idle| &mut idle.sync);
                continue;
            };
            if gap.len() > 0.0 {
                let could = later.ready(cell.held, program.peaks()[worker.index()]);
                let could = could.max(cell.updated.unwrap_or(0.0));
                let rest = idle.add_wait(gap, &cell.inputs, could);
                for rest in idle.add_moves(rest, cell.moved.unwrap_or(gap.to), &row.moves) {
                    let updated = match cell.updated {
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

/// The facts about a cell that explain why its worker waits before it.
#[derive(Clone, Copy)]
struct BusyCell {
    inputs: Inputs,
    /// Activation memory of the worker before it, and the amount that it adds.
    held: f64,
    adds: f64,
    /// The time at which the moves that it waits for are done, see [`MovedActivations::before`].
    moved: Option<f64>,
    /// The time at which the updates that it waits for are done.
    updated: Option<f64>,
}

impl Default for BusyCell {
    fn default() -> BusyCell {
        let inputs = Inputs::default();
        BusyCell { inputs, held: f64::INFINITY, adds: 0.0, moved: Some(0.0), updated: None }
    }
}

/// The cells of a worker, in the order of their events.
fn cells(
    (program, worker): (&Program, WorkerId),
    makers: &Makers<'_>,
    memory: &ActivationMemory,
    arrives: impl Fn(&Token, f64) -> f64,
) -> Vec<BusyCell> {
    let mut held = held_before(program, worker, memory).into_iter();
    let mut cells = Vec::new();
    makers.each_cell(worker, |(cell, _), eaten, received| {
        let inputs = Inputs::of(eaten, received, &arrives);
        let moved = makers.moved.before(worker, cell, program);
        let (held, adds) = held.next().unwrap_or((f64::INFINITY, 0.0));
        cells.push(BusyCell { inputs, held, adds, moved, updated: None });
    });
    cells
}

/// The activation memory of a worker before each of its compute cells, in the order of its row, and
/// the amount that the cell adds.
fn held_before(program: &Program, worker: WorkerId, memory: &ActivationMemory) -> Vec<(f64, f64)> {
    let mut held = 0.0;
    let mut before = Vec::new();
    for instr in &program.rows()[worker.index()] {
        let Instr::Run(cell) = instr else { continue };
        let (more, less) = memory.change(worker, cell, program.rules());
        if cell.lane() == Lane::Compute {
            before.push((held, more));
        }
        held += more - less;
    }
    before
}

/// The events of a worker, in order.
#[derive(Clone, Default)]
struct BusyRow<'t> {
    /// Compute and updates.
    busy: Vec<BusyTime>,
    /// Times of reductions, sorted and disjoint.
    reductions: Vec<IdleGap>,
    moves: Vec<&'t Event>,
}

/// A time in which a worker runs a cell, or otherwise updates weights.
#[derive(Clone, Copy)]
struct BusyTime {
    from: f64,
    to: f64,
    is_cell: bool,
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
            Work::Cell(_) | Work::Step(_) => row.busy.push(BusyTime {
                from: event.start,
                to: event.end,
                is_cell: matches!(event.work, Work::Cell(_)),
            }),
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

    /// The parts of the gap before and after a time.
    fn split(self, at: f64) -> (IdleGap, IdleGap) {
        let at = at.clamp(self.from, self.to.max(self.from));
        (IdleGap { to: at, ..self }, IdleGap { from: at, ..self })
    }
}

/// The times at which the inputs of a cell are available.
#[derive(Clone, Copy, Default)]
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
    fn of(eaten: &[Input], received: &[Input], arrives: impl Fn(&Token, f64) -> f64) -> Inputs {
        let mut inputs = Inputs::default();
        for Input { token, maker, is_own } in eaten {
            let there = if *is_own { maker.end } else { arrives(token, maker.end) };
            inputs.ready = inputs.ready.max(there);
        }
        for Input { token, maker, .. } in received {
            if maker.end > inputs.made {
                (inputs.made, inputs.is_gradient) = (maker.end, token.kind == TokenKind::Gradient);
            }
            inputs.arrived = inputs.arrived.max(arrives(token, maker.end));
        }
        inputs
    }
}

/// The earliest times at which any of a row's cells from some place on could begin, up to the next
/// wait for updates.
#[derive(Clone, Copy)]
struct Later {
    /// Time of cells that add to activation memory, and the amount that they add.
    adding: (f64, f64),
    /// Time of other cells.
    freeing: f64,
}

impl Later {
    /// The times from each cell on, and from the end of the row on.
    fn of(cells: &[BusyCell]) -> Vec<Later> {
        let none = Later { adding: (f64::INFINITY, 0.0), freeing: f64::INFINITY };
        let mut later = vec![none; cells.len() + 1];
        for (at, cell) in cells.iter().enumerate().rev() {
            if cell.updated.is_some() {
                continue; // nothing from here on may run before the updates
            }
            let ready = cell.inputs.ready;
            later[at] = later[at + 1];
            if cell.adds == 0.0 {
                later[at].freeing = later[at].freeing.min(ready);
            } else if ready < later[at].adding.0 {
                later[at].adding = (ready, cell.adds);
            }
        }
        later
    }

    /// The earliest time at which one of the cells could begin, with `held` in memory and at most
    /// `peak` allowed.
    fn ready(&self, held: f64, peak: f64) -> f64 {
        let (adding, more) = self.adding;
        let adding = if is_within(held + more, Some(peak)) { adding } else { f64::INFINITY };
        adding.min(self.freeing)
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

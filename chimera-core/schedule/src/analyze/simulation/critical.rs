//! The critical path: what determined the time of a measured step.

use rustc_hash::FxHashMap;

use super::timeline::{Event, Timeline, Work};
use crate::costs::{Costs, of_cell};
use crate::effects::{Token, TokenKind};
use crate::ir::few::Few;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Lane, Op};
use crate::program::{Instr, Program};

/// Links each op to the event that let it begin: the last event it had to wait for. Then
/// [`critical_path`](Timeline::critical_path) works for measured timelines, too. Messages take
/// their `costs`.
pub fn link(program: &Program, timeline: &mut Timeline, costs: &impl Costs) {
    let causes = Causes::of(program, timeline);
    let mut last: Vec<Option<(f64, u32)>> = vec![None; timeline.n_workers];
    let ends: Vec<f64> = timeline.events.iter().map(|event| event.end).collect();
    for (index, event) in (0..).zip(&mut timeline.events) {
        let Work::Cell(cell) = event.work else { continue };
        let mut latest = last[event.worker.index()];
        for token in causes.received(event.worker, &cell) {
            let Some(&(maker, _)) = causes.makers.get(token) else { continue };
            let arrives = ends[maker as usize] + costs.message(token);
            if latest.is_none_or(|(at, _)| arrives > at) {
                latest = Some((arrives, maker));
            }
        }
        event.after = latest.map(|(_, by)| by);
        last[event.worker.index()] = Some((event.end, index));
    }
}

/// Length of a path of events, with each op and each message at its `costs`.
pub fn path_length(program: &Program, path: &[&Event], costs: &impl Costs) -> f64 {
    let cells = path.iter().filter_map(|event| match event.work {
        Work::Cell(cell) => Some((event.worker, cell)),
        Work::Reduce(_) | Work::Step(_) | Work::Move(_) => None,
    });
    let cells: Vec<(WorkerId, Cell)> = cells.collect();
    let compute: f64 = cells.iter().map(|(worker, cell)| of_cell(costs, *worker, cell)).sum();
    let received = received(program);
    let message = |pair: &[(WorkerId, Cell)]| {
        let [(from, maker), (to, eater)] = pair else { return 0.0 };
        let made = program.rules().cell_effects(maker).makes;
        let tokens = received.get(&(*to, eater.parts().0)).into_iter().flatten();
        let travels = tokens.filter(|token| from != to && made.contains(token));
        travels.map(|token| costs.message(token)).fold(0.0, f64::max)
    };
    compute + cells.windows(2).map(message).sum::<f64>()
}

/// The events that let cells begin.
pub(in crate::analyze) struct Causes {
    /// The event and the worker that made each token.
    pub(in crate::analyze) makers: FxHashMap<Token, (u32, WorkerId)>,
    received: Received,
    freeing: FreeingMoves,
}

/// The moves that free the memory that a worker waits for right before a cell, by the cell's first
/// op.
type FreeingMoves = FxHashMap<(WorkerId, Op), Few<Op>>;

/// The messages that a worker receives right before a cell, by the cell's first op.
type Received = FxHashMap<(WorkerId, Op), Few<Token>>;

impl Causes {
    pub(in crate::analyze) fn of(program: &Program, timeline: &Timeline) -> Causes {
        let mut makers = FxHashMap::default();
        for (index, event) in (0..).zip(&timeline.events) {
            let cell = match event.work {
                Work::Cell(cell) => cell,
                Work::Move(op) => op.into(),
                Work::Reduce(_) | Work::Step(_) => continue,
            };
            for token in program.rules().cell_effects(&cell).makes {
                makers.insert(token, (index, event.worker));
                if token.kind == TokenKind::Back {
                    // If no event shows when it was put together, the time is that of its return.
                    let back = Token { kind: TokenKind::Reloaded, ..token };
                    let owner = program.placement().worker(token.pipe, token.stage);
                    makers.entry(back).or_insert((index, owner));
                }
            }
        }
        Causes { makers, received: received(program), freeing: freeing(program) }
    }

    /// The time at which the moves that a cell waits for were done, or 0 if it waits for none.
    /// `None` if they have no event, since they take no time.
    pub(in crate::analyze) fn moved(
        &self,
        worker: WorkerId,
        cell: &Cell,
        program: &Program,
        timeline: &Timeline,
    ) -> Option<f64> {
        let rules = program.rules();
        if !rules.has_moves() {
            return Some(0.0);
        }
        let made = |token: &Token| Some(timeline.events[self.makers.get(token)?.0 as usize].end);
        let eaten = rules.cell_effects(cell).eats.into_iter();
        let reloaded = eaten.filter(|token| token.kind == TokenKind::Reloaded);
        let freed = self.freeing.get(&(worker, cell.parts().0)).into_iter().flatten();
        let freed = freed.flat_map(|op| rules.effects(op).makes);
        reloaded
            .chain(freed)
            .map(|token| made(&token))
            .try_fold(0.0, |last, made| Some(made?.max(last)))
    }

    /// The messages that a worker receives right before a cell.
    pub(in crate::analyze) fn received(&self, worker: WorkerId, cell: &Cell) -> &[Token] {
        self.received.get(&(worker, cell.parts().0)).map_or(&[], |tokens| tokens)
    }
}

fn received(program: &Program) -> Received {
    let mut received = Received::default();
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        let mut tokens = Few::new();
        for instr in row {
            match instr {
                Instr::Recv(token, _) => tokens.push(*token),
                Instr::Run(cell) if !tokens.is_empty() => {
                    received.insert((worker, cell.parts().0), std::mem::take(&mut tokens));
                }
                _ => {}
            }
        }
    }
    received
}

fn freeing(program: &Program) -> FreeingMoves {
    let mut freeing = FreeingMoves::default();
    if !program.rules().has_moves() {
        return freeing;
    }
    for (worker, row) in (0..).map(WorkerId).zip(program.rows()) {
        let (mut gives, mut last) = (FxHashMap::<Token, Op>::default(), None);
        for instr in row {
            match instr {
                Instr::Run(cell) => last = Some(cell.parts().0),
                Instr::Give(token) if instr.lane() == Lane::Moves => {
                    gives.extend(last.map(|op| (*token, op)));
                }
                _ => {}
            }
        }
        let mut taken = Few::new();
        for instr in row {
            match instr {
                Instr::Take(token) => taken.extend(gives.get(token).copied()),
                Instr::Run(cell) if !taken.is_empty() => {
                    freeing.insert((worker, cell.parts().0), std::mem::take(&mut taken));
                }
                _ => {}
            }
        }
    }
    freeing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::simulate;
    use crate::costs::UniformCosts;
    use crate::lower::{Hoist, Lowering, Recompute, lower, recompute};
    use crate::schedule::{SCHEDULES, Shape};

    /// The path of a simulated step, reconstructed from times, is as long as the step.
    #[test]
    fn a_path_found_by_times_is_as_long_as_the_step() {
        for schedule in SCHEDULES {
            let timetable = schedule.timetable(&Shape::new(4, 8)).expect("fits");
            let costs = UniformCosts::new(1.0, 2.5, 0.25).per_units(timetable.units_per_micro);
            let how = Lowering::default();
            let (all, hoist) = (|_, _| Recompute::Full, Hoist::OnDemand);
            let timetable = recompute(&timetable, all, hoist, &how, &costs).expect("sound");
            let program = lower(&timetable, &how).expect("proven");
            let mut timeline = simulate(&program, &costs);
            timeline.events.iter_mut().for_each(|event| event.after = None);
            link(&program, &mut timeline, &costs);
            let length = path_length(&program, &timeline.critical_path(), &costs);
            let makespan = timeline.makespan();
            let name = schedule.name();
            assert!((length - makespan).abs() < 1e-9, "{name}: {length} of {makespan}");
        }
    }
}

//! The critical path: what determined the time of a measured step.

use rustc_hash::FxHashMap;

use super::input::Input;
use super::makers::Makers;
use super::timeline::{Event, Timeline, Work};
use crate::costs::{Costs, of_cell};
use crate::effects::Token;
use crate::ir::few::Few;
use crate::ir::ids::WorkerId;
use crate::ir::op::{Cell, Op};
use crate::program::{Instr, Program};

/// Links each op to the event that let it begin: the last event it had to wait for. Then
/// [`critical_path`](Timeline::critical_path) works for measured timelines, too. Messages take
/// their `costs`.
pub fn link(program: &Program, timeline: &mut Timeline, costs: &impl Costs) {
    let makers = Makers::of(program, timeline);
    for worker in (0..program.rows().len() as u16).map(WorkerId) {
        let mut last: Option<(f64, u32)> = None;
        makers.each_cell(worker, |(_, cell), _, received| {
            let mut latest = last;
            for Input { token, maker, .. } in received {
                let arrives = maker.end + costs.message(token);
                if latest.is_none_or(|(at, _)| arrives > at) {
                    latest = Some((arrives, maker.event));
                }
            }
            timeline.events[cell.event as usize].after = latest.map(|(_, by)| by);
            last = Some((cell.end, cell.event));
        });
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

/// The messages that a worker receives right before a cell, by the cell's first op.
type Received = FxHashMap<(WorkerId, Op), Few<Token>>;

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
            let timetable = if timetable.update.row().reads_one_version() {
                recompute(&timetable, all, hoist, &how, &costs).expect("sound")
            } else {
                timetable
            };
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

//! Windows in which a worker computes nothing, which a caller's own work can fill (PipeFill,
//! FreeRide).

use std::collections::VecDeque;

use crate::activation_memory::ActivationMemory;
use crate::analyze::simulation::timeline::{Timeline, Work};
use crate::costs::is_shorter;
use crate::ir::ids::WorkerId;
use crate::program::Program;

/// A time in which a worker neither computes nor updates weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FreeWindow {
    /// Start of the window.
    pub from: f64,
    /// End of the window.
    pub to: f64,
    /// Free activation memory in this time: the micro-batches by which the worker holds less than
    /// at its peak.
    pub free: f64,
}

/// The windows of each worker, from the start of the step to its end, in order.
pub fn windows(program: &Program, timeline: &Timeline) -> Vec<Vec<FreeWindow>> {
    let makespan = timeline.makespan();
    let mut held = HeldOverTime::of(program, timeline);
    let mut workers = vec![(0.0f64, Vec::new()); timeline.n_workers];
    let mut window = |w: usize, from: f64, to: f64| {
        is_shorter(from, to).then(|| {
            let free = (program.peaks()[w] - held.most(w, from, to)).max(0.0);
            FreeWindow { from, to, free }
        })
    };
    for event in timeline.events.iter().filter(|event| event.work.occupies()) {
        let w = event.worker.index();
        let (from, windows) = &mut workers[w];
        windows.extend(window(w, *from, event.start));
        *from = from.max(event.end);
    }
    let last = |(w, (from, mut windows)): (usize, (f64, Vec<FreeWindow>))| {
        windows.extend(window(w, from, makespan));
        windows
    };
    workers.into_iter().enumerate().map(last).collect()
}

/// The saved activations that each worker holds, over time.
struct HeldOverTime {
    /// For each worker, the times and amounts of changes.
    changes: Vec<VecDeque<(f64, f64)>>,
    now: Vec<f64>,
}

impl HeldOverTime {
    fn of(program: &Program, timeline: &Timeline) -> HeldOverTime {
        let memory = ActivationMemory::new(program.placement(), program.units_per_micro());
        let mut changes = vec![Vec::new(); timeline.n_workers];
        for event in &timeline.events {
            let mut change = |worker: WorkerId, more: f64, less: f64| {
                changes[worker.index()].extend([(event.start, more), (event.end, -less)]);
            };
            match event.work {
                Work::Cell(cell) => {
                    let (more, less) = memory.change(event.worker, &cell, program.rules());
                    change(event.worker, more, less);
                }
                Work::Move(op) if program.rules().is_transfer(&op) => {
                    let ((from, to), size) = (program.move_of(&op), memory.moved(&op));
                    from.into_iter().for_each(|from| change(from, 0.0, size));
                    to.into_iter().for_each(|to| change(to, size, 0.0));
                }
                _ => {}
            }
        }
        let in_order = |mut changes: Vec<(f64, f64)>| {
            changes.retain(|(_, by)| *by != 0.0);
            // Memory that is freed at a time can be filled at the same time.
            changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            changes.into()
        };
        let changes = changes.into_iter().map(in_order).collect();
        HeldOverTime { changes, now: vec![0.0; timeline.n_workers] }
    }

    /// The most that a worker holds between two times, neither of which is earlier than in the last
    /// call.
    fn most(&mut self, w: usize, from: f64, to: f64) -> f64 {
        let changes = &mut self.changes[w];
        let now = &mut self.now[w];
        let mut most = f64::NEG_INFINITY;
        while let Some((at, by)) = changes.front().copied().filter(|(at, _)| *at < to) {
            if at > from {
                most = most.max(*now);
            }
            *now += by;
            changes.pop_front();
        }
        most.max(*now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{Event, simulate};
    use crate::costs::UniformCosts;
    use crate::ir::op::Kind;
    use crate::lower::{Lowering, bpipe, lower, offload};
    use crate::schedule::{Shape, find};

    #[test]
    fn windows_of_chimera_are_those_that_pipefisher_fills() {
        let timetable = find("chimera").expect("known").timetable(&Shape::new(8, 8)).expect("fits");
        let program = lower(&timetable, &Lowering::default()).expect("proven");
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
        let windows = windows(&program, &timeline);
        let lengths =
            |w: usize| windows[w].iter().map(|window| window.to - window.from).collect::<Vec<_>>();
        assert_eq!(lengths(0), [3.0, 3.0, 2.0, 2.0, 2.0]);
        assert_eq!(lengths(1), [1.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(lengths(2), [2.0, 1.0, 2.0, 1.0, 2.0, 4.0]);
        assert_eq!(lengths(3), [3.0, 3.0, 6.0]);
        assert_eq!(lengths(7), lengths(0));
        // A worker holds nothing before its first forward and after its last backward.
        assert!(windows.iter().flatten().all(|window| window.free >= 0.0));
        assert_eq!(windows[3][2].free, program.peaks()[3]);
    }

    /// The saved activations that a worker of 1F1B, with one stage of one pipe, holds at a time:
    /// its own, and what it keeps for others.
    fn held_at(program: &Program, timeline: &Timeline, worker: WorkerId, at: f64) -> f64 {
        let of_event = |event: &Event| match event.work {
            Work::Cell(cell) if event.worker == worker => match cell.parts().0.kind {
                Kind::Forward => f64::from(u8::from(event.start <= at)),
                Kind::Backward => -f64::from(u8::from(event.end <= at)),
                _ => 0.0,
            },
            Work::Move(op) => {
                let (from, to) = program.move_of(&op);
                let came = to == Some(worker) && event.start <= at;
                let went = from == Some(worker) && event.end <= at;
                f64::from(u8::from(came)) - f64::from(u8::from(went))
            }
            _ => 0.0,
        };
        timeline.events.iter().map(of_event).sum()
    }

    #[test]
    fn windows_account_for_moves_in_and_out() {
        let plain = find("1f1b").expect("known").timetable(&Shape::new(4, 8)).expect("fits");
        let costs = UniformCosts { transfer: 0.75, ..UniformCosts::new(1.0, 2.0, 0.0) };
        let shared = bpipe(plain.clone(), &costs).expect("sound");
        let hosted = offload(plain.clone(), &Lowering::default(), &costs).expect("sound");
        for (timetable, has_moves) in [(plain, false), (shared, true), (hosted, true)] {
            let program = lower(&timetable, &Lowering::default()).expect("proven");
            let timeline = simulate(&program, &costs);
            let moves = || timeline.events.iter().filter(|e| matches!(e.work, Work::Move(_)));
            assert_eq!(moves().count() > 0, has_moves);
            for (worker, windows) in (0..).map(WorkerId).zip(windows(&program, &timeline)) {
                for FreeWindow { from, to, free } in windows {
                    let changes = moves().flat_map(|e| [e.start, e.end]);
                    let times = changes.filter(|at| *at > from && *at < to).chain([from]);
                    let held = times.map(|at| held_at(&program, &timeline, worker, at));
                    let held = held.fold(0.0, f64::max);
                    let peak = program.peaks()[worker.index()];
                    assert_eq!(free, peak - held, "{worker} from {from} to {to}");
                }
            }
        }
    }

    /// Windows are the same as if moves took a tiny time.
    #[test]
    fn moves_that_take_no_time_count() {
        const NEXT_TO_NONE: f64 = 1e-9;
        const SOON: f64 = 1e-6;
        for (depth, n) in [(4, 8), (4, 5), (6, 12), (2, 7)] {
            let plain =
                find("1f1b").expect("known").timetable(&Shape::new(depth, n)).expect("fits");
            let costs = UniformCosts::new(1.0, 2.0, 0.0);
            let shared = bpipe(plain.clone(), &costs).expect("sound");
            let hosted = offload(plain, &Lowering::default(), &costs).expect("sound");
            for timetable in [shared, hosted] {
                let program = lower(&timetable, &Lowering::default()).expect("proven");
                let timeline = simulate(&program, &costs);
                let timed = simulate(&program, &UniformCosts { transfer: NEXT_TO_NONE, ..costs });
                let moves = timed.events.iter().filter(|e| matches!(e.work, Work::Move(_)));
                let moved: Vec<f64> = moves.map(|e| e.end).collect();
                for (worker, windows) in (0..).map(WorkerId).zip(windows(&program, &timeline)) {
                    for FreeWindow { from, to, free } in windows {
                        let changes = moved.iter().copied().filter(|at| *at > from);
                        let times = changes.chain([from]).map(|at| at + SOON).filter(|at| *at < to);
                        let held = times.map(|at| held_at(&program, &timed, worker, at));
                        let held = held.fold(0.0, f64::max);
                        let peak = program.peaks()[worker.index()];
                        assert_eq!(free, peak - held, "D = {depth}, {worker} from {from} to {to}");
                    }
                }
            }
        }
    }
}

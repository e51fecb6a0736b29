//! Schedules of the table as programs.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::timetable::Timetable;

pub(crate) fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).unwrap_or_else(|unfit| panic!("{unfit}"))
}

pub(crate) fn program(schedule: &str, shape: &Shape, sync: Sync) -> Program {
    let how = Lowering { sync, ..Lowering::default() };
    lower(&timetable(schedule, shape), &how).unwrap_or_else(|e| panic!("{shape:?}: {e}"))
}

pub(crate) fn makespan(program: &Program, forward: f64, backward: f64) -> f64 {
    let costs = UniformCosts::new(forward, backward, 0.0);
    simulate(program, &costs.per_units(program.units_per_micro())).makespan()
}

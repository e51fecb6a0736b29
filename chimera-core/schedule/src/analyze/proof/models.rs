//! Checks of the micro-batches of each model.

use super::refusal::Reason;
use crate::effects::Demand;
use crate::ir::op::Op;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;

/// Checks the numbers of micro-batches of models, if they differ.
pub(super) fn check_models(timetable: &Timetable) -> Result<(), Reason> {
    let given = &timetable.micro_batches_of;
    if given.is_empty() {
        return Ok(());
    }
    if timetable.update != Update::Flush {
        return Err(Reason::ModelsInWindow);
    }
    let models = timetable.graph.n_models();
    let n_micro_batches = timetable.n_micro_batches;
    if given.len() != models || given.contains(&0) || given.iter().max() != Some(&n_micro_batches) {
        let given = given.clone();
        return Err(Reason::Models { given, models, n_micro_batches });
    }
    Ok(())
}

/// Checks that the model of an op's stage has the micro-batches of the op.
pub(super) fn of_its_model(timetable: &Timetable, demand: &Demand, op: Op) -> Result<(), Reason> {
    let n_units = demand.n_units(op.stage, timetable.n_units());
    if op.span.units().end <= n_units { Ok(()) } else { Err(Reason::BeyondModel { op, n_units }) }
}

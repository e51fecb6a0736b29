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
        let why = "models with unlike numbers of micro-batches need a flush after each step: choose a synchronous \
                   schedule with a border between steps";
        return Err(Reason::Models(why.into()));
    }
    let models = timetable.graph.n_models();
    let n_micro_batches = timetable.n_micro_batches;
    if given.len() != models || given.contains(&0) || given.iter().max() != Some(&n_micro_batches) {
        return Err(Reason::Models(format!(
            "the numbers of micro-batches of models are {given:?}, but there are {models} model(s) and \
             {n_micro_batches} micro-batches: give each model 1 or more, and the largest all"
        )));
    }
    Ok(())
}

/// Checks that the model of an op's stage has the micro-batches of the op.
pub(super) fn of_its_model(timetable: &Timetable, demand: &Demand, op: Op) -> Result<(), Reason> {
    let n_units = demand.n_units(op.stage, timetable.n_units());
    if op.span.units().end <= n_units {
        return Ok(());
    }
    Err(Reason::Models(format!(
        "{op} is of a model that has only {n_units} micro-batch(es) or parts of them"
    )))
}

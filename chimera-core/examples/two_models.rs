//! Two models in one step, in opposite directions and with unlike numbers of micro-batches: each
//! trains as it does alone.

#[allow(dead_code)]
#[path = "own_stage.rs"]
mod own_stage;

use std::collections::BTreeMap;
use std::error::Error;

use chimera_core::device::reference::{Reference, Tensor};
use chimera_core::lower::combine;
use chimera_core::prelude::*;
use chimera_core::search::{Search, search};
use own_stage::{Curve, bend};

/// Weights by name after 20 steps. Stage 0 of the timetable is number `first` of all stages.
fn train(timetable: &Timetable, first: usize) -> Result<BTreeMap<String, Tensor>, Box<dyn Error>> {
    let program = lower(timetable, &Lowering::default())?;
    let training = Training { steps: 20, lr: 0.05, ..Training::default() };
    let trainer = Trainer::new(&program, &Curve).training(training);
    let stage = |_: &Reference, id: StageId| Ok(bend(first + id.index()));
    Ok(trainer.on_threads(|_| Ok(Reference), stage)?.weights)
}

pub(crate) fn main() -> std::result::Result<(), Box<dyn Error>> {
    let first = find("1f1b")?.timetable(&Shape::new(4, 8))?; // four workers, eight micro-batches
    let second = find("1f1b")?.timetable(&Shape::new(4, 4))?.opposite(); // from the last worker on
    let costs = UniformCosts::new(0.5, 1.0, 0.0);
    let takes = |timetable: &Timetable| -> Result<f64, Box<dyn Error>> {
        Ok(simulate(&lower(timetable, &Lowering::default())?, &costs).makespan())
    };
    let how = Search { n_orders: 2_000, ..Search::default() };
    let combined = search(&[(combine(&first, &second)?, costs)], &how, |_| {});
    let combined = combined.ok_or("there is no memory limit")?.timetable;
    let (both, in_turn) = (takes(&combined)?, takes(&first)? + takes(&second)?);
    println!("combined {both}, one after the other {in_turn}");
    assert!(both < 0.9 * in_turn);

    let (together, mut alone) = (train(&combined, 0)?, train(&first, 0)?);
    alone.extend(train(&second, 4)?);
    assert_eq!(together, alone, "each model has the weights of its own training");
    Ok(())
}

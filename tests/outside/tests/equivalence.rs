//! Every synchronous schedule trains the model as one worker does, also with the passes of the
//! table.

use std::collections::BTreeMap;

use chimera_core::costs::UniformCosts;
use chimera_core::engine::{Optimizer, Training};
use chimera_core::lower::{Lowering, Passes, Recompute, lower};
use chimera_core::schedule::{SCHEDULES, Schedule, Shape, find};
use chimera_core::stage::conformance;
use chimera_core::trainer::Trainer;
use chimera_core::update::Update;
use outside::{Array, Curve, Host, stage};

/// Weights after three steps of the same global batch of 16 samples. `None` for an asynchronous
/// schedule, or one that splits sequences.
fn train(schedule: &dyn Schedule, shape: Shape, passes: Passes) -> Option<BTreeMap<String, Array>> {
    let timetable =
        schedule.timetable(&shape).unwrap_or_else(|e| panic!("{}: {e}", schedule.name()));
    if timetable.update != Update::Flush {
        return None;
    }
    let training =
        Training { steps: 3, optimizer: Optimizer::sgd(), lr: 0.5, ..Training::default() };
    let how = Lowering { barrier: training.needs_barrier(), ..Lowering::default() };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let timetable = passes.apply(timetable, &how, &costs).expect("sound");
    let program = lower(&timetable, &how).expect("proven");
    let n_stages = program.placement().n_stages();
    let trainer = Trainer::new(&program, &Curve).training(training).micro_batch_size(2);
    let trained = trainer.on_threads(|_| Ok(Host), |_, id| Ok(stage(id.index(), n_stages)));
    if program.rules().n_slices() > 1 {
        // Its samples are not sequences.
        let refusal = trained.map(drop).expect_err("stages without slices are refused").to_string();
        assert!(refusal.contains("cannot run slices of sequences"), "{refusal}");
        return None;
    }
    Some(trained.unwrap_or_else(|fault| panic!("{}: {fault}", schedule.name())).weights)
}

#[test]
fn every_synchronous_schedule_trains_it_as_one_worker() {
    let one = train(find("gpipe").unwrap(), Shape::new(1, 8), Passes::default()).unwrap();
    let mut n = 0;
    for schedule in SCHEDULES {
        for (recompute, split_backward) in
            [(Recompute::None, false), (Recompute::Full, false), (Recompute::None, true)]
        {
            let passes = Passes { recompute, split_backward, ..Passes::default() };
            let Some(many) = train(*schedule, Shape::new(4, 8), passes) else { continue };
            assert_eq!(many.len(), one.len());
            for ((name, a), b) in one.iter().zip(many.values()) {
                let error = a.1.iter().zip(&b.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-12, "{} {passes:?}: {name} differs by {error}", schedule.name());
            }
            n += 1;
        }
    }
    assert!(n >= 36, "only {n} schedules and passes");
}

#[test]
fn its_stages_conform() {
    for n_stages in [1, 2, 4] {
        conformance::all(&Host, || (0..n_stages).map(|id| stage(id, n_stages)).collect(), &Curve);
    }
}

//! The weights that passes read under each rule of updates, and the proof that they are there.

use chimera_schedule::analyze::Reason;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::effects::{Rules, Version};
use chimera_schedule::lower::{Hoist, Lowering, Recompute, lower, recompute, split_backward};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::timetable::Timetable;
use chimera_schedule::update::Update;

fn timetable(schedule: &str, shape: Shape) -> Timetable {
    find(schedule).expect("known").timetable(&shape).expect("fits")
}

/// Two steps of two micro-batches on one worker: what forward and backward of the last one read.
#[test]
fn each_rule_names_the_weights_of_its_passes() {
    use Version::{Made, Newest, Predicted};
    let n_steps = 2;
    for (update, forward, backward) in [
        (Update::Flush, None, None),
        (Update::EachStep { n_steps }, Some(Made(1)), Some(Made(1))),
        (Update::Stash { n_steps }, Some(Newest), None),
        (Update::DoubleBuffer { n_steps }, Some(Made(0)), None),
        (Update::Newest { n_steps }, Some(Newest), Some(Made(1))),
        (Update::Predicted { n_steps }, Some(Predicted(3)), Some(Made(3))),
    ] {
        let rules = Rules::of(&Timetable { update, ..timetable("1f1b", Shape::new(1, 4)) });
        let effects = [Op::forward(0, 0, 3), Op::backward(0, 0, 3)].map(|op| rules.effects(&op));
        let read = effects.each_ref().map(|e| e.reads.first().map(|weights| weights.version));
        assert_eq!(read, [forward, backward], "{update:?}");
        // What is not read by name is eaten: the version that the forward kept.
        let kept = effects[1].eats.iter().any(|token| token.kind.name() == "version");
        assert_eq!(kept, update != Update::Flush && backward.is_none(), "{update:?}");
        let weight = rules.effects(&Op::backward_weight(0, 0, 3));
        assert!(weight.reads.is_empty(), "a weight half reads no weights");
    }
}

/// The input half of a step's backward, moved before the weight half of the step before.
#[test]
fn a_backward_before_the_update_that_it_reads_is_refused() {
    let shape = Shape { window: 2, ..Shape::new(2, 1) };
    let how = Lowering::default();
    for schedule in ["timeprest", "pipeoptim"] {
        let whole = timetable(schedule, shape);
        let mut split = split_backward(&whole, &how, &UniformCosts::EQUAL).expect("sound");
        assert!(lower(&split, &how).is_ok());
        let row = &mut split.rows[0];
        let is = |kind| move |cell: &Cell| cell.ops().any(|op| op.kind == kind);
        let first = row.iter().position(is(Kind::BackwardWeight)).expect("a weight half");
        let next = row.iter().rposition(is(Kind::BackwardInput)).expect("an input half");
        row[first..=next].rotate_left(1);
        let refusal = lower(&split, &how).map(drop).expect_err("no such version yet");
        let Reason::Version { version: 1, made: 0, .. } = refusal.reason else {
            panic!("{refusal}")
        };
    }
}

#[test]
fn a_recomputation_by_newer_weights_is_refused_in_words() {
    for schedule in ["timeprest", "pipeoptim"] {
        let whole = timetable(schedule, Shape::new(2, 2));
        let (how, costs) = (Lowering::default(), UniformCosts::EQUAL);
        let again = recompute(&whole, |_, _| Recompute::Full, Hoist::OnDemand, &how, &costs);
        let refusal = again.and_then(|again| lower(&again, &how)).map(drop).expect_err("newer");
        assert!(refusal.to_string().contains("choose no recomputation"), "{refusal}");
    }
}

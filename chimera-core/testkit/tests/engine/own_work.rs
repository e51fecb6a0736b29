//! The caller's own work in the idle time of a training.

use std::collections::BTreeMap;
use std::sync::Mutex;

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::{Optimizer, Training, WorkPiece};
use chimera_engine::fault::Class;
use chimera_engine::stage::Stage;
use chimera_engine::trainer::Trainer;
use chimera_models::model::{DecoderStage, cut};
use chimera_schedule::costs::{PerStage, UniformCosts, WithOwnWork};
use chimera_schedule::effects::{OwnWork, Pieces};
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{Lowering, Passes, fill, lower};
use chimera_schedule::op::Kind;
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Scaling, Shape, find};

use crate::training::{CONTEXT, Digits, config};

/// A program with pieces that belong to backwards, and others that run at any time.
fn program(schedule: &str, shape: &Shape, split_backward: bool) -> Program {
    let timetable = find(schedule).expect("known").timetable(shape).expect("fits");
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let how = Lowering::default();
    let passes = Passes { split_backward, ..Passes::default() };
    let timetable = passes.apply(timetable, &how, &costs).expect("sound");
    let works = [("gradients", Pieces::OnBackward), ("ticks", Pieces::Anytime(3))]
        .map(|(name, pieces)| OwnWork { name: name.into(), pieces });
    let takes = vec![PerStage(vec![0.25]), PerStage(vec![0.5])];
    let program = lower(&timetable, &how).expect("sound");
    fill(&program, &works, &how, &WithOwnWork::new(&costs, takes)).expect("sound")
}

/// Trains a GPT-2 for some steps with plain gradients. Returns weights by name.
pub(crate) fn train(
    program: &Program,
    steps: u64,
    own_work: &(dyn Fn(&WorkPiece<'_>) -> Result<(), String> + Sync),
) -> Result<BTreeMap<String, Tensor>, chimera_engine::fault::Fault> {
    let model = config(false);
    let cuts = cut(&model, CONTEXT, program.placement().n_stages()).expect("cut");
    let training = Training {
        optimizer: Optimizer::sgd(),
        steps,
        lr: 1.0,
        min_lr: 1.0,
        momentum: 0.0,
        weight_decay: 0.0,
        ..Training::default()
    };
    let trainer = Trainer::new(program, &Digits).training(training).micro_batch_size(2);
    let stage = |_: &Reference, id: StageId| {
        Ok(DecoderStage::new(Reference, &model, CONTEXT, cuts[id.index()].clone()).expect("stage"))
    };
    Ok(trainer.own_work(own_work).on_threads(|_| Ok(Reference), stage)?.weights)
}

/// The products of the operands that backwards show add up to the gradient of each shown matrix,
/// and each piece of the program runs once.
#[test]
fn pieces_see_the_operands_of_their_backward() {
    let halved = Shape { scaling: Scaling::Halving, ..Shape::new(4, 8) };
    for (schedule, shape, split_backward) in [
        ("chimera", Shape::new(4, 4), false),
        ("chimera", halved, false),
        ("dapple", Shape::new(4, 4), true),
        ("zb-v", Shape::new(2, 4), false),
        ("seq1f1b", Shape { n_slices: 2, ..Shape::new(2, 3) }, false),
    ] {
        let program = program(schedule, &shape, split_backward);
        let sums: Mutex<BTreeMap<(StageId, usize), Vec<f64>>> = Mutex::default();
        let done = Mutex::new([0; 2]);
        let piece = |piece: &WorkPiece<'_>| {
            let which = usize::from(piece.work == "ticks");
            done.lock().unwrap()[which] += 1;
            let Some(operands) = piece.operands::<Tensor>() else {
                assert_eq!(piece.work, "ticks");
                return Ok(());
            };
            let mut sums = sums.lock().unwrap();
            for (layer, [x, dy]) in operands.iter().enumerate() {
                let (rows, columns) = (x.row(0).len(), dy.row(0).len());
                let sum = sums.entry((piece.op.stage, layer)).or_default();
                sum.resize(rows * columns, 0.0);
                for row in 0..x.n_rows() {
                    for (i, x) in x.row(row).iter().enumerate() {
                        for (j, dy) in dy.row(row).iter().enumerate() {
                            sum[i * columns + j] += x * dy;
                        }
                    }
                }
            }
            Ok(())
        };
        let before = train(&program, 0, &piece).expect("trains");
        let after = train(&program, 1, &piece).expect("trains");

        let model = config(false);
        let cuts = cut(&model, CONTEXT, program.placement().n_stages()).expect("cut");
        let mut n_layers = 0;
        for (id, cut) in cuts.into_iter().enumerate() {
            let stage = DecoderStage::new(Reference, &model, CONTEXT, cut).expect("stage");
            let shown = stage.params().iter().filter(|param| param.shown.is_some());
            for (layer, param) in shown.enumerate() {
                let sum = &sums.lock().unwrap()[&(StageId(id as u16), layer)];
                let (before, after) = (&before[&param.name].data, &after[&param.name].data);
                for ((before, after), sum) in before.iter().zip(after).zip(sum) {
                    let off = (before - after - sum).abs();
                    assert!(off < 1e-9, "{schedule}: {} is off by {off:e}", param.name);
                }
                n_layers += 1;
            }
        }
        assert!(n_layers >= 4 * 8, "{schedule}: only {n_layers} layers are shown");
        let mut in_program = [0; 2];
        for instr in program.rows().iter().flatten() {
            if let chimera_schedule::program::Instr::Run(cell) = instr {
                for op in cell.ops() {
                    if let Kind::Work(work) = op.kind {
                        in_program[work.index()] += 1;
                    }
                }
            }
        }
        assert_eq!(*done.lock().unwrap(), in_program, "{schedule}");
        assert!(in_program.iter().all(|n| *n > 0), "{schedule}: {in_program:?}");
    }
}

#[test]
fn a_piece_that_fails_ends_the_training_with_its_reason() {
    let program = program("chimera", &Shape::new(4, 4), false);
    let piece = |piece: &WorkPiece<'_>| match piece.work {
        "ticks" => Err("there is no more room".to_string()),
        _ => Ok(()),
    };
    let fault = train(&program, 1, &piece).map(drop).expect_err("fails");
    assert_eq!(fault.class, Class::Usage);
    let message = fault.to_string();
    assert!(
        message.contains("a piece of ticks cannot be done: there is no more room"),
        "{message}"
    );
}

use chimera_core::ids::{PipeId, StageId, WorkerId};
use chimera_core::model::ModelConfig;
use chimera_core::op::{Cell, Kind, Op};
use chimera_core::schedule::{Shape, find};
use chimera_settings::{Layers, Nothing};

use super::*;

/// Later slices of a sequence attend to more tokens.
#[test]
fn slices_cost_more_along_a_sequence_and_halves_do_not() {
    let costs_of = |options: &str| {
        let model = "--layers 2 --hidden 16 --heads 2 --context 192 --micro-batch-size 2";
        let layers = Layers::parse(&format!("--depth 2 {model} {options}")).unwrap();
        let config = layers.resolve(&Nothing).unwrap();
        let model = config.model();
        let timetable = timetable(&config, &model).unwrap();
        let costs = model.costs(&config, &timetable).unwrap();
        let ops = timetable.rows[0].iter().flat_map(Cell::ops);
        let takes = |op: Op| costs.op(WorkerId(0), &op);
        ops.filter(|op| op.kind == Kind::Forward && op.stage == StageId(0))
            .map(takes)
            .collect::<Vec<f64>>()
    };
    let slices = costs_of("--schedule seq1f1b --slices 4 --micro-batches 2");
    let whole = costs_of("--schedule 1f1b --micro-batches 2")[0];
    assert_eq!(slices.len(), 8);
    for of_one in slices.chunks(4) {
        assert!(of_one.is_sorted() && of_one[3] > 1.5 * of_one[0], "{of_one:?}");
        assert!((of_one.iter().sum::<f64>() - whole).abs() < 1e-9 * whole, "{of_one:?}");
    }
    let halves = costs_of("--schedule chimera --scaling halving --micro-batches 4");
    assert!(halves.iter().all(|half| *half == halves[0]), "{halves:?}");
}

/// The head for such a large vocabulary takes as long as two blocks.
#[test]
fn stages_cost_what_their_products_take() {
    let of = |recompute: &str| {
        let options = "--schedule 1f1b --depth 2 --layers 2 --hidden 64 --heads 4 --context 128";
        let layers = Layers::parse(&format!("{options} --recompute {recompute}")).unwrap();
        let config = layers.resolve(&Nothing).unwrap();
        let block = 24.0 * 64.0 * 64.0 + 4.0 * 128.0 * 64.0;
        let model = ModelConfig { vocab: block as usize / 64, ..config.model() };
        let shape = Shape::new(2, 2);
        let timetable = find("1f1b").unwrap().timetable(&shape).unwrap();
        let costs = model.costs(&config, &timetable).unwrap();
        move |kind, stage: u16| {
            let op = Op::new(kind, PipeId(0), StageId(stage), 0);
            costs.op(WorkerId(stage), &op)
        }
    };
    let full = of("full");
    // one block, and one block with the head
    let wanted =
        [(Kind::Forward, 0.5, 1.5), (Kind::Backward, 1.0, 3.0), (Kind::Recompute, 0.5, 1.5)];
    for (kind, first, last) in wanted {
        assert_eq!((full(kind, 0), full(kind, 1)), (first, last), "{kind:?}");
    }
    let selective = of("selective");
    let part = 8.0 * 64.0 * 64.0 / (24.0 * 64.0 * 64.0 + 4.0 * 128.0 * 64.0);
    for stage in 0..2 {
        assert_eq!(selective(Kind::Recompute, stage), 0.5 * part);
    }
}

//! Recomputation in single schedules.

use chimera_schedule::analyze::{Event, Work, peak_kept, simulate};
use chimera_schedule::costs::{StageCosts, UniformCosts};
use chimera_schedule::ids::{PipeId, StageId, WorkerId};
use chimera_schedule::lower::{Hoist, Lowering, Recompute, lower, recompute};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::placement::Placement;
use chimera_schedule::schedule::Shape;
use chimera_schedule::timetable::Timetable;

use crate::{Costs, PLAIN, how, makespan, ops, peak, recomputed, run, timetable};

/// The step takes as long as if backwards took B + R.
#[test]
fn recomputing_on_demand_makes_backwards_longer() {
    for d in 1..=8 {
        for n in 1..=20 {
            for schedule in ["gpipe", "dapple", "gems"] {
                let t = timetable(schedule, &Shape::new(d, n));
                let again = recomputed(&t, Hoist::OnDemand, None);
                let longer = Costs { backward: 3.0, ..PLAIN };
                assert_eq!(
                    makespan(&again, &how(None), PLAIN),
                    makespan(&t, &Lowering::default(), longer),
                    "{schedule} D={d} N={n}"
                );
            }
        }
    }
}

/// A pair follows, with a forward that waits for an activation that the recomputation does not
/// need.
#[test]
fn recomputing_on_demand_waits_only_for_its_own_gradient() {
    let t = timetable("dualpipe-v", &Shape::new(2, 4));
    let again = recomputed(&t, Hoist::OnDemand, None);
    let (program, _) = run(&again, &how(None), PLAIN);
    let messages = [0.0, 0.0, 1.0, 0.0].map(|message| UniformCosts::new(1.0, 2.0, message));
    assert_eq!(simulate(&program, &StageCosts::new(messages.to_vec())).makespan(), 36.0);
}

/// Each receive comes before its first use, and each channel keeps its order.
#[test]
fn an_early_recomputation_on_demand_waits_for_its_gradient() {
    let op = |kind, stage, unit| Op::new(kind, PipeId(0), StageId(stage), unit).into();
    use Kind::{Backward as B, Forward as F, Recompute as R};
    let row = |stage, ops: &[(Kind, u32)]| -> Vec<Cell> {
        ops.iter().map(|(kind, unit)| op(*kind, stage, *unit)).collect()
    };
    let last = row(1, &[(F, 0), (B, 0), (F, 1), (B, 1)]);
    let timed = |first: &[(Kind, u32)]| {
        let rows = vec![row(0, first), last.clone()];
        let placement = Placement::line(2);
        let t = Timetable::new("own", placement, 2, rows);
        let t = Timetable { on_demand: true, ..t };
        lower(&t, &how(None)).map(|program| {
            let events = simulate(&program, &UniformCosts::new(1.0, 1.0, 3.0)).events;
            let recomputes = |event: &&Event| match event.work {
                Work::Cell(cell) => cell.ops().any(|op| op.kind == R),
                _ => false,
            };
            events.iter().filter(recomputes).map(|event| event.start).collect::<Vec<_>>()
        })
    };
    // The last stage is done with each at 6 and 8, or once it has the second one, at 14.
    assert_eq!(timed(&[(F, 0), (F, 1), (R, 0), (B, 0), (R, 1), (B, 1)]), Ok(vec![9.0, 11.0]));
    assert_eq!(timed(&[(F, 0), (R, 0), (F, 1), (B, 0), (R, 1), (B, 1)]), Ok(vec![9.0, 19.0]));
    assert_eq!(timed(&[(F, 0), (F, 1), (R, 1), (R, 0), (B, 0), (B, 1)]), Ok(vec![11.0, 12.0]));
}

/// A recomputation right before its backward is the only holder of saved activations.
#[test]
fn recomputing_leaves_one_micro_batch_of_activations() {
    for schedule in ["gpipe", "dapple", "gems", "chimera", "zb-h1"] {
        let again = recomputed(&timetable(schedule, &Shape::new(4, 8)), Hoist::By(0), None);
        let (program, _) = run(&again, &Lowering::default(), PLAIN);
        let most = if schedule == "zb-h1" { 4.0 } else { 1.0 }; // its weight halves come late
        assert!(program.peaks().iter().all(|p| (1.0..=most).contains(p)), "{schedule}");
    }
    let chunks = recomputed(&timetable("interleaved", &Shape::new(4, 8)), Hoist::By(0), None);
    assert_eq!(peak(&chunks), 0.5);
}

/// Checkpointed inputs live until the recomputation: as many as there would be saved activations
/// without it.
#[test]
fn inputs_are_kept_in_place_of_activations() {
    for schedule in ["gpipe", "dapple", "gems", "interleaved", "chimera", "dualpipe-v", "v-half"] {
        let t = timetable(schedule, &Shape::new(4, 8));
        let (plain, _) = run(&t, &Lowering::default(), PLAIN);
        assert_eq!(peak_kept(&plain), [0.0; 4], "{schedule}");
        let (program, _) = run(&recomputed(&t, Hoist::By(0), None), &Lowering::default(), PLAIN);
        if t.has(Kind::Backward) && schedule != "dualpipe-v" {
            assert_eq!(peak_kept(&program), plain.peaks(), "{schedule}");
        }
        let within = peak_kept(&program).into_iter().zip(plain.peaks());
        assert!(within.into_iter().all(|(kept, peak)| kept > 0.0 && kept <= *peak), "{schedule}");
    }
}

/// A stage may be recomputed on one pipe and not on the other.
#[test]
fn stages_of_pipes_are_recomputed_one_by_one() {
    let t = timetable("chimera", &Shape::new(4, 4));
    let what = |pipe: chimera_schedule::ids::PipeId, stage: chimera_schedule::ids::StageId| match (
        pipe.0, stage.0,
    ) {
        (0, 1) => Recompute::Full,
        (1, 2) => Recompute::Selective,
        _ => Recompute::None,
    };
    let plain = Lowering::default();
    let again = recompute(&t, what, Hoist::By(0), &plain, &PLAIN.of(&t)).expect("sound");
    assert_eq!(again.selective.iter().map(|(p, s)| (p.0, s.0)).collect::<Vec<_>>(), [(1, 2)]);
    let recomputed =
        |w: usize| ops(&again.rows[w]).iter().filter(|op| op.kind == Kind::Recompute).count();
    assert_eq!([0, 1, 2, 3].map(recomputed), [0, 4, 0, 0]); // both live on worker 1
    let (program, _) = run(&again, &plain, PLAIN);
    assert!(program.placement().stages_of(WorkerId(1)).len() == 2 && program.peaks()[1] < peak(&t));
}

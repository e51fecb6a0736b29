//! Programs with frozen stages: without the passes that nobody wants, proven, drawn and read back.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::effects::{TokenKind, Wanted};
use chimera_schedule::ids::StageId;
use chimera_schedule::interchange::{from_json, program_to_json, to_json};
use chimera_schedule::lower::{Hoist, Lowering, Moves, Passes, Recompute, Sync, freeze, lower};
use chimera_schedule::op::Kind;
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;

fn timetable(schedule: &str, shape: &Shape, frozen: &[u16]) -> Timetable {
    let whole = find(schedule).expect("known").timetable(shape).expect("fits");
    freeze(whole, &stages(frozen))
}

fn stages(frozen: &[u16]) -> Vec<StageId> {
    frozen.iter().copied().map(StageId).collect()
}

fn proven(timetable: &Timetable) -> Program {
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    lower(timetable, &how).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn draw(schedule: &str, frozen: &[u16]) -> String {
    let program = proven(&timetable(schedule, &Shape::new(4, 4), frozen));
    let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
    let peaks: Vec<String> = program.peaks().iter().map(f64::to_string).collect();
    format!(
        "{}\nmakespan {}, peak {}, {} messages",
        text::timeline(&timeline).trim_end(),
        timeline.makespan(),
        peaks.join(" "),
        program.n_messages(),
    )
}

#[test]
fn a_frozen_prefix_has_no_backward() {
    insta::assert_snapshot!(draw("1f1b", &[0, 1]));
}

#[test]
fn a_frozen_stage_behind_a_trained_one_has_input_halves() {
    insta::assert_snapshot!(draw("1f1b", &[1, 3]));
}

#[test]
fn chimera_freezes_a_prefix_in_both_directions() {
    insta::assert_snapshot!(draw("chimera", &[0]));
}

#[test]
fn a_timetable_that_freezes_nothing_stays_as_it_is() {
    for schedule in SCHEDULES {
        let whole = schedule.timetable(&Shape::new(4, 8)).expect("fits");
        assert_eq!(freeze(whole.clone(), &[]), whole);
        assert!(!to_json(&whole).contains("frozen"));
    }
}

#[test]
fn passes_that_are_not_wanted_are_refused() {
    let whole = find("1f1b").expect("known").timetable(&Shape::new(2, 2)).expect("fits");
    let refusal = |frozen: &[u16]| {
        let timetable = Timetable { frozen: stages(frozen), ..whole.clone() };
        lower(&timetable, &Lowering::default()).expect_err("refused").to_string()
    };
    assert!(refusal(&[0]).contains("of stage 0, which is frozen, only forwards are wanted"));
    let why = refusal(&[1]);
    assert!(why.contains("of stage 1, which is frozen, only forwards and input halves"), "{why}");
    assert!(refusal(&[2]).contains("stage 2 is frozen, but does not exist"));
    // What is frozen stays frozen, and what is missing is missed.
    let frozen = freeze(whole.clone(), &stages(&[0]));
    let thawed = Timetable { frozen: Vec::new(), ..frozen };
    let why = lower(&thawed, &Lowering::default()).expect_err("refused").to_string();
    assert!(why.contains("never has its backward on stage 0"), "{why}");
}

#[test]
fn a_file_names_frozen_stages_in_order() {
    let json = to_json(&timetable("zb-h1", &Shape::new(4, 4), &[0, 2]));
    assert!(json.contains("\"frozen\": [0, 2],"), "{json}");
    for (given, why) in [("[2, 0]", "frozen[1]"), ("[0, 0]", "frozen[1]"), ("[4]", "frozen[0]")] {
        let other = json.replace("[0, 2],", &format!("{given},"));
        let refusal = from_json(other.as_bytes()).expect_err("refused").to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
}

/// Any schedule with any frozen stages, and passes over it.
fn frozen_timetables() -> impl Strategy<Value = (Timetable, Passes)> {
    let schedule = prop::sample::select(SCHEDULES.iter().map(|s| s.name()).collect::<Vec<_>>());
    let recompute = prop::sample::select(Recompute::ALL.map(|(_, recompute)| recompute).to_vec());
    let hoist = prop::sample::select(vec![Hoist::By(0), Hoist::By(2), Hoist::OnDemand]);
    let window = prop::option::of(1u32..=2);
    let passes = (recompute, hoist, any::<bool>(), any::<bool>(), window);
    (schedule, 1usize..=4, 1u32..=3, any::<u16>(), passes).prop_filter_map(
        "fits",
        |(schedule, half, n, frozen, (recompute, hoist, split_backward, offloads, window))| {
            let depth = 2 * half;
            let shape = Shape::new(depth, n * depth as u32);
            let timetable = find(schedule).expect("known").timetable(&shape).ok()?;
            if recompute != Recompute::None && !timetable.update.row().reads_one_version() {
                return None;
            }
            let n_stages = timetable.placement.n_stages() as u16;
            let frozen: Vec<StageId> =
                (0..n_stages).filter(|s| frozen >> (s % 16) & 1 == 1).map(StageId).collect();
            let is_plain = recompute == Recompute::None && !split_backward;
            let moves = if offloads && is_plain { Moves::Offload } else { Moves::None };
            let free_border = window.filter(|_| !offloads);
            let passes = Passes { recompute, hoist, split_backward, free_border, moves };
            Some((freeze(timetable, &frozen), passes))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_frozen_timetable_is_proven_and_has_only_what_is_wanted((timetable, passes) in frozen_timetables()) {
        let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
        let how = Lowering::default();
        let timetable = passes.apply(timetable, &how, &costs);
        let timetable = timetable.unwrap_or_else(|refusal| panic!("{refusal}"));
        let program = proven(&timetable);
        let demand = program.rules().demand();
        for instr in program.rows().iter().flatten() {
            match instr {
                Instr::Run(cell) => for op in cell.ops() {
                    prop_assert!(demand.wants(op.kind, op.stage), "{op}");
                },
                Instr::Send(token, _) if token.kind == TokenKind::Gradient => {
                    prop_assert!(demand.has_backward(token.stage), "{token}");
                }
                Instr::Reduce(bucket) | Instr::Await(bucket) | Instr::Step(bucket) => {
                    let stages = &program.buckets()[bucket.index()].stages;
                    prop_assert!(stages.iter().any(|stage| demand.of(*stage) == Wanted::Trained));
                }
                _ => {}
            }
        }
        if demand.frozen().len() == timetable.placement.n_stages() {
            prop_assert!(timetable.ops().all(|op| op.kind == Kind::Forward));
            prop_assert!(program.peak() == 0.0);
        }
        let read = from_json(to_json(&timetable).as_bytes()).expect("read");
        prop_assert_eq!(&read, &timetable);
        prop_assert_eq!(program_to_json(&program).contains("\"frozen\""), !demand.frozen().is_empty());
        prop_assert_eq!(freeze(timetable.clone(), &[]), timetable);
    }
}

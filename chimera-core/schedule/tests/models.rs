//! Several models in one step: combined, proven, drawn, written and refused.

use std::time::Duration;

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::Rank;
use chimera_schedule::interchange::{from_json, program_to_json, to_json};
use chimera_schedule::lower::{Lowering, combine, forward_only, free_border, lower, narrow};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use chimera_schedule::search::{Search, search};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;

fn timetable(schedule: &str, n: u32) -> Timetable {
    find(schedule).expect("known").timetable(&Shape::new(4, n)).expect("fits")
}

fn searched(combined: Timetable, n_orders: u64) -> (Timetable, f64) {
    let how = Search { n_orders, time_limit: Duration::MAX, ..Search::default() };
    let costs = UniformCosts::new(0.5, 1.0, 0.0);
    let found = search(&[(combined, costs)], &how, |_| {}).expect("an order");
    (found.timetable, found.progress.makespan)
}

fn refusal(timetable: &Timetable) -> String {
    lower(timetable, &Lowering::default()).expect_err("refused").to_string()
}

/// RLHFuse's case: two models in opposite directions, each of 8 micro-batches. One after the other
/// they take 33.
#[test]
fn two_models_fill_each_others_idle_time() {
    let one = timetable("1f1b", 8);
    let combined = combine(&one, &one.opposite()).expect("combined");
    assert!(combined.micro_batches_of.is_empty(), "both have all micro-batches");
    let costs = UniformCosts::new(0.5, 1.0, 0.0);
    let program = lower(&combined, &Lowering::default()).expect("proven");
    let in_turn = simulate(&program, &costs).makespan();
    let (_, makespan) = searched(combined, 2_000);
    assert!(in_turn > 29.0 && makespan == 25.5, "{makespan}, and {in_turn} in turn");
}

#[test]
fn models_have_micro_batches_of_their_own() {
    let second = forward_only(timetable("1f1b", 3).opposite());
    let combined = combine(&timetable("1f1b", 6), &second).expect("combined");
    assert_eq!(combined.micro_batches_of, [6, 3]);
    let (ordered, makespan) = searched(combined, 500);
    let program = lower(&ordered, &Lowering::default()).expect("proven");
    let timeline = simulate(&program, &UniformCosts::new(0.5, 1.0, 0.0));
    assert_eq!(timeline.makespan(), makespan);
    insta::assert_snapshot!(format!(
        "{}: {makespan}\n{}",
        ordered.schedule,
        text::timeline(&timeline)
    ));
    let read = from_json(to_json(&ordered).as_bytes()).expect("read");
    assert_eq!(read, ordered);
    assert!(program_to_json(&program).contains("\"micro_batches_of\": [6, 3]"));
}

#[test]
fn numbers_that_do_not_fit_the_models_are_refused() {
    let combined = combine(&timetable("1f1b", 6), &timetable("1f1b", 3)).expect("combined");
    let with =
        |numbers: &[u32]| Timetable { micro_batches_of: numbers.to_vec(), ..combined.clone() };
    for (numbers, why) in [
        (&[6][..], "there are 2 model(s) and 6 micro-batches"),
        (&[6, 3, 3], "[6, 3, 3], but there are 2 model(s)"),
        (&[6, 0], "give each model 1 or more"),
        (&[5, 3], "and the largest all"),
        (&[3, 6], "is of a model that has only 3 micro-batch(es)"),
        (&[6, 2], "is of a model that has only 2 micro-batch(es)"),
        (&[6, 4], "micro-batch 3 never has its forward on stage 4"),
        (&[], "micro-batch 3 never has its forward on stage 4"),
    ] {
        let said = refusal(&with(numbers));
        assert!(said.contains(why), "{numbers:?}: {said}");
    }
    let json = to_json(&combined);
    for (numbers, why) in
        [("[6]", "micro_batches_of"), ("[6, 0]", "1 or more"), ("[7, 3]", "all 6")]
    {
        let other = json
            .replace("\"micro_batches_of\": [6, 3]", &format!("\"micro_batches_of\": {numbers}"));
        let said = from_json(other.as_bytes()).expect_err("refused").to_string();
        assert!(said.contains(why), "{said}");
    }
    let free = Timetable { graph: combined.graph.clone(), ..free_border(combined.clone(), 2) };
    assert!(refusal(&free).contains("need a flush after each step"));
    let costs = UniformCosts::EQUAL;
    let why = narrow(&combined, 2, &[Rank(1)], &costs).expect_err("refused").to_string();
    assert!(why.contains("in one group, not in several"), "{why}");
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let one = timetable("1f1b", 4);
    let other = |schedule: &str, shape: Shape| {
        find(schedule).expect("known").timetable(&shape).expect("fits")
    };
    let refusal = |second: &Timetable| combine(&one, second).expect_err("refused").to_string();
    let two = other("1f1b", Shape::new(2, 4));
    assert!(refusal(&two).contains("has 4 workers and 1f1b has 2"), "{}", refusal(&two));
    let window = other("pipedream", Shape::new(4, 4));
    assert!(refusal(&window).contains("pipedream has no flush after each step"));
    let sliced = other("seq1f1b", Shape::new(4, 4));
    assert!(refusal(&sliced).contains("1 shares of samples and into 4 slices of sequences"));
    let on_demand = Timetable { on_demand: true, ..one.clone() };
    assert!(refusal(&on_demand).contains("recomputes on demand and the other does not"));
}

#[test]
fn models_are_numbered_by_their_first_stages() {
    let graph = StageGraph::new(4, &[0, 1], &[(0, 2), (1, 3)], &[2, 3]).expect("a graph");
    assert_eq!((graph.models(), graph.n_models()), (vec![0, 1, 0, 1], 2));
}

/// Two schedules with any numbers of micro-batches, one of them perhaps turned round or frozen.
fn pairs() -> impl Strategy<Value = [Timetable; 2]> {
    let names: Vec<_> = SCHEDULES.iter().map(|schedule| schedule.name()).collect();
    let one = move || {
        let name = prop::sample::select(names.clone());
        (name, 1u32..=8, any::<[bool; 2]>()).prop_filter_map(
            "fits",
            |(name, n, [turns, freezes])| {
                let shape = Shape::new(4, n);
                let timetable = find(name).expect("known").timetable(&shape).ok()?;
                let timetable = if turns { timetable.opposite() } else { timetable };
                Some(if freezes { forward_only(timetable) } else { timetable })
            },
        )
    };
    [one(), one()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_is_combined_is_proven_and_read_back([first, second] in pairs()) {
        let Ok(combined) = combine(&first, &second) else { return Ok(()) };
        let how = Lowering::default();
        let program = lower(&combined, &how).unwrap_or_else(|refusal| panic!("{refusal}"));
        let [a, b] = [&first, &second].map(|t| lower(t, &how).expect("proven"));
        prop_assert_eq!(program.n_messages(), a.n_messages() + b.n_messages());
        prop_assert_eq!(combined.n_ops(), first.n_ops() + second.n_ops());
        prop_assert_eq!(from_json(to_json(&combined).as_bytes()).expect("read"), combined);
    }
}

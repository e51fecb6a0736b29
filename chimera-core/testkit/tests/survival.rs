//! Ranks die at any instruction, in recoveries and at the end, over all synchronous schedules.

use chimera_testkit::survival::{Ending, Scenario};

#[test]
fn trainings_survive_deaths() {
    survive(Scenario::draw);
}

/// The survivors continue without the dead ranks until these are replaced.
#[test]
fn trainings_go_on_with_fewer_ranks() {
    survive(Scenario::draw_narrow);
}

/// State without a replica goes from its copies to the ranks that hold it among fewer.
#[test]
fn trainings_go_on_with_fewer_ranks_without_replicas() {
    survive(Scenario::draw_narrow_shadowed);
}

/// State without a replica comes back from copies in the memory of the next rank.
#[test]
fn trainings_survive_deaths_of_what_is_held_once() {
    survive(Scenario::draw_shadowed);
}

/// Only ranks that make no progress are evicted.
#[test]
fn trainings_evict_ranks_that_are_stalled() {
    survive(Scenario::draw_stalled);
}

/// A rank that replaces another begins with initial weights. It never gives them to others, even
/// if ranks die before it has received its state.
#[test]
fn initial_weights_are_nobodys_state() {
    for seed in [20_021_597, 20_058_294] {
        let scenario = Scenario::draw_narrow_shadowed(seed);
        let ending =
            scenario.check().unwrap_or_else(|why| panic!("seed {seed}, {scenario}: {why}"));
        assert!(matches!(ending, Ending::Survived { n_recoveries: 1.. }), "{scenario}");
    }
}

/// A rank reports the stages of which it has copies of a step. This must depend on its copies, not
/// on what the rank before it holds since.
#[test]
fn copies_are_of_what_was_held_then() {
    let scenario = Scenario::draw_narrow_shadowed(40_003_675);
    scenario.check().unwrap_or_else(|why| panic!("{scenario}: {why}"));
}

/// Ranks that heard of a death go back to copies. If another rank dies before the rest have heard,
/// state of different steps must not be taken for one state.
#[test]
fn what_is_held_of_different_steps_is_not_one_state() {
    let scenario = Scenario::draw_narrow_shadowed(70_065_287);
    let ending = scenario.check().unwrap_or_else(|why| panic!("{scenario}: {why}"));
    assert_eq!(ending, Ending::Lost, "{scenario}");
}

fn survive(draw: fn(u64) -> Scenario) {
    let (mut n_recovered, mut n_lost) = (0, 0);
    for seed in 0..300 {
        let scenario = draw(seed);
        match scenario.check() {
            Ok(Ending::Survived { n_recoveries }) => n_recovered += u64::from(n_recoveries > 0),
            Ok(Ending::Lost) => n_lost += 1,
            Err(why) => panic!("seed {seed}, {scenario}: {why}"),
        }
    }
    assert!(n_recovered > 100 && n_lost > 10, "{n_recovered} recovered, {n_lost} lost a stage");
}

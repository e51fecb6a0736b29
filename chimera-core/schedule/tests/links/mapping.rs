//! The search for the devices of ranks.

use chimera_schedule::analyze::links::{Topology, Traffic, map_ranks};
use chimera_schedule::analyze::simulate_on;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::Sync;
use chimera_schedule::program::Program;
use chimera_schedule::schedule::Shape;

use super::super::program;
use super::drawn::Draw;

const COSTS: UniformCosts = UniformCosts::new(1.0, 2.0, 0.0);

fn job() -> (Program, Traffic) {
    let program = program("1f1b", &Shape::new(4, 8), Sync::AtEnd).unwrap();
    (program, Traffic::new(1, vec![2000.0; 4], vec![100.0; 4]))
}

/// Two hosts of two devices, with a slow link between them, and one more device that nothing
/// reaches.
fn hosts(ranks: &str) -> Topology {
    let text = r#"{"format": 1, "switches": ["a", "b"],
        "devices": [{"name": "a0"}, {"name": "a1"}, {"name": "b0"}, {"name": "b1"}, {"name": "far"}],
        "links": [{"from": "a0", "to": "a", "bytes_per_s": 1e6}, {"from": "a1", "to": "a", "bytes_per_s": 1e6},
                  {"from": "b0", "to": "b", "bytes_per_s": 1e6}, {"from": "b1", "to": "b", "bytes_per_s": 1e6},
                  {"from": "a", "to": "b", "bytes_per_s": 1e3}], "ranks": [RANKS]}"#;
    Topology::from_json(&text.replace("RANKS", ranks)).unwrap()
}

#[test]
fn neighbours_of_a_pipeline_come_to_one_host() {
    let (program, traffic) = job();
    let crossed = hosts(r#""a0", "b0", "a1", "b1""#);
    let found = map_ranks(&program, &COSTS, &traffic, &crossed, 1, 1000).unwrap();
    assert!(found.step_s < found.given_s);
    let hosts: Vec<_> = found.topology.ranks.iter().map(|name| &name[..1]).collect();
    assert!(hosts == ["a", "a", "b", "b"] || hosts == ["b", "b", "a", "a"], "{hosts:?}");
    let again = simulate_on(&program, &COSTS, &traffic, &found.topology, 1).unwrap();
    assert_eq!(again.timeline.makespan(), found.step_s);
}

#[test]
fn a_step_is_never_longer_than_as_given_and_the_search_ends() {
    let (program, traffic) = job();
    for seed in 0..20 {
        let mut draw = Draw::new(seed);
        let topology = draw.topology(10);
        for most in [1, 7, 60] {
            let find = || map_ranks(&program, &COSTS, &traffic, &topology, 2, most).unwrap();
            let found = find();
            assert!(found.step_s <= found.given_s && found.n_simulated <= most, "{seed}");
            assert_eq!(find().topology, found.topology, "{seed}");
            assert_eq!(found.topology.ranks.len(), 8);
        }
    }
}

#[test]
fn a_free_device_is_taken_where_it_is_nearer() {
    let (program, traffic) = job();
    let text = r#"{"format": 1, "switches": ["s"], "devices": [{"name": "slow"}, {"name": "b"}, {"name": "c"},
        {"name": "d"}, {"name": "quick"}], "links": [{"from": "slow", "to": "s", "bytes_per_s": 1e3},
        {"from": "b", "to": "s", "bytes_per_s": 1e6}, {"from": "c", "to": "s", "bytes_per_s": 1e6},
        {"from": "d", "to": "s", "bytes_per_s": 1e6}, {"from": "quick", "to": "s", "bytes_per_s": 1e6}]}"#;
    let topology = Topology::from_json(text).unwrap();
    let found = map_ranks(&program, &COSTS, &traffic, &topology, 1, 1000).unwrap();
    assert!(found.step_s < found.given_s);
    assert!(!found.topology.ranks.contains(&"slow".to_string()), "{:?}", found.topology.ranks);
}

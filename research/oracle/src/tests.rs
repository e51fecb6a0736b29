use chimera_core::placement::Placement;
use chimera_core::schedule::{Shape, find};
use chimera_core::search::{Allowed, Search, search, starts};

use super::*;

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_shorter_order_than_the_given_is_found() {
    let gems = find("gems").map(|gems| gems.timetable(&Shape::new(2, 2)));
    let gems = gems.expect("GEMS").expect("a timetable");
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    assert_eq!(makespan(&gems, &costs, 2.0).expect("proven"), 11.0);
    let proof = prove(&gems, &costs, 2.0, 0.0, LONG).expect("a proof");
    assert_eq!((proof.at_least, proof.makespan), (6.0, 6.0));
}

/// No bound is above the optimum. The search finds the optimum if a worker may hold D
/// micro-batches. Under tighter limits it keeps room for the oldest one, which is safe but not
/// always best.
#[test]
fn the_search_finds_the_optimum_of_small_cases() {
    let placements = [
        (Placement::line(2), 4),
        (Placement::line(3), 3),
        (Placement::wave(2, 2), 3),
        (Placement::mirrored(2, 1), 4),
        (Placement::mirrored(4, 1), 4),
        (Placement::mirrored(4, 2), 4),
    ];
    let costs = [(1.0, 0.0), (1.6, 0.2), (2.0, 1.0), (3.0, 0.0)];
    let costs = costs.map(|(backward, message)| UniformCosts::new(1.0, backward, message));
    let (mut n_cases, mut n_optimal, mut n_at_bound) = (0, 0, 0);
    for (placement, n) in placements {
        for split_backwards in [false, true] {
            for costs in costs {
                for max_peak in [1.0, 1.5, 2.0, 4.0] {
                    let allowed = Allowed { split_backwards, ..Allowed::default() };
                    let starts = starts(&placement, n, allowed).into_iter().map(|t| (t, costs));
                    let how =
                        Search { max_peak: Some(max_peak), n_orders: 2000, ..Search::default() };
                    let found =
                        search(&starts.collect::<Vec<_>>(), &how, |_| ()).expect("an order");
                    let proof =
                        prove(&found.timetable, &costs, max_peak, 0.0, LONG).expect("a proof");
                    let (bound, makespan) = (found.progress.lower_bound, found.progress.makespan);
                    let case = format!("{placement:?} {n} {split_backwards} {costs:?} {max_peak}");
                    assert!(bound < proof.at_least + 1e-6, "{bound}, {}: {case}", proof.at_least);
                    let is_optimal = makespan < proof.at_least + 1e-6;
                    let is_tight = max_peak < placement.n_workers() as f64;
                    assert!(is_optimal || is_tight, "{makespan}, {}: {case}", proof.at_least);
                    n_optimal += usize::from(is_optimal);
                    n_cases += 1;
                    n_at_bound += usize::from(makespan < bound + 1e-6);
                }
            }
        }
    }
    println!("of {n_cases} cases {n_optimal} end at the optimum, {n_at_bound} at the bound");
}

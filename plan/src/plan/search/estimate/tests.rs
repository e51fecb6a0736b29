use chimera_core::analyze::Link;
use chimera_core::lower::Recompute;
use chimera_core::schedule::{Parameter, SCHEDULES, Scaling};
use chimera_settings::Scaling::Is;
use chimera_settings::{Layers, Nothing};

use super::*;
use crate::plan::search::candidate::Speed;

fn way(schedule: &str, depth: usize, micro_batches: usize) -> Config {
    let layers = Layers::parse(&format!(
        "--schedule {schedule} --layers 16 --hidden 16 --heads 2 --context 8 --depth {depth} --width 2 \
         --micro-batches {micro_batches} --micro-batch-size 2"
    ));
    layers.unwrap().resolve(&Nothing).unwrap()
}

fn cluster(depth: usize, beta: f64) -> Cluster {
    let link = Link { alpha: 1e-5, beta };
    let network = Network {
        width: 2,
        ranks_per_node: depth,
        inside: link,
        between: link,
        ..Network::free(depth)
    };
    Cluster {
        n_ranks: 2 * depth,
        memory: 1e12.into(),
        speed: Speed::Flops(1e9.into()),
        network,
        topology: None,
    }
}

fn fits(outcome: Result<Fit>) -> Option<Candidate> {
    match outcome.ok()? {
        Fit::Fits(candidate) => Some(candidate),
        Fit::TooLarge(..) => None,
    }
}

/// Memory is exact to the byte, and times are never much too long: estimates of slow steps are right.
#[test]
fn long_steps_are_what_shorter_ones_tell() {
    let synchronous = SCHEDULES.iter().filter(|s| !s.reads().contains(&Parameter::Window));
    let mut n_foreseen = 0;
    for (schedule, depth) in synchronous.flat_map(|s| [2, 3, 4].map(|d| (s.name(), d))) {
        let scalings = if schedule == "chimera" { &Scaling::ALL[..] } else { &Scaling::ALL[..1] };
        let direct = [Recompute::Full, Recompute::Selective].map(|how| (Scaling::Direct, how));
        let plain = scalings.iter().map(|(_, scaling)| (*scaling, Recompute::None));
        for (scaling, recompute) in plain.chain(direct) {
            for (beta, n) in [(0.0, 16), (3e-7, 16), (3e-7, 25), (1e-6, 40)] {
                let cluster = cluster(depth, beta);
                let mut way = way(schedule, depth, n * depth + n % 2);
                (way.schedule.scaling, way.passes.recompute) = (Is(scaling), recompute);
                let foreseen = fits(ConfigGroup::new(&cluster, true).outcome(way.clone()));
                let simulated = fits(ConfigGroup::simulated(&cluster, true).outcome(way));
                let Some((foreseen, simulated)) = foreseen.zip(simulated) else { continue };
                let case = format!("{schedule} {scaling:?} {recompute:?} {depth} {n} {beta}");
                n_foreseen += usize::from(!foreseen.is_simulated);
                assert_eq!(foreseen.need, simulated.need, "{case}");
                let ratio = foreseen.step_s / simulated.step_s;
                assert!(ratio < 1.05, "{case}: {ratio}");
            }
        }
    }
    assert!(n_foreseen > 200, "{n_foreseen}");
}

#[test]
fn a_step_of_few_rounds_is_simulated() {
    let cluster = cluster(2, 0.0);
    for (n, is_simulated) in [(8, true), (15, true), (16, false), (17, false)] {
        let outcome = ConfigGroup::new(&cluster, true).outcome(way("dapple", 2, n));
        assert_eq!(fits(outcome).unwrap().is_simulated, is_simulated, "{n}");
    }
}

#[test]
fn uneven_is_what_does_not_grow_by_the_same() {
    let of = |c: f64| are_even([&[1.0, 4.0], &[2.0, 4.0], &[c, 4.0]]);
    assert!(of(3.0) && of(3.0 + 1e-12) && !of(3.001) && !of(2.0));
    assert_eq!(further_by(&[1.0, 4.0], &[2.0, 4.0], 3.5), [5.5, 4.0]);
}

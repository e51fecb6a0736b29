use chimera_core::analyze::{Link, Network};
use chimera_settings::{Layers, Nothing, ScheduleSettings};

use super::super::candidate::Speed;
use super::*;
use crate::plan::{Plan, RankMemory};

const PLENTY: f64 = 1e15;
const PATIENT: Effort<'static> = Effort { time_limit: Duration::MAX, observe: &|_, _| () };

fn small(options: &str) -> Layers {
    Layers::parse(&format!("--layers 6 --hidden 32 --heads 2 --context 16 {options}")).unwrap()
}

fn cluster(n_ranks: usize, memory: f64) -> Cluster {
    let free = Link::default();
    let network = Network {
        width: 1,
        ranks_per_node: n_ranks,
        inside: free,
        between: free,
        ..Network::free(n_ranks)
    };
    Cluster {
        n_ranks,
        memory: memory.into(),
        speed: Speed::Flops(1e9.into()),
        network,
        topology: None,
    }
}

/// Returns four ranks on two nodes, whose link takes `beta` seconds a byte.
fn on_two_nodes(beta: f64) -> Cluster {
    let mut cluster = cluster(4, PLENTY);
    cluster.network = Network {
        ranks_per_node: 2,
        inside: Link { alpha: 1e-6, beta: 1e-9 },
        between: Link { alpha: 1e-5, beta },
        adapters: 1,
        ..cluster.network
    };
    cluster
}

fn chosen(layers: &Layers, batch: usize, cluster: &Cluster) -> Choice {
    choose(&layers.resolve(&Nothing).unwrap(), batch, cluster, 10, &PATIENT).unwrap()
}

fn shape(candidate: &Candidate) -> (usize, usize, usize) {
    let ScheduleSettings { width, depth, micro_batch_size, .. } = candidate.config.schedule;
    (width, depth, micro_batch_size)
}

#[test]
fn one_rank_trains_alone_for_as_long_as_its_products_take() {
    let best = &chosen(&small(""), 12, &cluster(1, PLENTY)).candidates[0];
    assert_eq!(shape(best), (1, 1, 12));
    let model = best.config.model();
    let whole = chimera_core::model::Cut::whole(&model);
    let flops = 3.0 * 12.0 * model.forward_flops(&whole, model.context);
    assert!((best.step_s - flops / 1e9).abs() < 1e-9 * best.step_s);
    assert_eq!((best.bubble_ratio, best.recompute()), (0.0, "none"));
}

#[test]
fn with_a_free_network_and_memory_for_all_groups_have_no_pipeline() {
    assert_eq!(shape(&chosen(&small(""), 16, &cluster(4, PLENTY)).candidates[0]), (4, 1, 4));
}

/// On a slow network, reducing the gradients of all weights takes longer than the bubbles of a pipeline.
#[test]
fn a_slow_network_asks_for_a_pipeline() {
    let mut cluster = cluster(4, PLENTY);
    cluster.network.inside = Link { alpha: 0.0, beta: 1e-6 };
    let best = &chosen(&small(""), 16, &cluster).candidates[0];
    assert!(best.config.schedule.depth > 1, "{best:?}");
}

#[test]
fn nothing_needs_more_than_there_is() {
    let all = chosen(&small(""), 16, &cluster(4, PLENTY));
    let totals = || all.candidates.iter().map(|candidate| candidate.need.total());
    let memory = totals().fold(f64::INFINITY, f64::min) * 1.3;
    let some = chosen(&small(""), 16, &cluster(4, memory));
    assert!(some.candidates.iter().all(|candidate| candidate.need.total() <= memory));
    assert!(some.candidates.iter().all(|candidate| candidate.config.schedule.depth > 1));
    assert!(some.n_too_large > 0 && !some.candidates.is_empty());
    let none = chosen(&small(""), 16, &cluster(4, 1e3));
    assert!(none.candidates.is_empty());
    let (_, need) = none.smallest.unwrap();
    // With less memory the optimizer is sharded.
    assert!(need.total() <= totals().fold(f64::INFINITY, f64::min));
}

/// The first worker of 1F1B holds most, and the last least: of two ranks the first needs more.
#[test]
fn each_rank_has_its_own_memory() {
    let layers = small(
        "--depth 2 --schedule 1f1b --layers 4 --vocab 16 --micro-batch-size 1 --recompute none --shard-optimizer false",
    );
    let alike = chosen(&layers, 16, &cluster(2, PLENTY)).candidates[0].need.total();
    let fits = |bytes: [f64; 2]| {
        let memory = RankMemory::new(bytes.to_vec()).unwrap();
        let cluster = Cluster { memory, ..cluster(2, PLENTY) };
        !chosen(&layers, 16, &cluster).candidates.is_empty()
    };
    assert!(fits([alike, alike]) && fits([alike, alike * 0.95]));
    assert!(!fits([alike * 0.95, alike]));
    // Further ranks repeat these: any rank, including the small one, may do the work of the first
    // worker.
    let cluster = Cluster { n_ranks: 6, ..cluster(6, PLENTY) };
    let memory = RankMemory::new(vec![alike, alike, alike * 0.95]).unwrap();
    let wide = chosen(&layers, 48, &Cluster { memory, ..cluster });
    assert!(wide.candidates.is_empty());
}

/// The optimizer is sharded only if nothing else fits.
#[test]
fn the_optimizer_is_shared_out_where_it_has_to_be() {
    let way = |memory| chosen(&small("--width 4 --recompute full"), 4, &cluster(4, memory));
    let whole = &way(PLENTY).candidates[0];
    assert!(!whole.config.replicas.shard_optimizer);
    let shared = &way(whole.need.total() - 1.0).candidates[0];
    assert!(shared.config.replicas.shard_optimizer && shared.need.total() < whole.need.total());
    assert_eq!(shared.step_s, whole.step_s);
}

/// A rank that dies would lose its shard of the optimizer.
#[test]
fn what_has_to_survive_is_not_shared_out() {
    let whole = chosen(&small("--width 4 --recompute full"), 4, &cluster(4, PLENTY));
    let memory = whole.candidates[0].need.total() - 1.0;
    for (survive, fits) in [("narrow", false), ("respawn", false), ("off", true)] {
        let layers = small(&format!("--width 4 --recompute full --survive {survive}"));
        let choice = chosen(&layers, 4, &cluster(4, memory));
        assert_eq!(!choice.candidates.is_empty(), fits, "{survive}");
    }
}

/// A run that chooses k again needs the memory of the largest k.
#[test]
fn all_that_is_taken_in_turn_has_room() {
    let need = |options: &str| {
        let layers = small(&format!(
            "--depth 2 --width 1 --schedule 1f1b --micro-batch-size 1 --recompute none {options}"
        ));
        chosen(&layers, 16, &cluster(2, PLENTY)).candidates[0].need.activations
    };
    assert_eq!(need("--adapt-every 5"), need("--in-turn 8"));
    assert!(need("--adapt-every 5") > need("--in-turn 1"));
}

/// Memory decides what stages keep, down to what was set.
#[test]
fn stages_keep_at_least_what_was_said() {
    let options = "--depth 2 --recompute selective --recompute-stages auto";
    let choice = chosen(&small(options), 16, &cluster(2, PLENTY));
    assert!(choice.candidates.iter().any(|candidate| candidate.recompute() == "none"));
    assert!(choice.candidates.iter().all(|candidate| candidate.recompute() != "full"));
}

/// Simulating all steps is the reference for the choice with estimates.
#[test]
fn foreseeing_changes_no_choice() {
    let slow = on_two_nodes(2e-8);
    let (config, mut n_foreseen) = (small("").resolve(&Nothing).unwrap(), 0);
    let simulated = |batch: usize, cluster: &Cluster| {
        let (watched, group) = (Watched::begin(&PATIENT), || ConfigGroup::simulated(cluster, true));
        let mut all = first_choice(&config, batch, cluster, &watched, group).unwrap();
        all.let_off(10, &watched, || group().letting_off());
        all.start_sums(10, &watched, group);
        all
    };
    // With plenty of memory, and with hardly more than the smallest needs.
    for (batch, is_scarce) in [(256, false), (256, true), (360, false), (512, true)] {
        let totals = simulated(batch, &slow).candidates.into_iter().map(|c| c.need.total());
        let least = totals.fold(f64::INFINITY, f64::min);
        let memory = if is_scarce { least * 1.3 } else { PLENTY };
        let cluster = Cluster { memory: memory.into(), ..slow.clone() };
        let (all, choice) =
            (simulated(batch, &cluster), choose(&config, batch, &cluster, 10, &PATIENT).unwrap());
        assert!(choice.candidates.len() >= 10, "{batch} {memory}");
        assert_eq!(all.candidates[..10], choice.candidates[..10], "{batch} {memory}");
        let counts = |choice: &Choice| (choice.candidates.len(), choice.n_too_large);
        assert_eq!(counts(&all), counts(&choice), "{batch} {memory}");
        n_foreseen += choice.candidates.iter().filter(|c| !c.is_simulated).count();
    }
    assert!(n_foreseen > 10, "{n_foreseen}");
}

#[test]
fn the_longest_steps_are_foreseen() {
    let layers = small("--depth 2 --schedule 1f1b --micro-batch-size 1");
    let step = |batch: usize| {
        let choice = chosen(&layers, batch, &cluster(2, PLENTY));
        (choice.candidates[0].is_simulated, choice.candidates[0].step_s)
    };
    let ((is_simulated, short), (is_long_simulated, long)) = (step(1 << 14), step(1 << 17));
    assert!(is_simulated && !is_long_simulated);
    assert!((long / short / 8.0 - 1.0).abs() < 1e-3, "{short} {long}");
}

/// A training, which does not know the network, starts reductions where its workers would idle without one.
#[test]
fn sums_begin_where_the_network_has_room_for_them() {
    let (mut n_unusual, mut n) = (0, 0);
    for (beta, batch) in [(2e-8, 16), (2e-8, 24), (1e-7, 16), (1e-7, 24)] {
        let cluster = on_two_nodes(beta);
        let shown = chosen(&small("--depth 2"), batch, &cluster).candidates;
        for way in shown.into_iter().take(10) {
            let mut unasked = way.clone();
            unasked.config.replicas.sync = lower::Sync::EagerOpt;
            let unasked = unasked.step_on(&cluster).unwrap().unwrap();
            let gains = way.step_s < unasked * (1.0 - WORTH_SAYING);
            assert_eq!(way.has_unusual_sync(), gains, "{way:?} {unasked}");
            (n, n_unusual) = (n + 1, n_unusual + usize::from(gains));
        }
        let said = chosen(&small("--depth 2 --sync eager-opt"), batch, &cluster).candidates;
        assert!(said.iter().all(|way| !way.has_unusual_sync()));
    }
    assert!(n >= 20 && n_unusual > 0 && n_unusual < n, "{n_unusual} of {n}");
}

#[test]
fn what_was_said_stays() {
    let layers = small("--depth 2 --schedule chimera --micro-batch-size 2 --recompute selective");
    let choice = chosen(&layers, 16, &cluster(4, PLENTY));
    // Direct, doubling and halving.
    assert_eq!(choice.candidates.len(), 3);
    for candidate in &choice.candidates {
        let is_chimera = candidate.config.schedule.name.to_string() == "chimera";
        assert!(is_chimera && candidate.recompute() == "selective", "{candidate:?}");
        assert_eq!(shape(candidate), (2, 2, 2));
    }
}

#[test]
fn schedules_are_tried_with_their_parameters() {
    let of = |options: &str| chosen(&small(options), 16, &cluster(4, PLENTY)).candidates;
    let told = |candidate: &Candidate| {
        let parameters = candidate.parameters().map(|(name, value)| format!("{name} {value}"));
        format!("{} {}", candidate.config.schedule.name, parameters.collect::<Vec<_>>().join(" "))
    };
    let all: Vec<String> = of("--layers 12 --depth 4").iter().map(told).collect();
    for way in [
        "chimera ",
        "chimera pipes 4",
        "interleaved ",
        "interleaved chunks 3",
        "hanayo waves 1",
        "1f1b in-turn 3",
        "mixpipe in-flight 8",
    ] {
        assert!(all.iter().any(|told| told == way), "{way}: {all:?}");
    }
    let said = of("--layers 12 --depth 4 --schedule interleaved --chunks 3");
    assert!(!said.is_empty() && said.iter().all(|way| told(way) == "interleaved chunks 3"));
}

#[test]
fn what_cannot_be_is_refused() {
    let refusal = |options: &str, ranks: usize, batch: usize| {
        let config = small(options).resolve(&Nothing).unwrap();
        let refusal = choose(&config, batch, &cluster(ranks, PLENTY), 10, &PATIENT);
        format!("{:#}", refusal.err().unwrap())
    };
    assert!(refusal("", 7, 8).contains("no way to train a model of 6 layers"));
    let refused = refusal("--schedule pipedream --depth 2 --tied false", 4, 16);
    assert!(refused.contains("has no flush"), "{refused}");
    assert!(refusal("--min-lr 1 --lr 0.5", 4, 16).contains("min-lr 1 is above"));
    let constant = "--min-lr 1 --lr 0.5 --lr-schedule constant";
    assert!(!chosen(&small(constant), 16, &cluster(4, PLENTY)).candidates.is_empty());
}

/// Every configuration can be written as options, and means the same then.
#[test]
fn options_lead_to_the_way_that_they_stand_for() {
    let small = small("");
    let memory = chosen(&small, 16, &cluster(4, PLENTY)).candidates[0].need.total();
    let choice = chosen(&small, 16, &cluster(4, memory * 0.5));
    assert!(choice.candidates.iter().any(|candidate| candidate.config.replicas.shard_optimizer));
    for candidate in &choice.candidates {
        let settings = candidate.settings(&small.settings);
        let config = Layers { config: None, settings }.resolve(&Nothing).unwrap();
        let plan = Plan::make(config).unwrap();
        let devices = candidate.config.schedule.width * candidate.config.schedule.depth;
        assert_eq!(devices, 4);
        assert!(plan.need().total() <= 4.0 * candidate.need.total() * 1.0001);
    }
}

#[test]
fn without_time_nothing_is_chosen_and_said_so() {
    let effort = Effort { time_limit: Duration::ZERO, ..PATIENT };
    let refusal =
        choose(&small("").resolve(&Nothing).unwrap(), 16, &cluster(4, PLENTY), 10, &effort);
    let refusal = refusal.err().unwrap().to_string();
    assert!(refusal.contains("choose a larger --search-time"), "{refusal}");
}

#[test]
fn what_is_left_out_gains_nothing_over_a_simpler_way() {
    let all = chosen(&small(""), 16, &cluster(4, PLENTY));
    let distinct: Vec<&Candidate> = all.distinct().collect();
    assert!(distinct[0] == &all.candidates[0] && distinct.len() < all.candidates.len());
    for left_out in all.candidates.iter().filter(|c| !distinct.contains(c)) {
        let is_as_good = |kept: &&Candidate| {
            kept.step_s as f32 == left_out.step_s as f32
                && kept.need.total() <= left_out.need.total()
                && kept.config.schedule.depth <= left_out.config.schedule.depth
        };
        assert!(distinct.iter().any(is_as_good), "{left_out:?}");
    }
}

/// Each shape has the order that a search finds, which is at most as long as those of schedules.
#[test]
fn orders_are_searched_where_auto_is_asked_for() {
    let cluster = cluster(4, PLENTY);
    let shape_of = "--depth 2 --micro-batch-size 2 --search-time 1";
    let of = |schedule: &str| small(&format!("--schedule {schedule} {shape_of}"));
    // Longer pipes and more copies of weights are beyond the limits of a search.
    let steps = ["1f1b", "chimera", "zb-v", "hanayo --waves 1"];
    let steps = steps.map(|schedule| chosen(&of(schedule), 16, &cluster).candidates[0].step_s);
    let best = steps.into_iter().fold(f64::INFINITY, f64::min);
    let effort = Effort { time_limit: Duration::from_secs(20), ..PATIENT };
    let said = of("auto").resolve(&Nothing).unwrap();
    let found = choose(&said, 16, &cluster, 3, &effort).unwrap();
    assert!(!found.candidates.is_empty() && found.candidates.len() <= 3);
    assert!(found.candidates.iter().all(|way| way.config.schedule.name == Named::Auto));
    assert!(found.candidates[0].step_s <= best * (1.0 + 1e-9), "{best}");
}

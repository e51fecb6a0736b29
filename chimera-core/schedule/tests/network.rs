//! Messages and sums on a network: costs computed by hand, and laws.

use chimera_schedule::analyze::{Link, Network, NetworkCosts, ReductionAlgorithm, simulate};
use chimera_schedule::costs::{Costs, UniformCosts};
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::{BucketId, StageId};
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use chimera_schedule::timetable::Timetable;
use proptest::prelude::*;

const COMPUTE: UniformCosts = UniformCosts::new(1.0, 2.0, 0.0);

fn program(schedule: &str, shape: &Shape) -> Program {
    let timetable = find(schedule).expect("known").timetable(shape).expect("fits");
    lower(&timetable, &Lowering { sync: Sync::Eager, ..Lowering::default() }).expect("proven")
}

fn network(width: usize, ranks_per_node: usize, inside: Link, between: Link) -> Network {
    Network { width, ranks_per_node, inside, between, ..Network::free(1) }
}

/// The bytes of messages and gradients, by stage.
struct Traffic {
    activations: Vec<f64>,
    gradients: Vec<Vec<f64>>,
    /// The gradient of each tensor that stages share.
    tied: Vec<f64>,
}

impl Traffic {
    /// The costs on a network.
    fn on(&self, network: Network, program: &Program) -> NetworkCosts<UniformCosts> {
        let (placement, units) = (program.placement(), program.units_per_micro());
        NetworkCosts::of_messages(COMPUTE, network, placement, units, &self.activations).with_sums(
            program,
            &self.gradients,
            &self.tied,
        )
    }
}

/// Traffic that is equal for every stage.
fn traffic(program: &Program, activation: f64, tensors: &[f64]) -> Traffic {
    let n_stages = program.placement().n_stages();
    let gradients = vec![tensors.to_vec(); n_stages];
    Traffic { activations: vec![activation; n_stages], gradients, tied: Vec::new() }
}

fn link(alpha: f64, beta: f64) -> Link {
    Link { alpha, beta }
}

/// Two groups of two workers, one micro-batch: a message is 4 bytes, a stage's gradient one tensor
/// of 6.
fn two_by_two(ranks_per_node: usize) -> (f64, f64) {
    let program = program("dapple", &Shape::new(2, 1));
    let network = network(2, ranks_per_node, link(1.0, 0.5), link(2.0, 1.0));
    let costs = traffic(&program, 4.0, &[6.0]).on(network, &program);
    (simulate(&program, &costs).makespan(), costs.agree())
}

#[test]
fn two_groups_take_the_time_computed_by_hand() {
    // F, a message of 1 + 4/2, F, B, a message, B end at 12; the part and the sum take 1 + 6/2
    // each.
    assert_eq!(two_by_two(4), (12.0 + 8.0, 2.0));
    // One group per node: sums of 2 + 6 each way go between nodes. The sum of stage 1 begins at 7
    // and occupies the link for 6 each way, so that of stage 0 begins at 19 and not at 12.
    assert_eq!(two_by_two(2), (19.0 + 16.0, 2.0 * 2.0));
    // One rank per node: nothing is shared, and messages go between nodes too.
    assert_eq!(two_by_two(1), (18.0 + 16.0, 2.0 * 2.0));
}

/// The number of groups of four workers for which a 64-bit count of ranks would wrap to one.
#[test]
fn a_job_of_too_many_ranks_is_on_no_node() {
    let many = network(usize::MAX / 4 + 2, 4, link(1.0, 0.0), link(2.0, 0.0));
    assert_eq!(many.slowest(4), many.between);
    assert!(!Network { ranks_per_node: 3, ..many }.fits(4));
}

/// A small bucket has one owner. A large one is cut into shares; many ranks use recursive halving.
#[test]
fn a_sum_takes_as_long_as_its_busiest_port() {
    let program = program("dapple", &Shape::new(1, 1));
    let sum = |width, tensors: &[f64]| {
        let network = network(width, width, link(0.0, 1.0), Link::default());
        let costs = traffic(&program, 0.0, tensors).on(network, &program);
        costs.reduce(BucketId(0))
    };
    assert_eq!(sum(1, &[12.0]), 0.0);
    assert_eq!(sum(4, &[3.0; 4]), 2.0 * 3.0 * 12.0);
    assert_eq!(sum(4, &[12.0]), 2.0 * 3.0 * 12.0);
    assert_eq!(sum(128, &[4.0, 4.0, 3.0, 1.0]), 2.0 * 7.0 * 12.0);
    let unit = 4096.0;
    assert_eq!(sum(4, &[16.0 * unit]), 2.0 * 3.0 * 4.0 * unit);
    assert_eq!(sum(4, &[2.0 * unit, 6.0 * unit]), 2.0 * 3.0 * 2.0 * unit);
    // Halves of 8, 4, 2 and 1 units, and three rounds in which one of two has one.
    assert_eq!(sum(128, &[16.0 * unit]), 2.0 * (8.0 + 4.0 + 2.0 + 1.0 + 3.0) * unit);
    assert_eq!(sum(128, &[128.0 * unit]), 2.0 * 127.0 * unit);
}

/// Eight replicas on two nodes, each the owner of a tensor: four send half of all their data to the
/// other node. First and last stage share a tensor, on both workers.
#[test]
fn a_tensor_that_stages_share_is_summed_over_the_workers_of_both() {
    let timetable = find("dapple").expect("known").timetable(&Shape::new(2, 1)).expect("fits");
    let how = Lowering { tied: vec![vec![StageId(0), StageId(1)]], ..Lowering::default() };
    let program = lower(&timetable, &how).expect("proven");
    let takes = |width: usize| {
        let network = network(width, 2 * width, link(0.0, 1.0), Link::default());
        let traffic = Traffic { tied: vec![12.0], ..traffic(&program, 0.0, &[]) };
        let costs = traffic.on(network, &program);
        (0..program.buckets().len() as u32).map(|b| costs.reduce(BucketId(b))).collect::<Vec<_>>()
    };
    let mut one = takes(1);
    one.sort_by(f64::total_cmp);
    // Such a small tensor has one owner.
    assert_eq!(one, [0.0, 0.0, 2.0 * 12.0]);
    assert_eq!(takes(2).into_iter().fold(0.0, f64::max), 2.0 * 3.0 * 12.0);
}

#[test]
fn the_ranks_of_a_node_share_its_link() {
    let program = program("dapple", &Shape::new(1, 1));
    let sum = |ranks_per_node| {
        let network = network(8, ranks_per_node, Link::default(), link(0.0, 1.0));
        let traffic = traffic(&program, 0.0, &[4096.0; 8]);
        traffic.on(network, &program).reduce(BucketId(0))
    };
    assert_eq!(sum(8), 0.0);
    assert_eq!(sum(4), 2.0 * 4.0 * 4.0 * 4096.0);
    assert_eq!(sum(1), 2.0 * 7.0 * 4096.0);
}

#[test]
fn recursive_doubling_sends_everything_in_every_round() {
    let program = program("dapple", &Shape::new(1, 1));
    let sum = |width, ranks_per_node, adapters| {
        let network = Network {
            adapters,
            reductions: ReductionAlgorithm::Doubling,
            ..network(width, ranks_per_node, Link::default(), link(1.0, 0.5))
        };
        let traffic = traffic(&program, 0.0, &[4.0, 8.0]);
        traffic.on(network, &program).reduce(BucketId(0))
    };
    let round = 1.0 + 12.0 / 2.0;
    assert_eq!(
        [1, 2, 8, 128].map(|width| sum(width, 1, 1)),
        [0.0, round, 3.0 * round, 7.0 * round]
    );
    // Two of six give theirs to a partner first, and receive the sum last.
    assert_eq!(sum(6, 1, 1), 4.0 * round);
    // Four ranks of a node send over its link at once in the round between the two nodes.
    assert_eq!(sum(8, 4, 1), 4.0 * 12.0 / 2.0);
    assert_eq!(sum(8, 4, 4), round, "each by an adapter of its own");
}

/// In 1F1B on two workers the first sends two activations before it can continue, and the last a
/// gradient.
#[test]
fn messages_that_block_take_time_of_the_worker_that_sends_them() {
    let program = program("dapple", &Shape::new(2, 2));
    let makespan = |blocking| {
        let free = network(1, 1, Link::default(), link(0.5, 0.0));
        let network = Network { blocking, ..free };
        let costs = traffic(&program, 0.0, &[]).on(network, &program);
        simulate(&program, &costs).makespan()
    };
    // F, a message, F, B, F, B, a message, B.
    assert_eq!(makespan(false), 1.0 + 0.5 + 2.0 * 3.0 + 0.5 + 2.0);
    // The gradient of the first micro-batch is in flight before the second forward begins.
    assert_eq!(makespan(true), makespan(false) + 0.5);
}

#[test]
fn groups_must_lie_alike() {
    let fits =
        |width, ranks, depth| network(width, ranks, Link::default(), Link::default()).fits(depth);
    for (ranks, fit) in
        [(1, true), (2, true), (3, false), (4, true), (6, false), (8, true), (0, false)]
    {
        assert_eq!(fits(4, ranks, 4), fit, "{ranks}");
    }
    assert!(fits(1, 6, 6) && fits(2, 30, 9));
}

#[test]
fn a_network_that_costs_nothing_changes_nothing() {
    for schedule in SCHEDULES {
        let Ok(timetable) = schedule.timetable(&Shape::new(4, 8)) else { continue };
        let program = lower(&timetable, &Lowering::default()).expect("proven");
        let free = network(3, 2, Link::default(), Link::default());
        let traffic = traffic(&program, 1e6, &[1e6, 1e7]);
        let costs = traffic.on(free, &program);
        assert_eq!(simulate(&program, &costs), simulate(&program, &COMPUTE), "{}", schedule.name());
    }
}

proptest! {
    #[test]
    fn a_slower_network_is_never_faster(
        depth in 1usize..=3, width in 1usize..=6, ranks in 1usize..=8, n in 1u32..=6,
        links in prop::array::uniform4(0.0f64..2.0), slower in prop::array::uniform4(0.0f64..1.0),
        tensors in prop::collection::vec(1.0f64..50.0, 1..6), activation in 0.0f64..4.0,
    ) {
        let depth = 2 * depth;
        let program = program("chimera", &Shape::new(depth, n));
        let of = |[a, b, c, d]: [f64; 4]| network(width, ranks, link(a, b), link(a + c, b + d));
        prop_assume!(of(links).fits(depth));
        let costs = |network| {
            traffic(&program, activation, &tensors).on(network, &program)
        };
        let fast = costs(of(links));
        let slow = costs(of(std::array::from_fn(|i| links[i] + slower[i])));
        for bucket in (0..program.buckets().len() as u32).map(BucketId) {
            prop_assert!(fast.reduce(bucket) <= slow.reduce(bucket));
            for ((a, fast), (b, slow)) in fast.links(bucket).iter().zip(slow.links(bucket)) {
                prop_assert!(a == b && fast <= slow);
            }
        }
        prop_assert!(fast.agree() <= slow.agree());
        let compute = simulate(&program, &COMPUTE).makespan();
        let took = simulate(&program, &fast).makespan();
        // Sums begin when nothing else is in their way: they cannot take longer than one after
        // another.
        let one_by_one: f64 = (0..program.buckets().len() as u32).map(|b| fast.reduce(BucketId(b))).sum();
        let messages = simulate(&program, &OnlyMessages(&fast)).makespan();
        prop_assert!(compute <= messages && messages <= took && took <= messages + one_by_one + 1e-9);
    }
}

/// Costs without sums.
struct OnlyMessages<'c, C>(&'c C);

impl<C: Costs> Costs for OnlyMessages<'_, C> {
    fn op(&self, worker: chimera_schedule::ids::WorkerId, op: &chimera_schedule::op::Op) -> f64 {
        self.0.op(worker, op)
    }

    fn message(&self, token: &chimera_schedule::effects::Token) -> f64 {
        self.0.message(token)
    }
}

/// Compressed messages carry a part of the bytes, between the named workers only.
#[test]
fn a_compressed_message_costs_fewer_bytes() {
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(3, 1)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let network = network(1, 3, link(1.0, 0.5), Link::default());
    let sent = |compression: &str| {
        let costs = traffic(&program, 64.0, &[]).on(network, &program);
        let costs = costs.compressed(&compression.parse().expect("a compression"));
        let bytes = program.rows().iter().flatten().filter_map(|instr| match instr {
            Instr::Send(token, _) => {
                assert_eq!(costs.message(token), 1.0 + 0.5 * costs.traffic().message(token));
                Some(((token.stage.0, token.to.0), costs.traffic().message(token)))
            }
            _ => None,
        });
        let mut bytes: Vec<_> = bytes.collect();
        bytes.sort_by_key(|(edge, _)| *edge);
        bytes.into_iter().map(|(_, bytes)| bytes).collect::<Vec<f64>>()
    };
    // Edges 0-1, 1-0, 1-2, 2-1.
    assert_eq!(sent("f32"), [64.0; 4]);
    assert_eq!(sent("bf16"), [32.0; 4]);
    assert_eq!(sent("int8"), [17.0; 4]);
    assert_eq!(sent("int8:1-2"), [64.0, 64.0, 17.0, 17.0]);
}

/// A message costs the bytes of its own edge, in either direction.
#[test]
fn an_edge_may_carry_other_bytes_than_the_activation() {
    let chain = find("gpipe").expect("known").timetable(&Shape::new(3, 1)).expect("fits");
    let graph = StageGraph::new(3, &[0], &[(0, 1), (0, 2), (1, 2)], &[2]).expect("a graph");
    let timetable = Timetable { graph, ..chain };
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let network = network(1, 3, link(1.0, 0.5), Link::default());
    let costs = traffic(&program, 4.0, &[]).on(network, &program);
    let costs = costs.with_edge(StageId(0), StageId(2), 10.0);
    let sent = program.rows().iter().flatten().filter_map(|instr| match instr {
        Instr::Send(token, _) => Some(((token.stage.0, token.to.0), costs.message(token))),
        _ => None,
    });
    let mut sent: Vec<_> = sent.collect();
    sent.sort_by_key(|(edge, _)| *edge);
    let expected =
        [((0, 1), 3.0), ((0, 2), 6.0), ((1, 0), 3.0), ((1, 2), 3.0), ((2, 0), 6.0), ((2, 1), 3.0)];
    assert_eq!(sent, expected);
}

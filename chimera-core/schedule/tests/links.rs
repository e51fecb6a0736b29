//! The simulator of links against another one, which is written from docs/links.md alone: it goes
//! from event to event, finds paths by trying all of them, and rates by growing them.

mod links {
    pub(crate) mod drawn;
    mod mapping;
    pub(crate) mod reference;
}

use chimera_schedule::analyze::links::{Collective, Sharing, Topology, Traffic};
use chimera_schedule::analyze::{Network, NetworkCosts, simulate, simulate_on};
use chimera_schedule::costs::{Costs, UniformCosts};
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};

use links::drawn::Draw;
use links::reference::{Job, step};

fn program(schedule: &str, shape: &Shape, sync: Sync) -> Option<Program> {
    let timetable = find(schedule).ok()?.timetable(shape).ok()?;
    lower(&timetable, &Lowering { sync, ..Lowering::default() }).ok()
}

/// Compares both simulators on the `seed`-th drawing; returns false if it cannot be drawn.
fn agree(seed: u64) -> bool {
    let mut draw = Draw::new(seed);
    let schedules = ["gpipe", "1f1b", "chimera", "interleaved", "zb-h1", "zb-v", "gems", "hanayo"];
    let depth = [2, 3, 4, 4, 6][draw.below(5)];
    let shape = Shape::new(depth, 1 + draw.below(6) as u32);
    let sync = [Sync::AtEnd, Sync::Eager][draw.below(2)];
    let schedule = schedules[draw.below(schedules.len())];
    let Some(program) = program(schedule, &shape, sync) else { return false };
    let width = 1 + draw.below(3);
    let topology = draw.topology(depth * width);
    let costs = UniformCosts::new(draw.time(), draw.time(), [0.0, draw.time()][draw.below(2)]);
    let n_stages = program.placement().n_stages();
    let activations: Vec<f64> = (0..n_stages).map(|_| draw.bytes()).collect();
    let gradients: Vec<f64> = program.buckets().iter().map(|_| draw.bytes()).collect();
    let traffic = Traffic::new(program.units_per_micro(), activations, gradients);
    let found = simulate_on(&program, &costs, &traffic, &topology, width).expect("connected");
    let job = Job { program: &program, costs: &costs, traffic: &traffic, width };
    let wanted = step(&job, &topology);
    let makespan = found.timeline.makespan();
    let error = (makespan - wanted).abs() / wanted.max(1e-300);
    assert!(
        error <= 1e-9,
        "seed {seed}: {schedule} {shape:?} x {width}: {makespan} and {wanted}\n{}",
        topology.to_json()
    );
    true
}

#[test]
fn drawn_programs_on_drawn_topologies_take_as_long_as_by_the_page() {
    let n: u64 = std::env::var("LINKS_DRAWINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let n_drawn = (0..n).filter(|seed| agree(*seed)).count() as u64;
    assert!(n_drawn > n / 2, "{n_drawn}");
}

/// Links that nothing contends for make the same step as the formula of a message.
#[test]
fn a_dedicated_network_is_the_formula() {
    let program = program("1f1b", &Shape::new(4, 8), Sync::AtEnd).unwrap();
    let text = r#"{"format": 1, "switches": ["s"],
        "devices": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
        "links": [{"from": "a", "to": "s", "bytes_per_s": 1e3, "dedicated": true, "latency_s": 0.05},
                  {"from": "b", "to": "s", "bytes_per_s": 1e3, "dedicated": true, "latency_s": 0.05},
                  {"from": "c", "to": "s", "bytes_per_s": 1e3, "dedicated": true, "latency_s": 0.05},
                  {"from": "d", "to": "s", "bytes_per_s": 1e3, "dedicated": true, "latency_s": 0.05}]}"#;
    let topology = Topology::from_json(text).unwrap();
    let compute = UniformCosts::new(1.0, 2.0, 0.0);
    let traffic = Traffic::new(1, vec![300.0; 4], Vec::new());
    let linked = simulate_on(&program, &compute, &traffic, &topology, 1).unwrap();
    let link = chimera_schedule::analyze::Link { alpha: 0.1, beta: 1e-3 };
    let network = Network { inside: link, ..Network::free(4) };
    let formula = NetworkCosts::of_messages(compute, network, program.placement(), 1, &[300.0; 4]);
    let makespan = simulate(&program, &formula).makespan();
    assert!((linked.timeline.makespan() - makespan).abs() < 1e-12 * makespan);
    let message = linked.costs(&compute).message(&token(&program));
    assert!((message - 0.4).abs() < 1e-12, "{message}");
}

/// The first message of a program.
fn token(program: &Program) -> chimera_schedule::effects::Token {
    use chimera_schedule::program::Instr;
    let mut instrs = program.rows().iter().flatten();
    let sent = instrs.find_map(|instr| match instr {
        Instr::Send(token, _) => Some(*token),
        _ => None,
    });
    sent.expect("a message")
}

#[test]
fn more_traffic_on_a_shared_link_takes_longer() {
    let program = program("1f1b", &Shape::new(4, 8), Sync::AtEnd).unwrap();
    let compute = UniformCosts::new(1.0, 2.0, 0.0);
    let mut draw = Draw::new(1);
    let mut topology = draw.star(16, 4, 1e3);
    let traffic = Traffic::new(1, vec![2000.0; 4], vec![3000.0; 4]);
    let mut last = 0.0;
    for sharing in [Sharing::Fair, Sharing::Fifo] {
        topology.sharing = sharing;
        for (name, reductions) in Collective::ALL {
            topology.reductions = reductions;
            let alone = simulate_on(&program, &compute, &traffic, &topology, 1).unwrap();
            let wide = simulate_on(&program, &compute, &traffic, &topology, 4).unwrap();
            assert!(wide.timeline.makespan() > alone.timeline.makespan(), "{name}");
            assert!(wide.loads.iter().any(|load| load.is_contended));
            let used = wide.loads.iter().flat_map(|load| &load.loaded);
            assert!(used.clone().all(|used| used.used <= 1.0 + 1e-9 && used.from < used.to));
            last = wide.timeline.makespan();
        }
    }
    assert!(last > 0.0);
}

#[test]
fn a_message_that_waits_for_a_busy_link_is_part_of_its_load() {
    let program = program("gpipe", &Shape::new(2, 1), Sync::AtEnd).unwrap();
    let text = r#"{"format": 1, "sharing": "fifo", "switches": ["s", "t"], "ranks": ["a", "c", "b", "d"],
        "devices": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}],
        "links": [{"from": "a", "to": "s", "bytes_per_s": 1e9, "dedicated": true},
                  {"from": "b", "to": "s", "bytes_per_s": 1e9, "dedicated": true, "latency_s": 0.1},
                  {"from": "s", "to": "t", "bytes_per_s": 1e3},
                  {"from": "t", "to": "c", "bytes_per_s": 1e9, "dedicated": true},
                  {"from": "t", "to": "d", "bytes_per_s": 1e9, "dedicated": true}]}"#;
    let topology = Topology::from_json(text).unwrap();
    let traffic = Traffic::new(1, vec![300.0; 2], Vec::new());
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let linked = simulate_on(&program, &costs, &traffic, &topology, 2).unwrap();
    let shared = linked.loads.iter().find(|load| load.name == "s > t").expect("a used link");
    assert!(shared.is_contended);
    let milli = |time: f64| (time * 1e3).round() as u64;
    let load = |used: &chimera_schedule::analyze::links::Loaded| {
        (milli(used.from), milli(used.to), used.n_flows)
    };
    let loaded: Vec<_> = shared.loaded.iter().map(load).collect();
    assert_eq!(loaded, [(1000, 1100, 1), (1100, 1300, 2), (1300, 1600, 1)]);
}

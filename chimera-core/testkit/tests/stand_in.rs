//! Programs run with stages that sleep, compared with their simulation.

use chimera_engine::comm::{Host, Threads};
use chimera_engine::engine::run_threads;
use chimera_schedule::analyze::{Link, Network, NetworkCosts, Work, link, path_length, simulate};
use chimera_schedule::costs::{Costs, GivenTimes, PerStage, UniformCosts};
use chimera_schedule::lower::{Lowering, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use chimera_testkit::stand_in::{Executed, Execution, execute, execute_rank};

/// No run can be faster than its simulation. The excess depends on the load of the machine.
#[test]
fn every_schedule_takes_at_least_what_its_simulation_says() {
    let how = Execution { seconds_per_unit: 1e-3, n_runs: 1, on_thread: &|| () };
    for schedule in SCHEDULES {
        let name = schedule.name();
        let timetable = schedule.timetable(&Shape::new(4, 8)).expect("fits");
        let program = lower(&timetable, &Lowering::default()).expect("proven");
        let times = GivenTimes {
            message: Some(PerStage(vec![0.5])),
            pair: Some(PerStage(vec![2.5])),
            ..GivenTimes::default()
        };
        let costs = times.of_stages(&timetable).expect("one number for all");
        let simulated = simulate(&program, &costs);
        let mut runs = execute(&program, &costs, how).expect("the program runs");
        let run = &mut runs[0];
        assert_eq!(run.timeline.events.len(), simulated.events.len(), "{name}");
        let least = simulated.makespan() * 1e-3;
        for measured in [run.timeline.makespan(), run.wall_s] {
            assert!(measured >= 0.9 * least, "{name}: {measured} s of {least}");
        }
        let busy = |busy: Vec<f64>| busy.iter().sum::<f64>();
        let (slept, asked) = (busy(run.timeline.busy()), busy(simulated.busy()) * 1e-3);
        assert!((slept / asked - 1.0).abs() < 0.5, "{name}: {slept} s of {asked}");
        assert!(run.bubble_ratio() < 1.0, "{name}");
        link(&program, &mut run.timeline, &costs);
        let path = path_length(&program, &run.timeline.critical_path(), &costs);
        assert!(path > 0.0 && path <= simulated.makespan() + 1e-9, "{name}: {path}");
    }
}

/// Four groups of four workers, two per node, whose reductions occupy lanes and links.
fn reduced(schedule: &str, blocking: bool) -> (Program, impl Costs + Sync + use<>) {
    let timetable = find(schedule).expect("known").timetable(&Shape::new(4, 8)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let n_stages = program.placement().n_stages();
    let network = Network {
        width: 4,
        ranks_per_node: 2,
        inside: Link { alpha: 0.1, beta: 1e-3 },
        between: Link { alpha: 0.25, beta: 2e-3 },
        blocking,
        ..Network::free(2)
    };
    let (placement, units) = (program.placement(), program.units_per_micro());
    let compute = UniformCosts::new(1.0, 2.0, 0.0).per_units(units);
    let activations = vec![200.0; n_stages];
    let costs = NetworkCosts::of_messages(compute, network, placement, units, &activations)
        .with_sums(&program, &vec![vec![2000.0]; n_stages], &[]);
    (program, costs)
}

/// The duration of each reduction of a run, by bucket and worker.
fn reductions(run: &Executed) -> Vec<(u32, u16, f64)> {
    let events = run.timeline.events.iter().filter_map(|event| match event.work {
        Work::Reduce(bucket) => Some((bucket.0, event.worker.0, event.end - event.start)),
        _ => None,
    });
    let mut all: Vec<_> = events.collect();
    all.sort_by_key(|(bucket, worker, _)| (*bucket, *worker));
    all
}

fn takes_what_is_simulated(run: &Executed, program: &Program, costs: &impl Costs, unit: f64) {
    let (simulated, name) = (simulate(program, costs), program.schedule());
    let (least, step) =
        (simulated.makespan() * unit, (simulated.makespan() + costs.agree()) * unit);
    assert_eq!(run.timeline.events.len(), simulated.events.len(), "{name}");
    for (measured, least) in
        [(run.timeline.makespan(), least), (run.wall_s, least), (run.step_s, step)]
    {
        assert!(measured >= 0.9 * least, "{name}: {measured} s of {least}");
    }
    let all = reductions(run);
    assert!(!all.is_empty(), "{name} reduces");
    for (bucket, worker, took) in all {
        let asked = costs.reduce(chimera_schedule::ids::BucketId(bucket)) * unit;
        assert!((took - asked).abs() < 1e-6, "{name}: worker {worker} {took} s of {asked}");
    }
}

/// Reductions and the step sync take as long as the costs say.
#[test]
fn reductions_and_the_step_sync_take_their_time() {
    let how = Execution { seconds_per_unit: 1e-3, n_runs: 1, on_thread: &|| () };
    for (schedule, blocking) in [("1f1b", false), ("chimera", false), ("zb-v", true)] {
        let (program, costs) = reduced(schedule, blocking);
        assert!(costs.agree() > 0.0, "{schedule}");
        let runs = execute(&program, &costs, how).expect("the program runs");
        takes_what_is_simulated(&runs[0], &program, &costs, 1e-3);
    }
}

/// Ranks that share no memory start at one time, and each learns what all of them did.
#[test]
fn ranks_of_several_processes_run_the_same_program() {
    let how = Execution { seconds_per_unit: 1e-3, n_runs: 2, on_thread: &|| () };
    let (program, costs) = reduced("chimera", false);
    let ranks =
        run_threads(4, |comm: &mut Threads<Host>| execute_rank(&program, &costs, how, comm));
    let ranks = ranks.expect("the program runs");
    for runs in &ranks {
        assert_eq!(runs.len(), 2);
        takes_what_is_simulated(&runs[1], &program, &costs, 1e-3);
        assert_eq!(runs[1].wall_s, ranks[0][1].wall_s);
    }
    let few = run_threads(2, |comm: &mut Threads<Host>| execute_rank(&program, &costs, how, comm));
    let fault = few.expect_err("two ranks for four workers");
    assert!(fault.message.contains("has 4 worker(s), and 2 ranks were started"), "{fault}");
}

#[test]
fn a_run_that_no_clock_can_tell_is_refused() {
    let timetable = SCHEDULES[0].timetable(&Shape::new(2, 2)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let costs = GivenTimes::default().of_stages(&timetable).expect("the default");
    let how = Execution { seconds_per_unit: 1e30, n_runs: 1, on_thread: &|| () };
    let fault = execute(&program, &costs, how).expect_err("too long");
    assert!(fault.message.contains("cannot be timed"), "{fault}");
}

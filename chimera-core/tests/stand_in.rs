//! Programs run with stages that sleep, held against their simulation.

use chimera_core::analyze::{link, path_length, simulate};
use chimera_core::costs::{GivenTimes, PerStage};
use chimera_core::lower::{Lowering, lower};
use chimera_core::schedule::{SCHEDULES, Shape};
use chimera_core::stand_in::{Execution, execute};

/// No run can be faster than its simulation; how much slower depends on what else the machine does.
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

#[test]
fn a_run_that_no_clock_can_tell_is_refused() {
    let timetable = SCHEDULES[0].timetable(&Shape::new(2, 2)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("proven");
    let costs = GivenTimes::default().of_stages(&timetable).expect("the default");
    let how = Execution { seconds_per_unit: 1e30, n_runs: 1, on_thread: &|| () };
    let fault = execute(&program, &costs, how).expect_err("too long");
    assert!(fault.message.contains("cannot be timed"), "{fault}");
}

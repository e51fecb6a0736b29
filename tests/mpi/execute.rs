//! A schedule that ranks as processes execute, compared with its simulation.

use serde_json::Value;

use crate::ranks;

/// Only rank 0 reports, and the run takes the simulated time, or longer on a busy machine.
#[test]
fn a_schedule_runs_as_ranks() {
    let costs = "--width 2 --ranks-per-node 4 --between 0.5,1e-3 --activation-bytes 100 --gradient-bytes 2000";
    for options in ["", costs] {
        let line = "simulate 1f1b --depth 4 --micro-batches 8 --execute 0.002 --json";
        let ran = ranks(4, &format!("{line} {options}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let figures: Value = serde_json::from_str(&ran.stdout).expect("one report");
        for (simulated, measured) in [("makespan", "measured_makespan"), ("step", "measured_step")]
        {
            let of = |key: &str| figures[key].as_f64().expect("a number");
            let ratio = of(measured) / of(simulated);
            assert!(ratio > 0.95 && ratio < 2.0, "{options} {measured}: {ratio}");
        }
        let exposed = figures["sums"].as_f64().expect("a number");
        assert_eq!(exposed > 0.0, !options.is_empty(), "{figures:#}");
    }
}

#[test]
fn a_schedule_wants_a_rank_for_each_worker() {
    let ran = ranks(3, "simulate 1f1b --depth 4 --micro-batches 8 --execute 0.002");
    assert_ne!(ran.code, Some(0));
    let named = "the schedule has 4 worker(s), and 3 ranks were started";
    assert!(ran.stderr.contains(named), "{}", ran.stderr);
}

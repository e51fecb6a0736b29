//! Pipes without a flush.

use chimera_schedule::analyze::{Event, Work, simulate};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::Sync;
use chimera_schedule::op::{Kind, Op};
use chimera_schedule::schedule::Shape;

use super::programs::program;

/// Workers idle only while the window fills and drains, for any number of steps, and keep no more
/// weight versions than published.
#[test]
fn asynchronous_schedules_have_no_bubble_inside_a_window() {
    for d in 1..=8 {
        for (n, window) in [(d, 1), (d, 4), (d + 1, 3), (3 * d, 2), (2, 5)] {
            for schedule in ["pipedream", "pipedream-2bw", "pipeoptim"] {
                if schedule == "pipedream-2bw" && n < d {
                    continue;
                }
                let p =
                    program(schedule, &Shape { window, ..Shape::new(d, n as u32) }, Sync::AtEnd);
                let what = format!("{schedule} D={d} N={n} T={window}");
                let (df, total) = (d as f64, n as f64 * f64::from(window));
                let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
                assert_eq!(timeline.makespan(), 3.0 * (total + df - 1.0), "{what}");
                for (w, busy) in timeline.busy().into_iter().enumerate() {
                    let row: Vec<_> =
                        timeline.events.iter().filter(|e| e.worker.index() == w).collect();
                    let span = row[row.len() - 1].end - row[0].start;
                    // 1F1B waits D-1-w times before its first backwards and after its last forwards.
                    assert!(span - busy <= 3.0 * (df - 1.0 - w as f64), "{what}, worker {w}");
                    let is = |kind: Kind| {
                        let of = move |op: Op| op.kind == kind;
                        move |e: &&Event| matches!(e.work, Work::Cell(cell) if cell.ops().any(of))
                    };
                    let first = row.iter().position(is(Kind::Backward)).expect("a backward");
                    let last = row.iter().rposition(is(Kind::Forward)).expect("a forward");
                    for pair in row.get(first..=last).unwrap_or_default().windows(2) {
                        assert_eq!(pair[0].end, pair[1].start, "{what}, worker {w}");
                    }
                }
                let in_flight = |w: usize| ((d - w) as f64).min(total);
                assert_eq!(p.peaks(), (0..d).map(in_flight).collect::<Vec<_>>(), "{what}");
                for (w, &versions) in p.weight_versions().iter().enumerate() {
                    let what = format!("{what}: worker {w} holds {versions}");
                    let most = match schedule {
                        "pipedream" => (d - w) as u32,
                        "pipeoptim" => ((d - w) as u32).min(total as u32).min(2),
                        _ => window.min(2),
                    };
                    assert!(versions <= most, "{what}");
                    // Shorter windows drain before a worker has read all the versions it could
                    // hold.
                    let is_long = schedule != "pipedream" || total as usize >= 2 * (d - w) - 2;
                    assert!(versions == most || !is_long, "{what}");
                }
            }
        }
    }
}

/// The last worker is busy from its first op on, and only one version of the weights is kept. A
/// step's only backward takes 2N on each of the other workers at the end.
#[test]
fn timeprest_keeps_one_version_and_its_last_worker_busy() {
    for d in 1..=6 {
        for (n, window) in [(1, 4), (2, 3), (d as u32, 2), (5, 1)] {
            let p = program("timeprest", &Shape { window, ..Shape::new(d, n) }, Sync::AtEnd);
            let what = format!("D={d} N={n} T={window}");
            let (before, n_, steps) = (d as f64 - 1.0, f64::from(n), f64::from(window));
            let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
            assert_eq!(timeline.makespan(), 3.0 * n_ * steps + (2.0 * n_ + 1.0) * before, "{what}");
            assert_eq!(timeline.busy()[d - 1], 3.0 * n_ * steps, "{what}");
            assert_eq!(p.weight_versions(), vec![1; d], "{what}");
            let peak = |w: usize| n_ * ((d - w) as f64).min(steps);
            assert_eq!(p.peaks(), (0..d).map(peak).collect::<Vec<_>>(), "{what}");
        }
    }
}

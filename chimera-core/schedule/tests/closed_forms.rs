//! Schedules have the published times and memory.

#[path = "closed_forms/asynchronous.rs"]
mod asynchronous;
#[path = "closed_forms/line.rs"]
mod line;
#[path = "closed_forms/mirrored.rs"]
mod mirrored;
mod programs;
#[path = "closed_forms/v.rs"]
mod v;

use chimera_schedule::analyze::Timeline;
use chimera_schedule::lower::{Lowering, Sync, lower};
use chimera_schedule::op::Cell;
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Scaling, Shape};
use programs::{makespan, program, timetable};

/// The values that schedule designers quote.
#[test]
fn quoted_values() {
    let chimera =
        |d, n, scaling| program("chimera", &Shape { scaling, ..Shape::new(d, n) }, Sync::AtEnd);
    let b2 = |d, n, scaling| makespan(&chimera(d, n, scaling), 1.0, 2.0);
    assert_eq!(
        [b2(4, 4, Scaling::Direct), b2(6, 6, Scaling::Direct), b2(8, 8, Scaling::Direct)],
        [16.0, 26.0, 36.0]
    );
    assert_eq!(
        [b2(4, 8, Scaling::Direct), b2(4, 16, Scaling::Direct), b2(8, 16, Scaling::Direct)],
        [30.0, 58.0, 66.0]
    );
    assert_eq!(
        [b2(4, 8, Scaling::Doubling), b2(4, 16, Scaling::Doubling), b2(8, 16, Scaling::Doubling)],
        [27.0, 51.0, 57.0]
    );
    assert_eq!(b2(4, 12, Scaling::Doubling), 41.0);
    assert_eq!(
        [b2(4, 4, Scaling::Halving), b2(4, 8, Scaling::Halving), b2(8, 16, Scaling::Halving)],
        [14.0, 26.0, 54.0]
    );
    let pipes = |n_pipes| {
        makespan(&program("chimera", &Shape { n_pipes, ..Shape::new(8, 8) }, Sync::AtEnd), 1.0, 2.0)
    };
    assert_eq!([pipes(2), pipes(4), pipes(8)], [36.0, 28.0, 24.0]);
    let dualpipe = |d, n| makespan(&program("dualpipe", &Shape::new(d, n), Sync::AtEnd), 1.0, 2.0);
    assert_eq!([dualpipe(4, 8), dualpipe(8, 20)], [26.0, 66.0]);
    let of = |schedule, shape| {
        let p = program(schedule, &shape, Sync::AtEnd);
        (makespan(&p, 1.0, 2.0), peaks(&p).1)
    };
    // In times of a chunk; a worker's stage has two, with W waves 2W.
    assert_eq!(of("v-min", Shape::new(4, 8)), (59.0, 2.0));
    assert_eq!(of("v-half", Shape::new(4, 8)), (53.0, 3.0));
    assert_eq!(of("zb-v", Shape::new(4, 8)), (51.0, 4.0));
    assert_eq!(
        ["v-min", "v-half", "zb-v"].map(|s| of(s, Shape::new(4, 16)).0),
        [107.0, 101.0, 99.0]
    );
    let hanayo = |n_waves| of("hanayo", Shape { n_waves, ..Shape::new(4, 4) }).0;
    assert_eq!([1, 2, 4].map(hanayo), [36.0, 61.0, 109.0]);
    let mixpipe = |d, n, k| of("mixpipe", Shape { in_flight: Some(k), ..Shape::new(d, n) });
    // Without the squeeze 65, 55 and 110.
    assert_eq!(mixpipe(8, 16, 5), (62.0, 8.0));
    assert_eq!(mixpipe(4, 16, 3), (52.0, 4.0));
    assert_eq!(mixpipe(8, 32, 8), (106.0, 12.0));
    assert_eq!(makespan(&apart("dualpipe", &Shape::new(8, 20)), 1.0, 2.0), 63.0);
}

/// The program of a schedule with its pairs split into separate ops.
fn apart(schedule: &str, shape: &Shape) -> Program {
    let mut t = timetable(schedule, shape);
    for row in &mut t.rows {
        *row = row.iter().flat_map(Cell::ops).map(Cell::One).collect();
    }
    lower(&t, &Lowering::default()).expect("proven")
}

fn peaks(program: &Program) -> (f64, f64) {
    let peaks = program.peaks().iter().copied();
    (peaks.clone().fold(f64::INFINITY, f64::min), peaks.fold(0.0, f64::max))
}

/// The time from each worker's first op to the end of its last.
fn spans(timeline: &Timeline) -> Vec<f64> {
    let mut spans = vec![(f64::INFINITY, 0.0); timeline.n_workers];
    for event in &timeline.events {
        let (start, end) = &mut spans[event.worker.index()];
        (*start, *end) = (event.start.min(*start), event.end.max(*end));
    }
    spans.iter().map(|(start, end)| end - start).collect()
}

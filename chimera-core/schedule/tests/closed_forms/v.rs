//! One pipe that goes there and back.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::Sync;
use chimera_schedule::schedule::Shape;

use super::programs::{makespan, program};
use super::{peaks, spans};

/// Here a chunk's F, b and w cost 1 each, so a worker's share of a micro-batch costs 6.
#[test]
fn zb_v_has_its_closed_forms() {
    for d in 1..=16 {
        for n in d as u32..=40 {
            let p = program("zb-v", &Shape::new(d, n), Sync::AtEnd);
            let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
            let (df, nf) = (d as f64, f64::from(n));
            assert_eq!(timeline.makespan(), 6.0 * nf + df - 1.0, "D={d} N={n}");
            assert!(peaks(&p).1 <= df, "D={d} N={n}: {:?}", p.peaks());
            // For N of at least 2D-1 nobody waits between its first op and its last.
            let span = 6.0 * nf + (2.0 * df - 1.0 - nf).max(0.0);
            let longest = spans(&timeline).into_iter().fold(0.0, f64::max);
            assert_eq!(longest, span, "D={d} N={n}");
        }
    }
}

#[test]
fn the_vs_hold_no_more_than_they_promise() {
    for d in 1..=16 {
        for n in 1..=40 {
            for (schedule, most) in [("zb-v", d), ("v-half", (d + 2) / 2), ("v-min", (d + 4) / 3)] {
                let p = program(schedule, &Shape::new(d, n), Sync::AtEnd);
                assert!(peaks(&p).1 <= most as f64, "{schedule} D={d} N={n}: {:?}", p.peaks());
            }
        }
    }
}

/// Its chunks are half as long as the stages of a pipeline of the same depth.
#[test]
fn hanayo_with_one_wave_is_chimera_on_twice_the_stages() {
    for d in 1..=8 {
        for n in (2..=2 * d as u32).step_by(2) {
            let shape = Shape { n_waves: 1, ..Shape::new(d, n / 2) };
            let hanayo = program("hanayo", &shape, Sync::AtEnd);
            let chimera = program("chimera", &Shape::new(2 * d, n), Sync::AtEnd);
            assert_eq!(makespan(&hanayo, 1.0, 2.0), makespan(&chimera, 1.0, 2.0), "D={d} N={n}");
        }
    }
}

#[test]
fn hanayo_holds_twice_what_1f1b_does_at_most() {
    for d in 1..=8 {
        for n in 1..=40 {
            for n_waves in 1..=4 {
                let shape = Shape { n_waves, ..Shape::new(d, n) };
                let p = program("hanayo", &shape, Sync::AtEnd);
                let most = f64::from(n).min(2.0 * d as f64 - 1.0);
                assert!(peaks(&p).1 <= most, "D={d} N={n}, {n_waves} waves: {:?}", p.peaks());
            }
        }
    }
}

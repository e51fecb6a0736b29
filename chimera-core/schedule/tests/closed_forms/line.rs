//! One pipe, in which each worker holds one stage, or several one after another.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::lower::Sync;
use chimera_schedule::schedule::Shape;

use super::programs::{makespan, program};
use super::{peaks, spans};

#[test]
fn baselines_have_their_closed_forms() {
    for d in 1..=16 {
        for n in 1..=40 {
            let shape = Shape::new(d, n);
            let (df, nf) = (d as f64, f64::from(n));
            let gpipe = program("gpipe", &shape, Sync::AtEnd);
            assert_eq!(makespan(&gpipe, 1.0, 2.0), 3.0 * (nf + df - 1.0), "gpipe {d} {n}");
            assert_eq!(peaks(&gpipe), (nf, nf));
            let dapple = program("dapple", &shape, Sync::AtEnd);
            assert_eq!(makespan(&dapple, 1.0, 2.0), 3.0 * (nf + df - 1.0), "dapple {d} {n}");
            let want: Vec<f64> = (0..d).map(|s| ((d - s) as f64).min(nf)).collect();
            assert_eq!(dapple.peaks(), want);
            let bubble = simulate(&dapple, &UniformCosts::EQUAL).bubble_ratio();
            assert!((bubble - (df - 1.0) / (nf + df - 1.0)).abs() < 1e-12);
            let gems = program("gems", &shape, Sync::AtEnd);
            assert_eq!(
                makespan(&gems, 1.0, 2.0),
                3.0 * df + (nf - 1.0) * (2.0 * df + 1.0),
                "gems {d} {n}"
            );
            assert_eq!(peaks(&gems), (1.0, 1.0));
        }
    }
}

/// Here a chunk costs one forward, so a worker's pass through its v chunks costs v.
#[test]
fn interleaved_has_its_closed_form() {
    for d in 1..=8 {
        for n in (1..=5).map(|k| k * d as u32) {
            for n_chunks in 1..=4 {
                let shape = Shape { n_chunks, ..Shape::new(d, n) };
                let (df, nf, v) = (d as f64, f64::from(n), n_chunks as f64);
                let p = program("interleaved", &shape, Sync::AtEnd);
                let want = v * 3.0 * nf + 3.0 * (df - 1.0);
                assert_eq!(makespan(&p, 1.0, 2.0), want, "D={d} N={n} v={n_chunks}");
            }
        }
    }
}

/// Slices, each a k-th of a micro-batch, fill and drain the pipeline in a k-th of the time and
/// memory.
#[test]
fn seq1f1b_has_its_closed_forms() {
    for d in 1..=16 {
        for n in [1, 2, 3, 8, 16, 21] {
            for k in 1..=8u32 {
                let p = program("seq1f1b", &Shape { n_slices: k, ..Shape::new(d, n) }, Sync::AtEnd);
                let (df, nf, kf) = (d as f64, f64::from(n), f64::from(k));
                let (got, want) = (makespan(&p, 1.0, 2.0), 3.0 * nf + 3.0 * (df - 1.0) / kf);
                assert!((got - want).abs() < 1e-9, "D={d} N={n} k={k}: {got} for {want}");
                for (s, peak) in p.peaks().iter().enumerate() {
                    let want = ((df - s as f64 + kf - 1.0) / kf).min(nf);
                    assert!((peak - want).abs() < 1e-6, "D={d} N={n} k={k} s={s}: {peak}");
                }
            }
        }
    }
}

/// Groups of k micro-batches (kFkB) need more activation memory and channel capacity, and gain
/// nothing if messages are free.
#[test]
fn dapple_by_groups_has_its_closed_forms() {
    for d in 1..=10 {
        for n in 1..=30 {
            for n_in_turn in [2, 3, 5, 8, 31] {
                let p = program("dapple", &Shape { n_in_turn, ..Shape::new(d, n) }, Sync::AtEnd);
                let at = format!("D={d} N={n} k={n_in_turn}");
                assert_eq!(makespan(&p, 1.0, 2.0), 3.0 * (f64::from(n) + d as f64 - 1.0), "{at}");
                let peak = |s| f64::from((n_in_turn * (d - s) as u32).min(n));
                assert_eq!(p.peaks(), (0..d).map(peak).collect::<Vec<_>>(), "{at}");
                if d > 1 {
                    let ahead = n.saturating_sub(n_in_turn).clamp(1, n_in_turn);
                    assert_eq!(p.channel_bound(), ahead, "{at}");
                }
            }
        }
    }
}

#[test]
fn zb_h1_has_its_closed_forms() {
    for d in 1..=16 {
        for n in 1..=40 {
            let (df, nf) = (d as f64, f64::from(n));
            let p = program("zb-h1", &Shape::new(d, n), Sync::AtEnd);
            let want = if nf >= df { 3.0 * nf + df - 1.0 } else { 2.0 * df + 2.0 * nf - 1.0 };
            assert_eq!(makespan(&p, 1.0, 2.0), want, "D={d} N={n}");
            assert_eq!(peaks(&p).1, df.min(nf), "D={d} N={n}");
        }
    }
}

#[test]
fn zb_h2_has_its_closed_forms() {
    for d in 1..=12 {
        for n in 1..=40u32 {
            let p = program("zb-h2", &Shape::new(d, n), Sync::AtEnd);
            let (others, nf) = (d as u32 - 1, f64::from(n));
            let want = 3 * n + 2 * others - (n / 2).min(others);
            assert_eq!(makespan(&p, 1.0, 2.0), f64::from(want), "D={d} N={n}");
            let peak = nf.min(f64::from(2 * others + 1));
            assert_eq!(peaks(&p), (peak, peak), "D={d} N={n}");
            if n > 2 * others {
                let timeline = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0));
                assert_eq!(spans(&timeline), vec![3.0 * nf; d], "D={d} N={n}");
            }
        }
    }
}

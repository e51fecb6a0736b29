//! Pipes in both directions.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{Costs, UniformCosts};
use chimera_schedule::ids::WorkerId;
use chimera_schedule::lower::Sync;
use chimera_schedule::op::Op;
use chimera_schedule::program::Instr;
use chimera_schedule::schedule::{Scaling, Shape};

use super::peaks;
use super::programs::{makespan, program};

/// Chimera for N = D with 2f pipes (schedules of the paper's figures 3 and 8).
#[test]
fn chimera_of_one_unit_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for f in (1..=d / 2).filter(|f| (d / 2) % f == 0) {
            let p = program(
                "chimera",
                &Shape { n_pipes: 2 * f, ..Shape::new(d, d as u32) },
                Sync::AtEnd,
            );
            let (df, ff) = (d as f64, f as f64);
            assert_eq!(makespan(&p, 1.0, 1.0), 2.0 * df + df / ff - 2.0, "D={d} f={f}");
            for b in [1.0, 1.5, 2.0, 3.0] {
                assert_eq!(
                    makespan(&p, 1.0, b),
                    df * (1.0 + b) + (df / ff - 2.0) * b,
                    "D={d} f={f} B={b}"
                );
            }
            assert_eq!(peaks(&p), (df - df / (2.0 * ff) + 1.0, df), "D={d} f={f}");
            let equal = simulate(&p, &UniformCosts::EQUAL).bubble_ratio();
            assert!((equal - (df - 2.0 * ff) / (2.0 * ff * df + df - 2.0 * ff)).abs() < 1e-12);
            if f == 1 {
                let each: Vec<f64> =
                    (0..d).map(|w| (w.min(d - 1 - w) + d / 2 + 1) as f64).collect();
                assert_eq!(p.peaks(), each);
                let b2 = simulate(&p, &UniformCosts::new(1.0, 2.0, 0.0)).bubble_ratio();
                assert!((b2 - (df - 2.0) / (1.5 * df + df - 2.0)).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn chimera_of_few_micro_batches_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for n in 1..=d as u32 {
            let p = program("chimera", &Shape::new(d, n), Sync::AtEnd);
            let pairs = f64::from(n.div_ceil(2));
            assert_eq!(makespan(&p, 1.0, 1.0), 2.0 * d as f64 - 2.0 + 2.0 * pairs, "D={d} N={n}");
            assert_eq!(makespan(&p, 1.0, 2.0), 3.0 * d as f64 + 4.0 * (pairs - 1.0), "D={d} N={n}");
        }
    }
}

#[test]
fn chimera_of_many_units_has_its_closed_forms() {
    for d in (2..=16).step_by(2) {
        for k in 1..=6 {
            let n = (k * d) as u32;
            let of =
                |scaling| program("chimera", &Shape { scaling, ..Shape::new(d, n) }, Sync::AtEnd);
            let (df, nf, kf) = (d as f64, f64::from(n), k as f64);
            let (direct, doubling, halving) =
                (of(Scaling::Direct), of(Scaling::Doubling), of(Scaling::Halving));
            assert_eq!(makespan(&direct, 1.0, 1.0), 2.0 * nf + df - 2.0);
            assert_eq!(
                makespan(&direct, 1.0, 2.0),
                3.0 * nf + 2.0 * (df - 2.0) + (kf - 1.0) * (df - 2.0)
            );
            let unit = program("chimera", &Shape::new(d, d as u32), Sync::AtEnd);
            assert_eq!(direct.peaks(), unit.peaks());
            assert_eq!((direct.channel_bound(), halving.channel_bound()), (1, 1));
            let tail = match k {
                1 => 2.0 * (df - 2.0),
                k if k % 2 == 0 => 3.0 * (df / 2.0 - 1.0),
                _ => 3.0 * (df / 2.0 - 1.0) + df - 2.0,
            };
            assert_eq!(makespan(&doubling, 1.0, 2.0), 3.0 * nf + tail, "doubling D={d} K={k}");
            if k > 1 {
                assert_eq!(peaks(&doubling), (1.5 * df + 1.0, 2.0 * df), "doubling D={d} K={k}");
                assert_eq!(doubling.channel_bound(), 2);
            }
            assert_eq!(makespan(&halving, 1.0, 2.0), 3.0 * nf + df - 2.0, "halving D={d} K={k}");
            assert_eq!(peaks(&halving), ((1.5 * df + 1.0) / 2.0, df), "halving D={d} K={k}");
        }
    }
}

/// Early reductions start where idle time follows: for f = 1 and N = D, for the stages above D/2.
#[test]
fn eager_opt_starts_early_only_where_idle_time_follows() {
    for d in [4usize, 8, 12] {
        let p = program("chimera", &Shape::new(d, d as u32), Sync::EagerOpt);
        for row in p.rows() {
            let last_run = row.iter().rposition(|i| matches!(i, Instr::Run(_))).expect("some work");
            for (at, instr) in row.iter().enumerate() {
                if let Instr::Reduce(b) = instr {
                    let stage = p.buckets()[b.index()].stages[0];
                    assert_eq!(at < last_run, stage.index() > d / 2, "{stage} of D={d}");
                }
            }
        }
    }
}

#[test]
fn mixpipe_keeps_to_what_may_be_in_flight() {
    for d in 1..=10 {
        for n in 1..=24 {
            for k in [1, 2, 3, 5, 12] {
                let shape = Shape { in_flight: Some(k), ..Shape::new(d, n) };
                let p = program("mixpipe", &shape, Sync::AtEnd);
                let most = (2.0 * f64::from(k)).min((d as f64).max((1.5 * f64::from(k)).floor()));
                assert!(peaks(&p).1 <= most, "D={d} N={n} K={k}: {:?}", p.peaks());
            }
        }
    }
}

/// DualPipe, and DualPipeV on half as many workers with half as many micro-batches and chunks of
/// twice the size.
#[test]
fn dualpipe_has_its_closed_forms() {
    for half in 1..=8 {
        for n in 2 * half..=4 * half + 1 {
            let plain = program("dualpipe", &Shape::new(2 * half, 2 * n as u32), Sync::AtEnd);
            let folded = program("dualpipe-v", &Shape::new(half, n as u32), Sync::AtEnd);
            let (work, peak) = (6.0 * n as f64, 2.0 * half as f64 + 1.0);
            assert_eq!(peaks(&plain), (peak, peak), "D={} N={}", 2 * half, 2 * n);
            assert_eq!(peaks(&folded), (peak / 2.0, peak / 2.0), "D={half} N={n}");
            for pair in [2.0, 2.5, 3.0, 4.0] {
                let bubble = (half as f64 - 1.0) * (pair + 2.0 - 3.0);
                for p in [&plain, &folded] {
                    let timeline = simulate(p, &Overlapped { pair });
                    let idle: Vec<f64> =
                        timeline.busy().iter().map(|busy| timeline.makespan() - busy).collect();
                    // The published bubble is that of the middle workers; if a pair costs as much
                    // as its ops, all have the same.
                    assert_eq!(idle[half - 1], bubble, "{} {half} {n} {pair}", p.schedule());
                    if pair == 3.0 {
                        assert_eq!(idle, vec![bubble; idle.len()], "{} {half} {n}", p.schedule());
                        assert_eq!(timeline.makespan(), work + bubble);
                    }
                }
            }
        }
    }
}

/// F = b = w = 1, and a pair takes the time that its overlap leaves.
struct Overlapped {
    pair: f64,
}

impl Costs for Overlapped {
    fn op(&self, worker: WorkerId, op: &Op) -> f64 {
        UniformCosts::new(1.0, 2.0, 0.0).op(worker, op)
    }

    fn pair(&self, _: WorkerId, _: &Op, _: &Op) -> f64 {
        self.pair
    }
}

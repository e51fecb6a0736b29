//! With any schedule, a pipeline trains as one worker does.

use std::collections::BTreeMap;

use chimera_engine::engine::Optimizer;
use chimera_models::model::Architecture;
use chimera_schedule::lower::{Hoist, Passes, Recompute, Sync};
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape, find};
use chimera_schedule::update::Update;
use proptest::prelude::*;

use crate::training::withheld::Withheld;
use crate::training::{N_STEPS, Outcome, Run, body, config, execute, train};

fn assert_equivalent(run: &Run) {
    let (many, one) = (train(run).expect("trains"), train(&run.alone()).expect("trains"));
    let close = |name: &str, a: &[f64], b: &[f64], tolerance: f64| {
        assert_eq!(a.len(), b.len(), "{name}");
        let size = b.iter().fold(1e-9, |m: f64, x| m.max(x.abs()));
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance * size, "{name}: {worst:e} off {size:e} in {run:?}");
    };
    // Scalars cross the device's f32 boundary; gradients do not.
    close("losses", &many.losses, &one.losses, 1e-5);
    close("norms", &many.norms, &one.norms, 1e-5);
    assert!(many.gradients.keys().eq(one.gradients.keys()));
    for (name, values) in &many.gradients {
        close(&format!("{name:?}"), values, &one.gradients[name], 1e-12);
    }
}

fn shapes(schedule: &'static str, depths: &[usize], n_micro_batches: &[u32]) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for &depth in depths {
        for &n in n_micro_batches {
            let plain = Shape::new(depth, n);
            if schedule != "chimera" {
                shapes.push(plain);
                continue;
            }
            for f in (1..=depth / 2).filter(|f| (depth / 2) % f == 0) {
                for (_, scaling) in Scaling::ALL {
                    shapes.push(Shape { n_pipes: 2 * f, scaling, ..plain });
                }
            }
        }
    }
    shapes
}

#[test]
fn schedules_of_any_depth_train_as_one_worker() {
    for schedule in
        ["gpipe", "dapple", "gems", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "mixpipe"]
    {
        for shape in shapes(schedule, &[1, 2, 3, 4], &[1, 3, 6]) {
            assert_equivalent(&Run::new(schedule, shape));
        }
    }
}

#[test]
fn chunks_train_as_one_worker() {
    for (depth, n_chunks, n) in [(1, 2, 3), (2, 2, 4), (2, 3, 6), (4, 2, 8)] {
        for width in [1, 2] {
            let shape = Shape { n_chunks, ..Shape::new(depth, n) };
            assert_equivalent(&Run { width, ..Run::new("interleaved", shape) });
        }
    }
}

/// Slices of the sequence train as whole sequences do: even and uneven ones, with every form of
/// decoder, every recomputation, split backwards and separate documents.
#[test]
fn slices_train_as_one_worker() {
    let ways = [Recompute::None, Recompute::Selective, Recompute::Full];
    let architectures = [Architecture::GPT2, Architecture::LLAMA];
    for (depth, n_slices, n) in [(1, 2, 2), (2, 3, 2), (3, 2, 3), (4, 4, 3)] {
        let shape = Shape { n_slices, ..Shape::new(depth, n) };
        for architecture in architectures {
            for recompute in ways {
                let passes = Passes {
                    recompute,
                    split_backward: recompute == Recompute::None,
                    ..Passes::default()
                };
                let has_documents = n == 3;
                let run = Run { architecture, passes, has_documents, ..Run::new("seq1f1b", shape) };
                assert_equivalent(&run);
                assert_equivalent(&Run { width: 2, ..run });
            }
        }
    }
}

#[test]
fn groups_of_dapple_train_as_one_worker() {
    for (depth, n_in_turn, n) in [(2, 2, 5), (3, 3, 6), (4, 2, 7), (2, 9, 4)] {
        let shape = Shape { n_in_turn, ..Shape::new(depth, n) };
        assert_equivalent(&Run::new("dapple", shape));
    }
}

#[test]
fn waves_train_as_one_worker() {
    for (depth, n_waves, n) in [(1, 1, 2), (2, 1, 5), (2, 2, 3), (3, 1, 4), (4, 1, 6)] {
        for width in [1, 2] {
            let shape = Shape { n_waves, ..Shape::new(depth, n) };
            assert_equivalent(&Run { width, ..Run::new("hanayo", shape) });
        }
    }
}

/// Without a border between steps, weights, gradients and losses equal those of steps with one, to
/// the bit.
#[test]
fn a_free_border_changes_no_bit() {
    for schedule in SCHEDULES.iter().map(|schedule| schedule.name()) {
        for (width, is_delayed, n) in [(1, true, 8), (2, false, 8), (1, false, 4), (1, true, 1)] {
            let shape = Shape { n_waves: 1, ..Shape::new(4, n) };
            let run = Run { width, is_delayed, clip: None, ..Run::new(schedule, shape) };
            if find(schedule).expect("known").timetable(&run.shape).is_err() {
                continue; // it needs more micro-batches
            }
            let free_border = Some(N_STEPS as u32);
            let free = Run { passes: Passes { free_border, ..run.passes }, ..run.clone() };
            let timetable = find(schedule).expect("known").timetable(&run.shape).expect("fits");
            if timetable.update != Update::Flush {
                continue;
            }
            let (free, bound) = (train(&free).expect("trains"), train(&run).expect("trains"));
            assert_eq!(free.losses, bound.losses, "{schedule}");
            assert!(!free.weights.is_empty() && !free.gradients.is_empty());
            for (name, weight) in &free.weights {
                assert_eq!(weight, &bound.weights[name], "{name:?} of {schedule}");
            }
            for (name, gradient) in &free.gradients {
                assert_eq!(gradient, &bound.gradients[name], "{name:?} of {schedule}");
            }
            for (free, bound) in free.norms.iter().zip(&bound.norms) {
                assert!((free - bound).abs() <= 1e-6 * bound, "{schedule}: {free} for {bound}");
            }
        }
    }
}

/// Without a border, gradients are clipped as with one, to the bit: in no step, in some or in all.
#[test]
fn clipping_without_a_border_changes_no_bit() {
    for (schedule, width) in [("zb-h2", 1), ("zb-v", 1), ("chimera", 2), ("1f1b", 2)] {
        let run = Run { width, clip: None, ..Run::new(schedule, Shape::new(4, 8)) };
        let mut norms = train(&run).expect("trains").norms;
        norms.sort_by(f64::total_cmp);
        let (least, middle, most) = (norms[0], norms[norms.len() / 2], norms[norms.len() - 1]);
        for clip in [2.0 * most, middle, 0.1 * least] {
            let bound = Run { clip: Some(clip), ..run.clone() };
            let free_border = Some(N_STEPS as u32);
            let free = Run { passes: Passes { free_border, ..run.passes }, ..bound.clone() };
            let (free, bound) = (train(&free).expect("trains"), train(&bound).expect("trains"));
            assert_eq!(free.losses, bound.losses, "{schedule}, {clip}");
            let last = |outcome: &Outcome| -> BTreeMap<String, Vec<f64>> {
                let (step, _) = outcome.weights.keys().next_back().expect("weights");
                let of_last = outcome.weights.iter().filter(|((of, _), _)| of == step);
                of_last.map(|((_, name), weights)| (name.clone(), weights.clone())).collect()
            };
            assert_eq!(last(&free), last(&bound), "{schedule}, {clip}");
        }
    }
}

#[test]
fn any_number_in_flight_trains_as_one_worker() {
    for (depth, k, n) in [(2, 1, 3), (3, 1, 4), (3, 5, 7), (4, 1, 5), (4, 6, 12)] {
        for is_delayed in [false, true] {
            let shape = Shape { in_flight: Some(k), ..Shape::new(depth, n) };
            assert_equivalent(&Run { is_delayed, ..Run::new("mixpipe", shape) });
        }
    }
}

#[test]
fn pairs_train_as_one_worker() {
    for (schedule, depth, n) in [
        ("dualpipe", 2, 4),
        ("dualpipe", 4, 10),
        ("dualpipe", 8, 16),
        ("dualpipe-v", 1, 2),
        ("dualpipe-v", 2, 5),
        ("dualpipe-v", 4, 8),
    ] {
        for width in [1, 2] {
            for is_delayed in [false, true] {
                let run = Run::new(schedule, Shape::new(depth, n));
                assert_equivalent(&Run { width, is_delayed, ..run });
            }
        }
    }
}

#[test]
fn chimera_trains_as_one_worker() {
    for shape in shapes("chimera", &[2, 4, 8], &[1, 2, 5, 8, 11]) {
        assert_equivalent(&Run::new("chimera", shape));
    }
}

#[test]
fn width_and_sync_policies_do_not_change_the_training() {
    for (_, sync) in Sync::ALL {
        for (clip, check_finite) in [(Some(0.5), true), (None, false)] {
            for n in [1, 4, 7] {
                let four = Shape { n_pipes: 4, ..Shape::new(4, n) };
                for (schedule, shape) in [("dapple", Shape::new(3, n)), ("chimera", four)] {
                    let run =
                        Run { sync, clip, check_finite, width: 2, ..Run::new(schedule, shape) };
                    assert_equivalent(&run);
                }
            }
        }
    }
}

/// Every policy sums the same gradients in the same order.
#[test]
fn every_sync_policy_trains_the_same_bits() {
    let window = |shape| Shape { window: 3, ..shape };
    for (schedule, shape) in [
        ("dapple", Shape::new(3, 4)),
        ("gems", Shape::new(4, 5)),
        ("zb-h1", Shape::new(3, 3)),
        ("chimera", Shape { n_pipes: 4, ..Shape::new(4, 7) }),
        ("pipedream", window(Shape::new(3, 2))),
        ("pipedream-2bw", window(Shape::new(3, 3))),
    ] {
        // Without a flush the ends of a pipe cannot share a tensor.
        let is_window = schedule.starts_with("pipedream");
        for tied in [false, true].into_iter().filter(|tied| !(is_window && *tied)) {
            let [first, others @ ..] = Sync::ALL.map(|(_, sync)| {
                let run = Run { sync, tied, width: 2, ..Run::new(schedule, shape) };
                train(&run).expect("trains")
            });
            for other in others {
                assert!(!other.losses.is_empty() && other == first, "{schedule}");
            }
        }
    }
}

/// Gradients of a stage that are summed in parts give the same bits: even shares and whole tensors,
/// with and without factors.
#[test]
fn parts_of_buckets_change_no_bit() {
    let four = Shape { n_pipes: 4, ..Shape::new(4, 6) };
    for (schedule, shape, width) in
        [("dapple", Shape::new(3, 4), 3), ("zb-h1", Shape::new(2, 5), 2), ("chimera", four, 3)]
    {
        for (optimizer, shard_optimizer, tied) in [
            (Optimizer::adamw(), false, true),
            (Optimizer::adamw(), true, false),
            (Optimizer::kfac(), false, false),
        ] {
            let run = Run { optimizer, shard_optimizer, tied, width, ..Run::new(schedule, shape) };
            let whole = train(&run).expect("trains");
            for bucket_elements in [1, 20, 200] {
                let parts = train(&Run { bucket_elements, ..run.clone() }).expect("trains");
                assert_eq!(parts, whole, "{bucket_elements} of {run:?}");
            }
        }
    }
}

#[test]
fn every_optimizer_trains_as_on_one_worker() {
    let four = Shape { n_pipes: 4, ..Shape::new(4, 6) };
    for optimizer in Optimizer::all() {
        for (clip, check_finite) in [(Some(0.5), true), (None, false)] {
            for (schedule, shape) in
                [("dapple", Shape::new(3, 4)), ("zb-h1", Shape::new(2, 5)), ("chimera", four)]
            {
                for tied in [false, true] {
                    let run = Run::new(schedule, shape);
                    let optimizer = optimizer.clone();
                    let run = Run { optimizer, clip, check_finite, tied, width: 2, ..run };
                    assert_equivalent(&run);
                }
            }
        }
    }
    let losses = |optimizer| {
        let run = Run { optimizer, ..Run::new("dapple", Shape::new(2, 2)) };
        train(&run).expect("trains").losses
    };
    let all = Optimizer::all().map(losses);
    let others = |one: usize| all[one + 1..].iter().all(|other| *other != all[one]);
    assert!((0..all.len()).all(others), "each is one of its own");
}

#[test]
fn a_tied_head_is_summed_over_both_ends() {
    for (schedule, shape) in [
        ("dapple", Shape::new(3, 4)),
        ("gems", Shape::new(3, 3)),
        ("chimera", Shape::new(2, 4)),
        ("chimera", Shape { n_pipes: 4, ..Shape::new(4, 6) }),
        ("dualpipe", Shape::new(2, 4)),
        ("dualpipe-v", Shape::new(2, 4)),
        ("zb-v", Shape::new(3, 4)),
        ("hanayo", Shape::new(2, 3)),
        ("mixpipe", Shape::new(2, 5)),
    ] {
        assert_equivalent(&Run { tied: true, width: 2, ..Run::new(schedule, shape) });
    }
}

/// The schedules that are split or recomputed below, each at a few shapes.
fn each_schedule() -> Vec<Run> {
    let mut runs = Vec::new();
    for schedule in ["gpipe", "dapple", "gems", "zb-h1", "chimera"] {
        let shapes = shapes(schedule, &[2, 4], &[1, 5, 8]);
        runs.extend(shapes.into_iter().map(|shape| Run::new(schedule, shape)));
    }
    for schedule in
        ["dualpipe", "dualpipe-v", "hanayo", "zb-v", "v-half", "v-min", "zb-h2", "mixpipe"]
    {
        runs.push(Run::new(schedule, Shape::new(2, 6)));
    }
    let chunks = Shape { n_chunks: 2, ..Shape::new(2, 4) };
    runs.extend([1, 2].map(|width| Run { width, ..Run::new("interleaved", chunks) }));
    runs
}

#[test]
fn split_backwards_train_as_one_worker() {
    for run in each_schedule() {
        let passes = Passes { split_backward: true, ..Passes::default() };
        assert_equivalent(&Run { passes, ..run });
    }
}

/// Recomputation runs the same kernels on the same inputs: every bit stays the same, and memory is
/// saved.
#[test]
fn recomputing_changes_no_bit() {
    for run in each_schedule() {
        let plain = train(&run).expect("trains");
        // Late weight halves hold more than recomputation saves.
        let holds_whole = ["gpipe", "dapple", "chimera"].contains(&run.schedule);
        let mut bytes = vec![plain.bytes];
        for recompute in [Recompute::Selective, Recompute::Full] {
            let passes = Passes { recompute, ..Passes::default() };
            let again = train(&Run { passes, ..run.clone() }).expect("trains");
            bytes.push(again.bytes);
            let is_equal = (&again.losses, &again.norms) == (&plain.losses, &plain.norms)
                && again.gradients == plain.gradients
                && again.weights == plain.weights;
            assert!(is_equal, "{recompute:?} {run:?}");
        }
        if holds_whole && run.shape.n_micro_batches > 4 {
            assert!(bytes.is_sorted_by(|a, b| a > b), "{bytes:?} {run:?}");
        }
    }
}

#[test]
fn recomputing_trains_as_one_worker_wherever_it_stands() {
    let mut n = 0;
    for run in each_schedule() {
        for hoist in [Hoist::OnDemand, Hoist::By(2), Hoist::Auto] {
            n += 1;
            let recompute = if n % 2 == 0 { Recompute::Full } else { Recompute::Selective };
            let split_backward = n % 4 > 1;
            let passes = Passes { recompute, hoist, split_backward, ..Passes::default() };
            assert_equivalent(&Run { passes, ..run.clone() });
        }
    }
}

#[test]
fn every_model_trains_as_one_worker() {
    for architecture in [Architecture::BERT, Architecture::LLAMA] {
        for (n, run) in each_schedule().into_iter().enumerate() {
            let passes = Passes { split_backward: n % 2 == 1, ..Passes::default() };
            assert_equivalent(&Run { architecture, tied: n % 3 > 0, passes, ..run });
        }
    }
}

/// The dropped elements depend only on step, sample and layer. So neither the schedule, nor split
/// backwards, nor recomputation, nor the number of workers changes them.
#[test]
fn dropped_elements_are_the_same_everywhere() {
    let mut n = 0;
    for architecture in Architecture::ALL {
        for run in each_schedule() {
            n += 1;
            let recompute = [Recompute::None, Recompute::Selective, Recompute::Full][n % 3];
            let passes = Passes { recompute, split_backward: n % 2 == 1, ..Passes::default() };
            assert_equivalent(&Run { architecture, dropout: 0.2, passes, ..run });
        }
        let run = Run { architecture, ..Run::new("dapple", Shape::new(2, 2)) };
        let plain = train(&run).expect("trains").losses;
        let losses = train(&Run { dropout: 0.2, ..run }).expect("trains").losses;
        assert!(losses.iter().zip(&plain).all(|(a, b)| a != b), "{losses:?} {plain:?}");
    }
}

#[test]
fn the_same_run_gives_the_same_bits_however_messages_arrive() {
    for scaling in [Scaling::Direct, Scaling::Doubling, Scaling::Halving] {
        let run = Run { width: 2, ..Run::new("chimera", Shape { scaling, ..Shape::new(4, 9) }) };
        let first = train(&run).expect("trains");
        assert_eq!(first, train(&run).expect("trains"));
        assert_eq!(first, train(&Run { is_delayed: true, ..run }).expect("trains"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_trains_as_one_worker(
        schedule in prop::sample::select(vec!["gpipe", "dapple", "gems", "zb-h1", "zb-h2", "chimera"]),
        half in 1usize..=4,
        f in 1usize..=4,
        n in 1u32..=13,
        width in 1usize..=2,
        scaling in prop::sample::select(Scaling::ALL.map(|(_, s)| s).to_vec()),
        sync in prop::sample::select(Sync::ALL.map(|(_, s)| s).to_vec()),
    ) {
        prop_assume!(half % f == 0);
        let shape = Shape { n_pipes: 2 * f, scaling, ..Shape::new(2 * half, n) };
        assert_equivalent(&Run { width, sync, ..Run::new(schedule, shape) });
    }
}

/// A rank that waits for a gradient meanwhile adds the parts of a sum that it has. Here it gets the
/// gradient only after the sum's parts.
#[test]
fn sums_go_on_while_a_rank_waits() {
    let run = Run {
        sync: Sync::Eager,
        patience: std::time::Duration::from_secs(20),
        ..Run::new("chimera", Shape::new(2, 2))
    };
    let timetable = find(run.schedule).expect("known").timetable(&run.shape).expect("fits");
    let ran = execute(&run, &timetable, |job, inner, stage| {
        let mut comm = Withheld { inner, parted: None, summed: None, n_withheld: 0 };
        body(job, &mut comm, stage)?;
        Ok(comm.n_withheld)
    });
    let n_withheld: usize = ran.expect("trains").into_iter().sum();
    assert!(n_withheld > 0, "no rank waited in the middle of a sum");
}

#[test]
fn a_shared_out_optimizer_trains_the_same_with_less_memory() {
    for (n_pipes, width, tied, optimizer, n_moments) in [
        (2, 1, false, Optimizer::adamw(), 2),
        (2, 2, true, Optimizer::adamw(), 2),
        (4, 1, true, Optimizer::lamb(), 2),
        (4, 2, false, Optimizer::sgd(), 1),
    ] {
        for (_, sync) in Sync::ALL {
            for clip in [Some(0.5), None] {
                let shape = Shape { n_pipes, ..Shape::new(4, 4) };
                let check_finite = clip.is_some(); // without both nobody waits before the updates
                let run = Run::new("chimera", shape);
                let optimizer = optimizer.clone();
                let run = Run { width, tied, optimizer, sync, clip, check_finite, ..run };
                let whole = train(&run).expect("trains");
                for is_delayed in [false, true] {
                    let run = Run { shard_optimizer: true, is_delayed, ..run.clone() };
                    let mut shared = train(&run).expect("trains");
                    assert!(shared.bytes < whole.bytes, "{} of {}", shared.bytes, whole.bytes);
                    if !tied {
                        // Of n_pipes * width replicas, one keeps its moments.
                        let n_others = (n_pipes * width - 1) as u64;
                        let saved = n_others * 4 * n_moments * config(tied).n_params();
                        assert_eq!(whole.bytes - shared.bytes, saved);
                    }
                    shared.bytes = whole.bytes;
                    assert!(shared == whole, "{run:?}");
                }
            }
        }
    }
}

#[test]
fn an_asynchronous_schedule_shares_out_nothing() {
    let run = Run::new("pipedream", Shape { window: 3, ..Shape::new(2, 2) });
    let fault = train(&Run { shard_optimizer: true, ..run }).unwrap_err();
    assert!(fault.message.contains("cannot shard its optimizer"), "{fault}");
}

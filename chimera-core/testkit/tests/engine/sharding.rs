//! State that is sharded over replicas trains as state that is not.

use chimera_engine::engine::Optimizer;
use chimera_schedule::lower::{Passes, Recompute, Sync};
use chimera_schedule::schedule::{Shape, find};
use proptest::prelude::*;

use crate::training::{Outcome, Run, train};

/// Synchronous schedules, with one and with several stages on a worker.
const SCHEDULES: [&str; 7] =
    ["gpipe", "dapple", "gems", "interleaved", "zb-v", "dualpipe", "chimera"];

/// The shapes of a schedule at a depth, for two and four pipes.
fn shapes(schedule: &str, depth: usize) -> Vec<Shape> {
    let n_pipes = if schedule == "chimera" { &[2, 4][..] } else { &[2] };
    let of = |n_pipes: &usize| Shape { n_pipes: *n_pipes, ..Shape::new(depth, 2 * depth as u32) };
    let fits = |shape: &Shape| find(schedule).expect("known").timetable(shape).is_ok();
    n_pipes.iter().map(of).filter(fits).collect()
}

/// The outcomes without shards, with a sharded optimizer, and with gradients sharded as well.
fn outcomes(run: &Run) -> [Outcome; 3] {
    let stages = [(false, false), (true, false), (true, true)];
    stages.map(|(shard_optimizer, shard_gradients)| {
        let run = Run { shard_optimizer, shard_gradients, ..run.clone() };
        train(&run).unwrap_or_else(|fault| panic!("{run:?}: {fault}"))
    })
}

/// Checks that losses, norms, gradients and weights of all outcomes are equal to the bit.
fn assert_same([whole, optimizer, gradients]: [Outcome; 3], run: &Run) {
    assert!(!whole.losses.is_empty());
    for mut sharded in [optimizer, gradients] {
        sharded.bytes = whole.bytes;
        assert!(sharded == whole, "{run:?}");
    }
}

#[test]
fn sharded_state_trains_to_the_same_bits() {
    let mut n_runs = 0;
    for schedule in SCHEDULES {
        for depth in [1, 2, 4] {
            for shape in shapes(schedule, depth) {
                for width in [1, 2, 4] {
                    let sync = Sync::Eager;
                    let run = Run { width, sync, ..Run::new(schedule, shape) };
                    assert_same(outcomes(&run), &run);
                    n_runs += 1;
                }
            }
        }
    }
    assert!(n_runs >= 50, "{n_runs} shapes fit");
}

/// Chimera's replicas have backwards of one stage before those of the other begin, so that only one
/// stage's gradients are whole at a time.
#[test]
fn gradients_that_are_summed_leave_their_shard() {
    let shape = Shape::new(4, 4);
    let run = Run { width: 2, sync: Sync::Eager, ..Run::new("chimera", shape) };
    let [whole, optimizer, gradients] = outcomes(&run);
    assert!(gradients.bytes < optimizer.bytes && optimizer.bytes < whole.bytes);
    // At the end of a row nothing is freed earlier.
    let run = Run { sync: Sync::AtEnd, ..run };
    let [_, optimizer, at_end] = outcomes(&run);
    assert!(gradients.bytes <= at_end.bytes && at_end.bytes <= optimizer.bytes);
}

#[test]
fn sharded_gradients_need_a_sharded_optimizer() {
    let run = Run { shard_gradients: true, ..Run::new("chimera", Shape::new(2, 2)) };
    let fault = train(&run).unwrap_err();
    assert!(fault.message.contains("set shard_optimizer too"), "{fault}");
}

/// Ranks of a node add up first: the sums differ from others by rounding, and are the same whoever
/// keeps them and whenever messages come.
#[test]
fn sums_inside_of_nodes_first_train_the_same_up_to_rounding() {
    for (schedule, width, reduce_within, odd) in
        [("chimera", 4, 4, 5), ("chimera", 2, 2, 3), ("dapple", 4, 4, 3), ("gems", 6, 4, 5)]
    {
        let run = Run { width, ..Run::new(schedule, Shape::new(2, 4)) };
        let whole = train(&run).expect("trains");
        let grouped = Run { reduce_within, ..run.clone() };
        let [plain, ..] = outcomes(&grouped);
        assert!(plain != whole, "{schedule} adds up in another order");
        let both = plain.losses.iter().zip(&whole.losses);
        assert!(both.into_iter().all(|(a, b)| (a - b).abs() <= 1e-5 * b), "{schedule}");
        assert_same(outcomes(&grouped), &grouped);
        let bucket_elements = 30;
        assert_same(
            outcomes(&Run { is_delayed: true, bucket_elements, ..grouped.clone() }),
            &grouped,
        );
        // These ranks do not divide the replicas into equal nodes, so all add up at once.
        assert!(train(&Run { reduce_within: odd, ..run }).expect("trains") == whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn options_of_a_run_change_nothing_about_it(
        schedule in prop::sample::select(&SCHEDULES[..]),
        (depth, width) in (1usize..4, 1usize..4),
        sync in prop::sample::select(Sync::ALL.map(|(_, sync)| sync).to_vec()),
        optimizer in prop::sample::select(vec![Optimizer::adamw(), Optimizer::lamb(), Optimizer::sgd()]),
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Full]),
        (split_backward, clips, tied, is_delayed) in any::<(bool, bool, bool, bool)>(),
        bucket_elements in prop::sample::select(vec![1, 30, usize::MAX]),
    ) {
        let Some(shape) = shapes(schedule, depth).pop() else { return Ok(()) };
        let passes = Passes { recompute, split_backward, ..Passes::default() };
        let (clip, check_finite) = (clips.then_some(0.5), clips);
        let run = Run::new(schedule, shape);
        let run = Run { width, sync, optimizer, clip, check_finite, tied, ..run };
        let run = Run { passes, bucket_elements, is_delayed, ..run };
        assert_same(outcomes(&run), &run);
    }
}

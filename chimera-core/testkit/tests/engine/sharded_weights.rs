//! Weights that replicas share train as weights that each of them has.

use chimera_schedule::lower::{Passes, Recompute, Sync};
use chimera_schedule::schedule::{Shape, find};
use proptest::prelude::*;

use crate::training::{Outcome, Run, train};

/// Synchronous schedules, with one and with several stages on a worker.
const SCHEDULES: [&str; 7] =
    ["gpipe", "dapple", "chimera", "interleaved", "zb-v", "hanayo", "dualpipe"];

/// The shapes of a schedule at a depth, for two and four pipes.
fn shapes(schedule: &str, depth: usize) -> Vec<Shape> {
    let n_pipes = if schedule == "chimera" { &[2, 4][..] } else { &[2] };
    let n_waves = 1;
    let of = |n_pipes: &usize| Shape {
        n_pipes: *n_pipes,
        n_waves,
        ..Shape::new(depth, 2 * depth as u32)
    };
    let fits = |shape: &Shape| find(schedule).expect("known").timetable(shape).is_ok();
    n_pipes.iter().map(of).filter(fits).collect()
}

/// Trains with sharded weights, of which at most `whole_stages` stages are whole at once.
fn sharded(run: &Run, whole_stages: u32) -> Outcome {
    let run = Run { shard_optimizer: true, shard_gradients: true, whole_stages, ..run.clone() };
    train(&run).unwrap_or_else(|fault| panic!("{run:?}: {fault}"))
}

/// Checks that losses, norms, gradients and weights are equal to the bit. Returns the bytes.
fn assert_same(run: &Run, whole_stages: u32) -> [u64; 2] {
    let whole = train(run).unwrap_or_else(|fault| panic!("{run:?}: {fault}"));
    let mut sharded = sharded(run, whole_stages);
    let bytes = [whole.bytes, std::mem::replace(&mut sharded.bytes, whole.bytes)];
    assert!(!whole.losses.is_empty() && sharded == whole, "{run:?} with {whole_stages}");
    bytes
}

#[test]
fn sharded_weights_train_to_the_same_bits() {
    let mut n_runs = 0;
    for schedule in SCHEDULES {
        for depth in [2, 4] {
            for shape in shapes(schedule, depth) {
                for width in [1, 2] {
                    let run = Run { width, sync: Sync::Eager, ..Run::new(schedule, shape) };
                    assert_same(&run, 1 + n_runs % 2);
                    n_runs += 1;
                }
            }
        }
    }
    assert!(n_runs >= 26, "{n_runs} shapes fit");
}

/// Each worker of Chimera has a stage of each pipe, of which one is whole at a time.
#[test]
fn fewer_whole_stages_take_less_memory() {
    for n_pipes in [2, 4] {
        let shape = Shape { n_pipes, ..Shape::new(4, 4) };
        let run = Run { sync: Sync::Eager, ..Run::new("chimera", shape) };
        let gradients = Run { shard_optimizer: true, shard_gradients: true, ..run.clone() };
        let gradients = train(&gradients).expect("trains").bytes;
        let [one, all] = [1, 4].map(|whole_stages| sharded(&run, whole_stages).bytes);
        assert!(one < all && all <= gradients, "{one}, {all}, {gradients}");
    }
}

#[test]
fn sharded_weights_need_a_sharded_optimizer() {
    let run = Run { whole_stages: 1, ..Run::new("chimera", Shape::new(2, 2)) };
    let fault = train(&run).unwrap_err();
    assert!(fault.message.contains("shard_weights needs"), "{fault}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn options_of_a_run_change_nothing_about_it(
        schedule in prop::sample::select(&SCHEDULES[..]),
        (depth, width, whole_stages) in (1usize..4, 1usize..4, 1u32..4),
        sync in prop::sample::select(Sync::ALL.map(|(_, sync)| sync).to_vec()),
        recompute in prop::sample::select(vec![Recompute::None, Recompute::Full]),
        (split_backward, clips, tied, is_delayed) in any::<(bool, bool, bool, bool)>(),
        freezes in any::<bool>(),
    ) {
        let Some(shape) = shapes(schedule, depth).pop() else { return Ok(()) };
        let passes = Passes { recompute, split_backward, ..Passes::default() };
        let (clip, check_finite) = (clips.then_some(0.5), clips);
        let freeze = if freezes { "h.0.*,h.2.attn.*" } else { "" };
        let run = Run { freeze, passes, is_delayed, ..Run::new(schedule, shape) };
        let run = Run { width, sync, clip, check_finite, tied, ..run };
        assert_same(&run, whole_stages);
    }
}

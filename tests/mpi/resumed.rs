//! Checkpoints of ranks that are processes.

use std::fs::{read, write};

use crate::command::{chimera, folder};
use crate::{losses, number, options, ranks};

/// A training that is stopped and continued by other ranks, and then by threads, is one training.
#[test]
fn checkpoints_go_from_ranks_to_ranks() {
    let folder = folder();
    let line = |name: &str, steps: u64, more: &str| {
        let all = "--warmup 1 --lr-schedule constant --save-every 2 --keep 9 --resume auto";
        options(&folder, name, &format!("{all} {more}"))
            .replace("--steps 5", &format!("--steps {steps}"))
    };
    let whole = chimera(&line("whole", 8, "--depth 2 --transport threads"));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let first = ranks(2, &line("parts", 2, "--depth 2"));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stdout.contains("checkpoint: "), "{}", first.stdout);
    let second = ranks(2, &line("parts", 4, "--depth 2"));
    assert!(second.stdout.contains("step 2 is next"), "{} {}", second.stdout, second.stderr);
    let third = chimera(&line("parts", 6, "--depth 2 --transport threads"));
    assert!(third.stdout.contains("step 4 is next"), "{} {}", third.stdout, third.stderr);
    let expected = losses(&folder.path().join("whole"));
    assert_eq!(expected.len(), 8);
    assert_eq!(losses(&folder.path().join("parts")), expected[..6]);
    // Another number of workers for the same samples per step.
    let fourth = ranks(4, &line("parts", 8, "--depth 2 --width 2 --micro-batches 4"));
    assert_eq!(fourth.code, Some(0), "{}", fourth.stderr);
    let parts = losses(&folder.path().join("parts"));
    assert_eq!(parts.len(), 8);
    for ((_, own, _), (_, expected, _)) in parts.iter().zip(&expected) {
        assert!((number(own) - number(expected)).abs() < 1e-5, "{own} and {expected}");
    }
    // Whichever rank finds a damaged file, all use the checkpoint before.
    for (nth, step) in [(0, 6), (1, 4)] {
        let newest = folder.path().join(format!("parts/checkpoints/step-{:08}", step + 2));
        let shard = newest.join(format!("shard-{nth:04}.safetensors"));
        let mut bytes = read(&shard).expect("a shard");
        *bytes.last_mut().expect("values") ^= 1;
        write(&shard, bytes).expect("written");
        let fifth = ranks(2, &line("parts", step, "--depth 2"));
        assert_eq!(fifth.code, Some(0), "{}", fifth.stderr);
        assert_eq!(fifth.stderr.matches("its content is not").count(), 1, "{}", fifth.stderr);
        assert!(fifth.stdout.contains(&format!("step {step} is next")), "{}", fifth.stdout);
    }
}

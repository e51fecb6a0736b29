//! Losses of pipelines against those of one worker, on candle's kernels in f32.

use std::collections::BTreeMap;

use chimera::device::{Device, OpenDevice, Precision};
use tempfile::TempDir;

use super::{MODEL, train};
use crate::command::{folder, text};

/// The one-worker runs that others are compared with, by their options.
pub(super) struct Oracle {
    folder: TempDir,
    losses: BTreeMap<String, Vec<f64>>,
}

impl Oracle {
    pub(super) fn new() -> Oracle {
        Oracle { folder: folder(), losses: BTreeMap::new() }
    }

    pub(super) fn losses(&self, options: &str) -> Vec<f64> {
        let data = text(&self.folder);
        let (reports, _) = train(&format!("--data {} {options}", data.display()));
        reports.iter().map(|report| report.loss).collect()
    }

    /// Checks that N micro-batches on each of W groups give the losses of N * W on one worker.
    pub(super) fn check(&mut self, n: usize, width: usize, options: &str, optimizer: &str) {
        let alone = format!("{MODEL} --depth 1 --micro-batches {} {optimizer}", n * width);
        if !self.losses.contains_key(&alone) {
            let losses = self.losses(&alone);
            self.losses.insert(alone.clone(), losses);
        }
        let one = &self.losses[&alone];
        assert!(one.len() == 5 && one[4] < one[0], "nothing is learnt: {one:?}");
        let options = format!("{MODEL} --micro-batches {n} --width {width} {options} {optimizer}");
        let many = self.losses(&options);
        assert!(are_close(&many, one), "{options}: {many:?}, alone {one:?}");
    }
}

pub(super) fn are_close(many: &[f64], one: &[f64]) -> bool {
    let is_close = |(many, one): (&f64, &f64)| (many - one).abs() <= 1e-5 * one;
    many.len() == one.len() && many.iter().zip(one).all(is_close)
}

/// In bf16 the order of additions decides how some numbers are rounded.
#[test]
fn bf16_on_the_processor_trains_as_one_worker() {
    let (oracle, bf16) = (Oracle::new(), format!("{MODEL} --micro-batches 2 --precision bf16"));
    if let Err(refusal) = OpenDevice::open(Device::CPU, 0, Precision::Bf16) {
        println!("skipped: {refusal}");
        return;
    }
    let one = oracle.losses(&format!("{bf16} --depth 1"));
    assert!(one.len() == 5 && one[4] < one[0], "nothing is learnt: {one:?}");
    let in_f32 = oracle.losses(&format!("{MODEL} --micro-batches 2 --depth 1"));
    assert!(one != in_f32, "the products are in f32");
    let are_near = |many: &[f64], one: &[f64], tolerance: f64| {
        many.iter().zip(one).all(|(many, one)| (many - one).abs() <= tolerance * one)
    };
    assert!(are_near(&one, &in_f32, 1e-2), "{one:?}, in f32 {in_f32:?}");
    for schedule in ["1f1b", "chimera", "zb-h1"] {
        let many = oracle.losses(&format!("{bf16} --depth 2 --schedule {schedule}"));
        assert!(
            many.len() == 5 && are_near(&many, &one, 1e-3),
            "{schedule}: {many:?}, alone {one:?}"
        );
    }
}

#[test]
fn schedules_of_any_depth() {
    let mut oracle = Oracle::new();
    for schedule in ["gpipe", "dapple", "dapple --in-turn 2", "gems", "zb-h1", "zb-h2"] {
        for depth in [2, 3, 4, 8] {
            for n in [1, 2, 5] {
                for width in [1, 2] {
                    oracle.check(n, width, &format!("--schedule {schedule} --depth {depth}"), "");
                }
            }
        }
    }
}

#[test]
fn chunks_of_interleaved() {
    let mut oracle = Oracle::new();
    for (depth, chunks, n) in [(2, 2, 2), (2, 3, 4), (4, 2, 4)] {
        for width in [1, 2] {
            let options = format!("--schedule interleaved --depth {depth} --chunks {chunks}");
            oracle.check(n, width, &options, "");
        }
    }
}

#[test]
fn chunks_in_a_wave() {
    let mut oracle = Oracle::new();
    for schedule in
        ["zb-v", "v-half", "v-min", "hanayo --waves 1", "mixpipe", "mixpipe --in-flight 2"]
    {
        for (depth, n) in [(2, 1), (2, 5), (3, 4), (4, 2), (4, 9)] {
            for width in [1, 2] {
                oracle.check(n, width, &format!("--schedule {schedule} --depth {depth}"), "");
            }
        }
    }
    oracle.check(3, 1, "--schedule hanayo --depth 2 --waves 2", "");
}

#[test]
fn pairs_of_dualpipe() {
    let mut oracle = Oracle::new();
    for (schedule, depth, n) in
        [("dualpipe", 2, 4), ("dualpipe", 4, 8), ("dualpipe-v", 2, 5), ("dualpipe-v", 4, 8)]
    {
        for width in [1, 2] {
            oracle.check(n, width, &format!("--schedule {schedule} --depth {depth}"), "");
        }
    }
}

#[test]
fn chimera_in_every_scaling() {
    let mut oracle = Oracle::new();
    for (depth, pipes) in [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4), (8, 8)] {
        for scaling in ["direct", "doubling", "halving"] {
            // Fewer than the pipes, an odd number, whole units, and with a remainder.
            for n in [1, 3, depth, 2 * depth + 1] {
                for width in [1, 2] {
                    let options = format!("--depth {depth} --pipes {pipes} --scaling {scaling}");
                    oracle.check(n, width, &options, "");
                }
            }
        }
    }
}

#[test]
fn any_layout() {
    let mut oracle = Oracle::new();
    for (schedule, layouts) in [
        ("dapple --depth 4", &["E5T|1T|1T|1TH", "1,1,1,5", "E|4T|4T|H", "auto"][..]),
        ("chimera --depth 4", &["3,1,1,3", "E1T|3T|3T|1TH", "E|1T|7T|H", "auto"]),
        ("chimera --depth 4 --pipes 4 --recompute selective", &["2,1,4,1", "auto"]),
        ("chimera --depth 4 --scaling halving --split-backward", &["1,4,2,1", "auto"]),
        ("interleaved --depth 2 --recompute full", &["E1T|4T|2T|1TH", "E|7T|1T|H", "auto"]),
        ("zb-v --depth 2", &["5,1,1,1", "auto"]),
        ("auto --depth 2 --search-time 0.2", &["E1T|7TH", "auto"]),
    ] {
        for layout in layouts {
            for (n, width) in [(4, 1), (3, 2)] {
                // Interleaved stages need a multiple of the workers.
                let n = if schedule.starts_with("inter") { 4 } else { n };
                let options = format!("--schedule {schedule} --layout {layout}");
                oracle.check(n, width, &options, "");
                if width == 1 {
                    oracle.check(n, width, &options, "--tied");
                }
            }
        }
    }
}

#[test]
fn split_backwards_and_recomputation() {
    let mut oracle = Oracle::new();
    let schedules = [
        "gpipe --depth 3",
        "dapple --depth 4",
        "gems --depth 2",
        "zb-h1 --depth 4",
        "interleaved --depth 2",
        "chimera --depth 4",
        "chimera --depth 4 --pipes 4",
        "chimera --depth 4 --scaling doubling",
        "chimera --depth 4 --scaling halving",
    ];
    let passes = [
        "--split-backward",
        "--recompute full",
        "--recompute selective",
        "--recompute full --recompute-stages 0:1,1:selective",
        "--recompute full --hoist on-demand",
        "--recompute full --hoist 3 --split-backward",
        "--recompute selective --hoist auto --split-backward",
    ];
    for schedule in schedules {
        for passes in passes {
            for n in [2, 6] {
                oracle.check(n, 1, &format!("--schedule {schedule} {passes}"), "");
            }
        }
    }
}

/// Recomputation runs the same kernels on the same inputs and saves activation memory. Halved
/// micro-batches are recomputed by kernels of another size, which round differently.
#[test]
fn recomputation_changes_no_bit() {
    let folder = folder();
    let data = text(&folder);
    for schedule in ["gpipe --depth 2", "dapple --depth 4", "chimera", "chimera --scaling doubling"]
    {
        let run = |recompute: &str| {
            let options = format!("--schedule {schedule} --recompute {recompute}");
            let (reports, trained) =
                train(&format!("{MODEL} --data {} --micro-batches 8 {options}", data.display()));
            let losses: Vec<u64> = reports.iter().map(|r| r.loss.to_bits()).collect();
            let weights = trained.weights.into_iter().flat_map(|(_, values)| values);
            let weights: Vec<u32> = weights.map(f32::to_bits).collect();
            ((losses, weights), reports[4].bytes())
        };
        let [(none, most), (selective, less), (full, least), (layers, fewer)] =
            ["none", "selective", "full", "full --recompute-stages 0:1,1"].map(run);
        assert!(none == selective && none == full && none == layers, "{schedule}");
        assert!(most > less && less > least, "{schedule}: {most} {less} {least}");
        assert!(most > fewer && fewer > least, "{schedule}: {most} {fewer} {least}");
    }
}

#[test]
fn what_a_search_finds() {
    let mut oracle = Oracle::new();
    for options in [
        "--memory-cap 3",
        "--pipes 4 --memory-cap 4 --split-backward",
        "--scaling halving --memory-cap 4",
        "--placement v --memory-cap 2 --split-backward",
        "--placement interleaved --recompute full",
        "--placement line --tied",
    ] {
        let search = "--schedule auto --depth 4 --search-time 1";
        let optimizer = if options.ends_with("tied") { "--tied" } else { "" };
        let options = options.trim_end_matches("--tied");
        oracle.check(6, 1, &format!("{search} {options}"), optimizer);
    }
}

#[test]
fn every_sync_policy_with_and_without_the_barrier() {
    let mut oracle = Oracle::new();
    for optimizer in ["", "--clip 0.1", "--clip 0 --check-finite false"] {
        for sync in ["at-end", "eager", "eager-opt", "in-backward"] {
            for schedule in ["dapple", "chimera", "chimera --pipes 4", "chimera --scaling halving"]
            {
                for n in [1, 6] {
                    let options = format!("--schedule {schedule} --depth 4 --sync {sync}");
                    oracle.check(n, 2, &options, optimizer);
                }
            }
        }
    }
}

#[test]
fn every_optimizer_and_fall_of_the_learning_rate() {
    let mut oracle = Oracle::new();
    for optimizer in [
        "--optimizer lamb --lr-schedule linear --beta2 0.999 --eps 1e-6",
        "--optimizer sgd --lr 0.5 --min-lr 0.1 --momentum 0.5",
        "--optimizer sgd --lr 0.2 --lr-schedule constant",
        "--optimizer lamb --tied",
        "--tied --param-groups h.*.mlp.*:lr=0.5;*.bias:lr=2,weight-decay=0.1;wte*:lr=0.1",
    ] {
        for schedule in ["dapple --depth 4", "chimera --pipes 4", "chimera --scaling doubling"] {
            oracle.check(6, 1, &format!("--schedule {schedule}"), optimizer);
            oracle.check(3, 2, &format!("--schedule {schedule} --sync at-end"), optimizer);
        }
    }
}

#[test]
fn a_tied_head_is_trained_from_both_ends() {
    let mut oracle = Oracle::new();
    for schedule in ["gpipe --depth 3", "dapple --depth 4", "gems --depth 2", "chimera --pipes 4"] {
        for width in [1, 2] {
            oracle.check(3, width, &format!("--schedule {schedule}"), "--tied");
        }
    }
    let untied = oracle.losses(&format!("{MODEL} --depth 1"));
    assert!(!are_close(&untied, &oracle.losses(&format!("{MODEL} --depth 1 --tied"))));
}

#[test]
fn only_the_global_batch_matters() {
    let oracle = Oracle::new();
    let model = MODEL.replace("--micro-batch-size 2", "");
    let losses = |options: &str| oracle.losses(&format!("{model} {options}"));
    let one = losses("--depth 1 --micro-batches 8 --micro-batch-size 2");
    let same = |options: &str| are_close(&one, &losses(options));
    assert!(same("--depth 4 --micro-batches 4 --micro-batch-size 4"));
    assert!(same("--depth 2 --micro-batches 16 --micro-batch-size 1"));
    assert!(same("--depth 2 --width 2 --micro-batches 1 --micro-batch-size 8"));
    assert!(!same("--depth 2 --micro-batches 4 --micro-batch-size 2"));
    assert!(!same("--depth 2 --micro-batches 8 --micro-batch-size 2 --seed 2"));
}

/// Losses, norms and weights of equal runs are equal to the bit, whatever the timing of threads.
#[test]
fn the_same_run_gives_the_same_bits() {
    let folder = folder();
    let data = text(&folder);
    let model = MODEL.replace("--threads 1", "");
    for options in [
        "--threads 1 --schedule gpipe --depth 3 --micro-batches 5",
        "--threads 1 --schedule dapple --depth 4 --width 2",
        "--threads 1 --schedule gems --depth 2 --width 2 --micro-batches 3",
        "--threads 1 --depth 4 --width 2 --pipes 4 --micro-batches 7 --sync eager",
        "--threads 2 --depth 4 --scaling halving --micro-batches 6",
        "--threads 1 --depth 8 --scaling doubling --micro-batches 17 --clip 0 --check-finite false",
        "--threads 1 --depth 2 --width 2 --tied",
        "--threads 1 --schedule pipedream --depth 4 --width 2 --window 3",
        "--threads 2 --schedule pipedream-2bw --depth 2 --window 2",
    ] {
        let bits = || {
            let (reports, trained) = train(&format!("{model} --data {} {options}", data.display()));
            let reports = reports.iter().map(|r| (r.loss.to_bits(), r.grad_norm.to_bits()));
            let weights = trained.weights.into_iter().map(|(param, values)| {
                let bits = values.iter().map(|v| v.to_bits());
                (param.name, bits.collect::<Vec<u32>>())
            });
            (reports.collect::<Vec<_>>(), weights.collect::<BTreeMap<_, _>>())
        };
        let (first, again) = (bits(), bits());
        assert_eq!(first.0, again.0, "{options}");
        assert!(first.1 == again.1, "weights differ: {options}");
    }
}

#[test]
fn gradients_in_bf16_differ_by_their_rounding() {
    let oracle = Oracle::new();
    let shape = format!("{MODEL} --depth 2 --width 2 --micro-batches 4 --check-replicas 1");
    let losses = |more: &str| oracle.losses(&format!("{shape} {more}"));
    let (whole, rounded) = (losses(""), losses("--reduce-precision bf16"));
    assert!(whole != rounded && whole[0] == rounded[0], "{whole:?}, rounded {rounded:?}");
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3 * a;
    assert!(whole.iter().zip(&rounded).all(is_close), "{whole:?}, rounded {rounded:?}");
    // Owners also round their sums, so a sharded optimizer changes no bit.
    assert_eq!(losses("--reduce-precision bf16 --shard-optimizer"), rounded);
}

/// Whatever k a step uses, gradients are added in the same order.
#[test]
fn choosing_forwards_in_turn_again_changes_no_bit() {
    let oracle = Oracle::new();
    let shape = format!("{MODEL} --schedule 1f1b --depth 2 --micro-batches 6 --steps 40");
    let losses = |more: &str| oracle.losses(&format!("{shape} {more}"));
    let plain = losses("");
    assert_eq!(losses("--adapt-every 2"), plain);
    assert_eq!(losses("--adapt-every 1 --in-turn 3 --memory-cap 6"), plain);
}

//! A resumed training is indistinguishable from one that was never interrupted.

use std::collections::BTreeMap;

use chimera::formats::checkpoint::{Checkpoint, Disk};
use chimera::run::Trained;

use super::{at, numbers, prepare, train};
use crate::command::{chimera, folder};

/// Half of the steps, and the rest from a checkpoint, give every number, weight and moment of all
/// steps, to the bit.
#[test]
fn halves_are_the_whole() {
    for options in [
        "--schedule chimera --width 2",
        "--schedule chimera --depth 4 --pipes 4 --tied",
        "--schedule 1f1b --depth 2 --sync at-end",
        "--schedule chimera --width 2 --tied --shard-optimizer",
        "--schedule gpipe --tied --clip 0 --check-finite false",
        "--schedule zb-v --depth 2",
        "--schedule interleaved --depth 2 --recompute full",
        "--schedule pipedream --depth 2 --window 3",
        "--schedule dapple --depth 2 --dropout 0.2",
        "--schedule chimera --model bert --dropout 0.1 --tied",
        "--schedule chimera --model llama --qkv-bias true --sliding-window 3 --dropout 0.1",
        "--schedule pipedream-2bw --depth 2 --window 1",
        "--depth 1",
    ] {
        let (whole, half) = (folder(), folder());
        let options = format!("{options} --save-every 3");
        let (all, trained) = train(&options, None, whole.path(), Disk::default()).expect("trains");
        assert_eq!(all.len(), 6, "{options}");
        let from = at(whole.path(), 3);
        let (rest, again) =
            train(&options, Some(&from), half.path(), Disk::default()).expect("trains");
        assert_eq!(numbers(&rest), numbers(&all[3..]), "{options}");
        assert!(again.weights == trained.weights, "{options}");
        let shards =
            |run| Checkpoint::open(&at(run, 6)).expect("a checkpoint").manifest().shards.clone();
        assert_eq!(shards(whole.path()), shards(half.path()), "{options}");
        assert_eq!(again.checkpoint, Some(at(half.path(), 6)));
    }
}

/// Whatever the machine's default is, a resumed run keeps its scaling.
#[test]
fn a_resumed_run_keeps_its_scaling() {
    for scaling in ["direct", "halving"] {
        let (whole, half) = (folder(), folder());
        let shape =
            "--schedule chimera --depth 4 --micro-batches 8 --micro-batch-size 2 --save-every 3";
        let first = format!("{shape} --scaling {scaling}");
        let (all, _) = train(&first, None, whole.path(), Disk::default()).expect("trains");
        let from = at(whole.path(), 3);
        let again = format!("{shape} --resume {}", from.display());
        let (rest, _) = train(&again, Some(&from), half.path(), Disk::default()).expect("trains");
        assert_eq!(numbers(&rest), numbers(&all[3..]), "{scaling}");
    }
}

/// The training does not depend on which replica keeps the moments.
#[test]
fn a_shared_out_optimizer_saves_and_opens_as_any_other() {
    let options = "--schedule chimera --width 2 --save-every 3";
    let with = |others: &str| format!("{options} {others}");
    let [whole, sharded, zero, weights] =
        ["", "--shard-optimizer", "--zero 2", "--zero 3"].map(with);
    for (before, after) in [
        (&whole, &sharded),
        (&sharded, &whole),
        (&whole, &zero),
        (&zero, &weights),
        (&weights, &whole),
    ] {
        let (whole, half) = (folder(), folder());
        let (all, trained) = train(before, None, whole.path(), Disk::default()).expect("trains");
        let from = at(whole.path(), 3);
        let (rest, again) =
            train(after, Some(&from), half.path(), Disk::default()).expect("trains");
        assert_eq!(numbers(&rest), numbers(&all[3..]));
        assert!(by_name(again) == by_name(trained));
    }
}

/// A checkpoint has the same bits whoever held its tensors, so that other workers continue from them as
/// well.
#[test]
fn sharded_weights_are_resumed_by_other_workers() {
    let losses = |before: &str, after: &str| {
        let (whole, half) = (folder(), folder());
        let options = format!("--schedule chimera --width 2 --save-every 3 {before}");
        train(&options, None, whole.path(), Disk::default()).expect("trains");
        let from = at(whole.path(), 3);
        let resumed = train(after, Some(&from), half.path(), Disk::default()).expect("trains");
        numbers(&resumed.0)
    };
    let others = "--schedule 1f1b --depth 2 --width 1 --micro-batches 8";
    let plain = losses("--zero 0", others);
    assert!(!plain.is_empty());
    for (before, after) in [("--zero 3", "--zero 0"), ("--zero 3", "--zero 3"), ("", "--zero 3")] {
        assert_eq!(losses(before, &format!("{others} {after}")), plain, "{before} and {after}");
    }
}

/// An asynchronous window that does not divide the steps ends with a short one, resumed or not.
#[test]
fn windows_are_saved_at_their_ends() {
    let (whole, half) = (folder(), folder());
    let options = "--schedule pipedream --depth 2 --window 4 --save-every 1";
    let (all, _) = train(options, None, whole.path(), Disk::default()).expect("trains");
    let steps = [at(whole.path(), 4), at(whole.path(), 6)].map(|path| path.exists());
    assert_eq!(steps, [true, true]);
    let from = at(whole.path(), 4);
    assert_eq!(Checkpoint::open(&from).expect("a checkpoint").manifest().updates, 16);
    let (rest, _) = train(options, Some(&from), half.path(), Disk::default()).expect("trains");
    assert_eq!(numbers(&rest), numbers(&all[4..]));
}

fn by_name(trained: Trained) -> BTreeMap<String, Vec<f32>> {
    trained.weights.into_iter().map(|(param, values)| (param.name, values)).collect()
}

/// Other layouts add gradients in another order, and Adam divides the rounding error by the root of
/// the second moment plus eps. With the usual eps, a key's bias, whose gradient is only rounding
/// error, would move as far as other weights.
#[test]
fn a_checkpoint_opens_under_any_layout() {
    let whole = folder();
    let options = "--schedule chimera --width 2 --micro-batches 2 --eps 1e-5 --save-every 3";
    let (all, trained) = train(options, None, whole.path(), Disk::default()).expect("trains");
    let expected = by_name(trained);
    for options in [
        "--depth 1",
        "--depth 2 --schedule dapple",
        "--depth 4 --schedule gpipe --width 2 --micro-batches 2",
        "--depth 2 --schedule zb-v --micro-batches 8 --micro-batch-size 1",
        "--depth 2 --schedule hanayo --waves 1",
        "--schedule chimera --width 2 --micro-batches 2 --layout 1,1,1,1",
        "--depth 2 --schedule dapple --layout E3T|1TH",
        "--depth 4 --layout E|1T|3T|H",
    ] {
        let (half, from) = (folder(), at(whole.path(), 3));
        let options = format!("{options} --eps 1e-5");
        let (rest, trained) =
            train(&options, Some(&from), half.path(), Disk::default()).expect("trains");
        assert_eq!(rest.len(), 3, "{options}");
        for (is, was) in rest.iter().zip(&all[3..]) {
            assert_eq!((is.step, is.lr), (was.step, was.lr), "{options}");
            assert!(
                (is.loss - was.loss).abs() < 1e-5,
                "{options}: {} is not {}",
                is.loss,
                was.loss
            );
        }
        let weights = by_name(trained);
        assert!(weights.keys().eq(expected.keys()), "{options}");
        for (name, was) in &expected {
            let is = &weights[name];
            let differences = is.iter().zip(was).map(|(is, was)| (is - was).abs());
            let largest = differences.fold(0.0, f32::max);
            assert!(is.len() == was.len() && largest < 1e-6, "{options}: {name} by {largest:e}");
        }
    }
}

/// Settings that would make it another training are refused, one per line. The others are reported.
#[test]
fn settings_that_differ_are_told() {
    let whole = folder();
    train("--depth 1 --save-every 3", None, whole.path(), Disk::default()).expect("trains");
    let open = || Checkpoint::open(&at(whole.path(), 3)).expect("a checkpoint");
    let text = whole.path().join("text.txt");
    std::fs::write(&text, "another text than the built-in one. ".repeat(99)).expect("a file");
    let data = format!("--data {}", text.display());
    for (options, lines) in [
        ("--seed 2", &["seed: 1 in the checkpoint, 2 now"][..]),
        ("--hidden 32 --layers 5", &["hidden: 16 in the checkpoint, 32 now", "layers: 4 in"]),
        (
            "--model bert --tied false",
            &["model: \"gpt2\" in the checkpoint, \"bert\" now", "vocab: 256 in"],
        ),
        ("--tied", &["tied: false in the checkpoint, true now"]),
        ("--width 2", &["width * micro-batches * micro-batch-size: 8 in the checkpoint, 16 now"]),
        (&data, &["data: "]),
        ("--steps 2", &["has 3 steps already"]),
    ] {
        let mut run = prepare(&format!("--depth 1 {options}"));
        let refusal = run.resume(Some(open())).expect_err(options).to_string();
        for line in lines {
            assert!(refusal.contains(line), "{options}: {refusal}");
        }
        assert_eq!(
            refusal.lines().count(),
            if lines[0].contains(':') { lines.len() + 1 } else { 1 }
        );
    }
    let mut run = prepare("--depth 2 --steps 9 --warmup 1 --lr 0.5 --timeout 50");
    let told = run.resume(Some(open())).expect("resumes");
    let expected =
        ["lr: 0.025 in the checkpoint, 0.5 now", "min-lr: 0.0025", "steps: 6 in", "warmup: 6 in"];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (told, start) in told.iter().zip(expected) {
        assert!(told.starts_with(start), "{told}");
    }
}

/// A timetable in a file covers whole windows. The remaining windows count, not those since the
/// start.
#[test]
fn windows_are_counted_from_the_step_that_is_next() {
    let folder = folder();
    let options = "--depth 2 --steps 5 --save-every 1 --schedule pipedream --window 1";
    train(options, None, folder.path(), Disk::default()).expect("trains");
    let shape = "--depth 2 --micro-batches 4 --window 4";
    let exported = chimera(&format!("schedule export pipedream {shape} --format json"));
    let file = folder.path().join("windows.json");
    std::fs::write(&file, exported.stdout).expect("a file");
    let resume = |steps: u64| {
        let from = at(folder.path(), 5);
        let options =
            format!("--schedule {} --steps {steps} --resume {}", file.display(), from.display());
        prepare(&options).resume(Some(Checkpoint::open(&from).expect("a checkpoint")))
    };
    resume(13).expect("two windows");
    let refusal = resume(12).expect_err("less than two").to_string();
    assert!(refusal.contains("7 steps are to be trained from step 5 on"), "{refusal}");
}

/// Separate validation files decide whether the last tenth of the data is trained on.
#[test]
fn validation_data_is_neither_added_nor_removed() {
    let place = folder();
    let file = |name: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, format!("a text that is called {name}. ").repeat(99))
            .expect("a file");
        path.display().to_string()
    };
    let data = file("data");
    let [one, other] = ["one", "other"].map(|name| format!("--validation-data {}", file(name)));
    for (before, now, remedy) in [
        ("", &*one, Some("leave it out")),
        (&one, "", Some("name such files again")),
        (&one, &other, None),
        (&one, &one, None),
    ] {
        let whole = folder();
        let options = |held_out: &str| format!("--depth 1 --data {data} {held_out} --save-every 3");
        train(&options(before), None, whole.path(), Disk::default()).expect("trains");
        let checkpoint = Checkpoint::open(&at(whole.path(), 3)).expect("a checkpoint");
        let resumed = prepare(&options(now)).resume(Some(checkpoint));
        match remedy {
            Some(remedy) => {
                let refusal = resumed.expect_err(remedy).to_string();
                assert!(refusal.contains("\n  validation-data: "), "{refusal}");
                assert!(refusal.ends_with(remedy), "{refusal}");
            }
            None => {
                let told = resumed.expect("resumes");
                let is_told = told.iter().any(|told| told.starts_with("validation-data: "));
                assert_eq!(is_told, before != now, "{told:?}");
            }
        }
    }
}

//! Training on mixed data and on data with prompts continues from a checkpoint with the samples
//! that it would have drawn.

use std::fs::{read, write};
use std::path::Path;

use chimera::formats::checkpoint::{Checkpoint, Disk};

use super::{at, numbers, prepare, train};
use crate::command::{chimera, folder};

/// Prepares questions with answers, and documents. Returns the options that mix them.
fn mixed(folder: &Path) -> String {
    let place = folder.display();
    let question = |n: usize| format!("{{\"q\": \"{n}?\", \"a\": \"answer {}\"}}\n", n * n % 13);
    let document = |n: usize| format!("{{\"a\": \"{}\"}}\n", "document ".repeat(1 + n % 5));
    write(folder.join("q.jsonl"), (0..80).map(question).collect::<String>()).expect("a file");
    write(folder.join("d.jsonl"), (0..80).map(document).collect::<String>()).expect("a file");
    for (name, fields) in [("q", "--prompt-field q --field a"), ("d", "--field a")] {
        let ran =
            chimera(&format!("prepare {place}/{name}.jsonl {fields} --out {place}/{name}.bin"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    format!(
        "--data {place}/q.bin {place}/d.bin --data-weights 0.7,0.3 --document-mask true --save-every 3"
    )
}

#[test]
fn a_mixture_goes_on_as_it_was() {
    let (data, whole) = (folder(), folder());
    let options = mixed(data.path());
    let shape = |shape: &str| format!("{options} {shape}");
    let first = shape("--schedule chimera --depth 2 --width 1 --micro-batches 4");
    let (all, trained) = train(&first, None, whole.path(), Disk::default()).expect("trains");
    let from = at(whole.path(), 3);
    let half = folder();
    let (rest, again) = train(&first, Some(&from), half.path(), Disk::default()).expect("trains");
    assert_eq!(numbers(&rest), numbers(&all[3..]));
    assert!(again.weights == trained.weights);

    for other in [
        "--schedule 1f1b --depth 4 --micro-batches 4",
        "--schedule gpipe --depth 1 --width 2 --micro-batches 2",
    ] {
        let (other, half) = (shape(other), folder());
        let samples = |options: &str| prepare(options).corpus().batch(1, 0..100).expect("samples");
        assert_eq!(samples(&other), samples(&first), "{other}");
        let (rest, _) = train(&other, Some(&from), half.path(), Disk::default()).expect("trains");
        for (one, two) in rest.iter().zip(&all[3..]) {
            assert!((one.loss - two.loss).abs() < 1e-5, "{other}: {} and {}", one.loss, two.loss);
        }
    }
    let weights = first.replace("0.7,0.3", "0.6,0.4");
    let refusal = prepare(&weights).resume(Some(Checkpoint::open(&from).expect("a checkpoint")));
    let refusal = refusal.expect_err("another mixture").to_string();
    let told = "data-weights: \"0.7,0.3\" in the checkpoint, \"0.6,0.4\" now";
    assert!(refusal.contains(told), "{refusal}");
}

#[test]
fn a_mixture_says_what_it_is_and_what_it_cannot_be() {
    let folder = folder();
    let (place, mixed) = (folder.path().display(), mixed(folder.path()));
    let model =
        "train --layers 2 --hidden 8 --heads 2 --context 16 --steps 2 --threads 1 --depth 1";
    let ran = chimera(&format!("{model} {mixed} --out {place}/run"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains(&format!("mixture: {place}/q.bin 0.7 (")), "{}", ran.stdout);

    write(folder.path().join("short.txt"), "short").expect("a file");
    write(folder.path().join("text.txt"), "text ".repeat(100)).expect("a file");
    for (data, why) in [
        (
            format!("{place}/q.bin {place}/text.txt"),
            "text.txt holds text, but the files before it hold u16 token ids",
        ),
        (
            format!("{place}/text.txt {place}/short.txt"),
            "short.txt of the mixture: the data has 5 tokens",
        ),
    ] {
        let ran = chimera(&format!("{model} --data {data} --data-weights 0.7,0.3"));
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
}

#[test]
fn other_targets_are_other_data() {
    let (data, run) = (folder(), folder());
    let options = mixed(data.path());
    train(&options, None, run.path(), Disk::default()).expect("trains");
    let resume = || {
        let checkpoint = Checkpoint::open(&at(run.path(), 3)).expect("a checkpoint");
        prepare(&options).resume(Some(checkpoint)).map_err(|refusal| refusal.to_string())
    };
    assert_eq!(resume(), Ok(Vec::new()));
    let path = data.path().join("q.bin.targets");
    let mut targets = read(&path).expect("targets");
    let last = targets.len() - 1;
    targets[last] ^= 1;
    write(&path, targets).expect("written");
    let refusal = resume().expect_err("other targets");
    let told = "data: its .targets file marks other tokens as targets than in the checkpoint";
    assert!(refusal.contains(told), "{refusal}");
}

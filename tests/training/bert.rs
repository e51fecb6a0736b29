//! BERT and Llama, and dropout in all models: with any schedule, losses are those of one worker, in
//! f32.

use super::equivalence::Oracle;
use super::train;
use crate::command::{folder, text};

/// Every synchronous schedule, each with a shape of its own.
const SCHEDULES: [&str; 15] = [
    "gpipe --depth 3",
    "dapple --depth 4",
    "dapple --depth 2 --in-turn 2",
    "gems --depth 2",
    "zb-h1 --depth 3",
    "zb-h2 --depth 2",
    "interleaved --depth 2",
    "zb-v --depth 2",
    "v-half --depth 2",
    "v-min --depth 2",
    "hanayo --depth 2",
    "mixpipe --depth 2",
    "dualpipe --depth 2",
    "dualpipe-v --depth 2",
    "chimera --depth 4 --scaling doubling",
];

/// Ways to keep saved activations.
const PASSES: [&str; 3] = ["", "--recompute selective --split-backward", "--recompute full"];

#[test]
fn a_bert_trains_under_every_schedule() {
    let mut oracle = Oracle::new();
    for (n, schedule) in SCHEDULES.into_iter().enumerate() {
        let (passes, width) = (PASSES[n % 3], 1 + n % 2);
        let options = format!("--schedule {schedule} {passes}");
        oracle.check(4, width, &options, "--model bert --tied true");
    }
}

#[test]
fn a_llama_trains_under_every_schedule() {
    let mut oracle = Oracle::new();
    let model = "--model llama --kv-heads 1 --mlp-hidden 24 --qkv-bias true --sliding-window 5";
    for (n, schedule) in SCHEDULES.into_iter().enumerate() {
        let (passes, width) = (PASSES[n % 3], 1 + n % 2);
        let tied = if n % 2 == 0 { "true" } else { "false" };
        let options = format!("--schedule {schedule} {passes}");
        oracle.check(4, width, &options, &format!("{model} --tied {tied}"));
    }
}

#[test]
fn dropout_is_the_same_under_every_schedule() {
    let mut oracle = Oracle::new();
    for (n, schedule) in SCHEDULES.into_iter().enumerate() {
        let model = ["gpt2", "bert", "llama"][n % 3];
        let (passes, width) = (PASSES[n / 2 % 3], 1 + n / 4 % 2);
        let options = format!("--schedule {schedule} {passes}");
        oracle.check(4, width, &options, &format!("--model {model} --dropout 0.1"));
    }
}

#[test]
fn dropout_is_drawn_from_the_seed() {
    let folder = folder();
    let data = text(&folder);
    let losses = |options: &str| -> Vec<f64> {
        let line = format!("--data {} {} --depth 1 {options}", data.display(), super::MODEL);
        train(&line).0.iter().map(|report| report.loss).collect()
    };
    let plain = losses("");
    assert_eq!(losses("--dropout 0"), plain);
    assert_eq!(losses("--dropout 0.2"), losses("--dropout 0.2"));
    assert!(losses("--dropout 0.2")[0] != plain[0]);
}

#[test]
fn a_bert_learns_to_tell_what_is_hidden() {
    let folder = folder();
    let data = text(&folder);
    let line = format!(
        "--data {} --model bert --layers 2 --hidden 32 --heads 2 --context 32 --depth 2 --micro-batches 2 \
         --micro-batch-size 8 --steps 60 --threads 1",
        data.display()
    );
    let (reports, _) = train(&line);
    // An untrained model knows nothing of 260 ids and two classes.
    let chance = 260f64.ln() + 2f64.ln();
    assert!((reports[0].loss - chance).abs() < 0.2, "{}", reports[0].loss);
    assert!(reports[59].loss < chance - 2.0, "{}", reports[59].loss);
}

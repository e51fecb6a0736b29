//! `--sequence`: samples that are shorter than the model's position table.

use chimera::core::engine::StepReport;

use super::{MODEL, prepare, train};
use crate::command::{chimera, folder, text};

const SCHEDULES: [&str; 3] = [
    "--depth 1",
    "--depth 4 --scaling halving --micro-batches 8",
    "--schedule zb-v --depth 2 --width 2 --recompute selective",
];

/// The parts of a step's report that do not depend on the clock.
fn bits(report: &StepReport) -> (u64, u64, Option<u64>) {
    let StepReport { loss, grad_norm, validation_loss, .. } = report;
    (loss.to_bits(), grad_norm.to_bits(), validation_loss.map(f64::to_bits))
}

fn json(line: &str) -> serde_json::Value {
    let ran = chimera(line);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{line}: {}", ran.stderr))
}

/// Initial weights depend on seed, name and position, so the rows of the shorter table are the
/// same.
#[test]
fn a_longer_position_table_changes_nothing() {
    let folder = folder();
    for model in ["gpt2", "llama", "bert"] {
        for schedule in SCHEDULES {
            let options = format!(
                "{MODEL} --model {model} --data {} --eval-every 5 --dropout 0.1 {schedule}",
                text(&folder).display()
            );
            let (short, by_short) = train(&options);
            let long = format!("{options} --context 40 --sequence 16");
            let (long, by_long) = train(&long);
            let bits = |reports: &[StepReport]| reports.iter().map(bits).collect::<Vec<_>>();
            assert_eq!(bits(&short), bits(&long), "{options}");
            for ((param, short), (_, long)) in by_short.weights.iter().zip(&by_long.weights) {
                // Only the position table has rows beyond those of the shorter one.
                let is_same = long.iter().zip(short).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(is_same, "{options}: {}", param.name);
            }
        }
    }
}

#[test]
fn samples_are_as_long_as_the_sequence() {
    let run = prepare(&format!("{MODEL} --context 40 --sequence 12 --depth 2 --width 2"));
    let batch = run.corpus().batch(1, 0..3).expect("text");
    assert!(batch.samples().all(|(input, target)| input.len() == 12 && target.len() == 12));
    assert_eq!(run.validation().expect("text").input.len() % 12, 0);
    assert_eq!(run.tokens_per_step(), 2 * 8 * 2 * 12);
    let bert = prepare(&format!("{MODEL} --model bert --context 40 --sequence 12 --depth 2"));
    let batch = bert.corpus().batch(1, 0..1).expect("text");
    // Two counts, and the positions of the masked tokens.
    assert_eq!(batch.input.len(), 2 + bert.model().predictions(12) + 12);
}

#[test]
fn a_run_is_evaluated_at_the_length_it_was_trained_at() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    for model in ["gpt2", "llama", "bert"] {
        let out = out.join(model);
        let ran = chimera(&format!(
            "train --model {model} --layers 2 --depth 2 --hidden 8 --heads 2 --context 40 --sequence 16 --steps 2 \
             --save-every 2 --threads 1 --data {} --out {}",
            data.display(),
            out.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let checkpoint = out.join("checkpoints/step-00000002");
        for (place, window) in [(&out, 16), (&checkpoint, 16), (&out.join("model"), 40)] {
            let eval = format!("eval --json --model {} --data {}", place.display(), data.display());
            assert_eq!(json(&eval)["context"], window, "{}", place.display());
            assert_eq!(json(&format!("{eval} --context 9"))["context"], 9);
        }
        let eval =
            format!("eval --json --context 41 --model {} --data {}", out.display(), data.display());
        let ran = chimera(&eval);
        // Rotary positions have no table that could end.
        let is_refused = ran.stderr.contains("41 tokens");
        assert_eq!(is_refused, model != "llama", "{}", ran.stderr);
        assert_eq!(ran.stdout.contains("\"context\": 41"), !is_refused, "{}", ran.stdout);
    }
}

#[test]
fn a_resumed_run_keeps_its_length() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let train = |options: &str| {
        chimera(&format!(
            "train --layers 2 --depth 2 --hidden 8 --heads 2 --context 40 --threads 1 --save-every 2 --data {} \
             --out {} {options}",
            data.display(),
            out.display()
        ))
    };
    assert_eq!(train("--sequence 16 --steps 2").code, Some(0));
    let ran = train("--sequence 20 --steps 4 --resume auto");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("sequence: 16 in the checkpoint, 20 now"), "{}", ran.stderr);
    assert_eq!(train("--sequence 16 --steps 4 --resume auto").code, Some(0));
}

#[test]
fn samples_fit_into_the_position_table() {
    let ran = chimera("train --data /none --context 16 --sequence 17");
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains(
            "a sequence of 17 tokens is longer than the context of 16: shorten the sequence or choose context 17"
        ),
        "{}",
        ran.stderr
    );
    let folder = folder();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, "context = 16\nsequence = 17\n").expect("written");
    for command in ["config check", "plan --ranks 2 --batch 8 --flops 1e12 --memory 1e9 --config"] {
        let ran = chimera(&format!("{command} {}", file.display()));
        assert!(ran.stderr.contains("longer than the context of 16"), "{command}: {}", ran.stderr);
    }
}

#[test]
fn plans_are_for_samples_of_the_sequence() {
    let plan = |length: &str| {
        let plan = json(&format!(
            "plan --json --ranks 4 --batch 16 --flops 1e12 --memory 1e12 --schedule 1f1b --depth 4 --layers 6 \
             --hidden 32 --heads 2 {length}"
        ));
        let best = &plan["ways"][0];
        let activations = best["bytes"]["activations"].as_f64();
        (best["step_s"].as_f64(), best["tokens_per_s"].as_f64(), activations.map(f64::to_bits))
    };
    assert_eq!(plan("--context 64 --sequence 16"), plan("--context 16"));
    assert_ne!(plan("--context 64 --sequence 16"), plan("--context 64"));
}

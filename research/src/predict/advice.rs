//! Accuracy of the advice at the end of a run: its suggestions are tried.

use std::ops::Range;

use anyhow::{Context, Result};

use super::draw::Shape;
use super::run::Lab;
use xtask::measure::median;

/// Largest error of a suggested gain, relative to the gain.
const WITHIN: f64 = 1.0 / 3.0;
/// Options that are added to the random settings in turn; some leave room for advice.
const BESIDE: [&str; 5] =
    ["--recompute full", "", "--micro-batch-size 1 --micro-batches 8", "--recompute selective", ""];

/// Trains with settings until `cases` of them got advice, follows it, and prints its true gain.
pub(super) fn run(lab: &Lab, seed: u64, cases: Range<u64>, rounds: Range<u8>) -> Result<()> {
    println!("| model | options | suggested | predicted | measured | within a third |");
    println!("|---|---|---|--:|--:|---|");
    let (mut n_true, mut n_advised, mut n_without) = (0, 0, 0);
    for case in cases.start.. {
        if n_advised == cases.end - cases.start {
            break;
        }
        let shape = Shape::of_case(seed, case);
        let beside = BESIDE[case as usize % BESIDE.len()];
        let mut options = shape.options();
        options.extend(beside.split_whitespace().map(String::from));
        let first = lab.train(&options)?;
        let Some((suggested, said)) = first.suggestion() else {
            n_without += 1;
            continue;
        };
        let mut changed = options.clone();
        changed.extend(suggested.split_whitespace().map(String::from));
        let step = |options: &[String]| -> Result<f64> {
            let [_, measured, _] = lab.train(options)?.figure("step").context("no step")?;
            Ok(measured)
        };
        let [mut before, mut after] = [Vec::new(), Vec::new()];
        for _ in rounds.clone() {
            after.push(step(&changed)?);
            before.push(step(&options)?);
        }
        let measured = 1.0 - median(after) / median(before);
        let is_true = (measured - said).abs() <= WITHIN * said;
        n_advised += 1;
        n_true += u32::from(is_true);
        println!(
            "| {shape} | D {}, {}, B {}, N {} {beside} | {suggested} | {:.1} % | {:.1} % | {} |",
            shape.depth,
            shape.schedule,
            shape.micro_batch_size,
            shape.micro_batches,
            100.0 * said,
            100.0 * measured,
            if is_true { "yes" } else { "no" }
        );
    }
    println!(
        "\nseed {seed}: {n_true} of {n_advised} suggestions are true within a third; {n_without} more settings got none"
    );
    Ok(())
}

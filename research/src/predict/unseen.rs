//! Models that were not profiled: predictions of their trainings compared with measurements.

use std::ops::Range;

use anyhow::{Context, Result};

use super::draw::Shape;
use super::run::{Lab, Trained};
use xtask::measure::median;

/// Trains each case in every round. Prints a row of medians for it, and the errors of all.
pub(super) fn run(lab: &Lab, seed: u64, cases: Range<u64>, rounds: Range<u8>) -> Result<()> {
    println!(
        "| model | D | schedule | B | N | predicted s | measured s | step | forward | backward | reduction | update | bubble, points | \
         workers' memory | process's memory |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let shapes: Vec<Shape> = cases.map(|case| Shape::of_case(seed, case)).collect();
    let mut trainings: Vec<Vec<Trained>> = shapes.iter().map(|_| Vec::new()).collect();
    for _ in rounds {
        for (shape, of_shape) in shapes.iter().zip(&mut trainings) {
            of_shape.push(lab.train(&shape.options())?);
        }
    }
    let mut errors = Vec::new();
    for (shape, trainings) in shapes.iter().zip(&trainings) {
        let middle = |of: &dyn Fn(&Trained) -> Option<f64>| {
            let values: Vec<f64> = trainings.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let step = |at: usize| middle(&|trained| Some(trained.figure("step")?[at]));
        let [predicted, measured, error] =
            [step(0), step(1), step(2)].map(|figure| figure.context("no step was predicted"));
        let (predicted, measured, error) = (predicted?, measured?, error?);
        errors.push(error.abs());
        let Shape { depth, schedule, micro_batch_size, micro_batches, .. } = shape;
        println!(
            "| {shape} | {depth} | {schedule} | {micro_batch_size} | {micro_batches} | {predicted:.4} | {measured:.4} | {} | {} | {} | {} | {} | {} | {} | {} |",
            percent(Some(error)),
            percent(middle(&|trained| of_kinds(trained, &["forward"]))),
            percent(middle(&|trained| {
                of_kinds(trained, &["backward", "input half", "weight half"])
            })),
            percent(middle(&|trained| of_kinds(trained, &["reduction"]))),
            percent(middle(&|trained| of_kinds(trained, &["update"]))),
            middle(&bubble).map_or(String::new(), |points| format!("{points:+.1}")),
            percent(middle(&worst_memory)),
            percent(middle(&|trained| Some(trained.figure("process memory, bytes")?[2]))),
        );
    }
    let worst = errors.iter().copied().fold(0.0, f64::max);
    let n_close = errors.iter().filter(|error| **error <= 0.07).count();
    let (n, middle) = (errors.len(), median(errors));
    println!(
        "\nseed {seed}: steps err by {:.1} % in the median and {:.1} % at most; {n_close} of {n} by at most 7 %",
        100.0 * middle,
        100.0 * worst
    );
    Ok(())
}

/// The error of all work of some kinds together.
fn of_kinds(trained: &Trained, kinds: &[&str]) -> Option<f64> {
    let figures: Vec<[f64; 3]> = kinds.iter().filter_map(|kind| trained.figure(kind)).collect();
    let sum = |at: usize| figures.iter().map(|figure| figure[at]).sum::<f64>();
    (sum(1) > 0.0).then(|| sum(0) / sum(1) - 1.0)
}

/// The error of the bubble, in percentage points.
fn bubble(trained: &Trained) -> Option<f64> {
    let [predicted, measured, _] = trained.figure("bubble ratio")?;
    Some(100.0 * (predicted - measured))
}

/// The memory error of the worker with the largest one.
fn worst_memory(trained: &Trained) -> Option<f64> {
    let of_workers = trained
        .figures()
        .into_iter()
        .filter(|what| what.starts_with("worker ") && what.ends_with(" memory, bytes"));
    let errors = of_workers.filter_map(|what| Some(trained.figure(what)?[2]));
    errors.max_by(|a, b| a.abs().total_cmp(&b.abs()))
}

fn percent(error: Option<f64>) -> String {
    error.map_or(String::new(), |error| format!("{:+.1} %", 100.0 * error))
}

//! Models that were not profiled: what was predicted of their trainings beside what was measured.

use std::ops::Range;

use anyhow::{Context, Result};

use super::draw::Shape;
use super::run::{Lab, Trained};
use crate::bench::median;

/// Trains each case, and prints a row for it and the errors of all.
pub(super) fn run(lab: &Lab, seed: u64, cases: Range<u64>) -> Result<()> {
    println!(
        "| model | D | schedule | B | N | predicted s | measured s | step | forward | backward | reduction | update | bubble, points | \
         workers' memory | process's memory |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut errors = Vec::new();
    for case in cases {
        let shape = Shape::of_case(seed, case);
        let trained = lab.train(&shape.options())?;
        let [predicted, measured, error] =
            trained.figure("step").context("no step was predicted")?;
        errors.push(error.abs());
        let Shape { depth, schedule, micro_batch_size, micro_batches, .. } = &shape;
        println!(
            "| {shape} | {depth} | {schedule} | {micro_batch_size} | {micro_batches} | {predicted:.4} | {measured:.4} | {} | {} | {} | {} | {} | {} | {} | {} |",
            percent(Some(error)),
            percent(of_kinds(&trained, &["forward"])),
            percent(of_kinds(&trained, &["backward", "input half", "weight half"])),
            percent(of_kinds(&trained, &["reduction"])),
            percent(of_kinds(&trained, &["update"])),
            bubble(&trained),
            percent(worst_memory(&trained)),
            percent(trained.figure("process memory, bytes").map(|[.., error]| error)),
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

fn bubble(trained: &Trained) -> String {
    let bubble = trained.figure("bubble ratio");
    bubble.map_or(String::new(), |[predicted, measured, _]| {
        format!("{:+.1}", 100.0 * (predicted - measured))
    })
}

/// The error of the memory of the worker that it is largest for.
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

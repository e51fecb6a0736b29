//! The metrics of a run that ranks have trained.

use std::fs::read_to_string;
use std::path::Path;

use serde_json::Value;

/// The metrics of a run's steps, without times. Every number is written exactly, so equal texts
/// mean equal bits.
pub(crate) fn losses(run: &Path) -> Vec<(u64, String, String)> {
    let text = read_to_string(run.join("metrics.jsonl")).expect("the metrics");
    let numbers = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a whole line");
        let number = |key: &str| line[key].to_string();
        (line["step"].as_u64().expect("a step"), number("loss"), number("grad_norm"))
    };
    text.lines().map(numbers).collect()
}

//! Parts of measurements: a text to train on, the metrics of a run, and medians.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{files, root};

/// A text that exists in every checkout.
pub fn sources(folder: &Path) -> Result<PathBuf> {
    let mut text = Vec::new();
    for file in files(&root().join("chimera-core"))? {
        text.extend(fs::read(file)?);
    }
    let path = folder.join("text.txt");
    fs::write(&path, text)?;
    Ok(path)
}

/// The file of a run with its metrics, one line per step.
pub const METRICS: &str = "metrics.jsonl";

/// The steps of a run's metrics.
pub fn metrics(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    text.lines().map(|line| serde_json::from_str(line).context("a line of metrics")).collect()
}

/// Some values of every step of the run in a folder, as written.
pub fn figures<const N: usize>(run: &Path, keys: [&str; N]) -> Result<Vec<[String; N]>> {
    let figures = |step: Value| keys.map(|key| step[key].to_string());
    Ok(metrics(&run.join(METRICS))?.into_iter().map(figures).collect())
}

/// A number of a step.
pub fn number(step: &Value, key: &str) -> Result<f64> {
    step[key].as_f64().with_context(|| format!("a line of metrics without {key}"))
}

/// Tokens per second of a run by its metrics, the median of all steps but the first `warm_up`.
pub fn tokens_per_s(metrics_path: &Path, warm_up: usize) -> Result<f64> {
    let steps = metrics(metrics_path)?;
    let rates = steps.iter().skip(warm_up).map(|step| number(step, "tokens_per_s"));
    Ok(median(rates.collect::<Result<_>>()?))
}

/// The median of some values; for an even number, the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }
}

//! The table of measurements.

use super::{Precision, Run, Trainer};

/// Tokens per second of a run, in each precision.
pub(super) struct Measured<'r> {
    pub(super) run: &'r Run,
    pub(super) rates: Vec<f64>,
}

/// A row for each run: its rate in each precision, and its ratio to Chimera's first run that shares
/// the cores in the same way. The last column is the ratio of the last precision to the first.
pub(super) fn table(all: &[Measured<'_>], precisions: &[Precision], markdown: bool) -> String {
    let mut rows = vec![vec!["run".to_owned()]];
    for precision in precisions {
        rows[0].push(format!("{precision:?} tokens/s").to_lowercase());
        rows[0].push("ours / it".to_owned());
    }
    if let [first, .., last] = precisions {
        rows[0].push(format!("{last:?} / {first:?}").to_lowercase());
    }
    for Measured { run, rates } in all {
        let is_ours = |other: &&Measured<'_>| {
            other.run.way == run.way && matches!(other.run.by, Trainer::Chimera(_))
        };
        let mut row = vec![run.name.to_owned()];
        for (nth, rate) in rates.iter().enumerate() {
            let ours = all.iter().find(is_ours).map_or(f64::NAN, |ours| ours.rates[nth]);
            row.extend([format!("{rate:.0}"), format!("{:.2}", ours / rate)]);
        }
        if let [first, .., last] = rates[..] {
            row.push(format!("{:.2}", last / first));
        }
        rows.push(row);
    }
    drawn(rows, markdown)
}

/// Formats rows of cells; the first row is the header.
fn drawn(mut rows: Vec<Vec<String>>, markdown: bool) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows[0].len()).map(width).collect();
    if markdown {
        let rule = widths.iter().enumerate().map(|(i, &w)| match i {
            0 => "-".repeat(w),
            _ => format!("{}:", "-".repeat(w - 1)),
        });
        rows.insert(1, rule.collect());
    }
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| match i {
            0 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        let cells: Vec<_> = cells.collect();
        if markdown {
            format!("| {} |\n", cells.join(" | "))
        } else {
            format!("{}\n", cells.join("   "))
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::super::RUNS;
    use super::*;

    fn measured(name: &str, rates: &[f64]) -> Measured<'static> {
        let run = RUNS.iter().find(|run| run.name == name).expect("there is such a run");
        Measured { run, rates: rates.to_vec() }
    }

    #[test]
    fn ours_is_compared_with_those_that_share_the_cores_alike() {
        let all = [
            measured("chimera, 2 workers", &[4800.0]),
            measured("1f1b, 2 workers", &[4000.0]),
            measured("torch 1F1B, 2 processes", &[3200.0]),
            measured("1 worker, 1 thread", &[2000.0]),
        ];
        assert_eq!(
            table(&all, &[Precision::F32], true),
            "| run                     | f32 tokens/s | ours / it |\n\
             | ----------------------- | -----------: | --------: |\n\
             | chimera, 2 workers      |         4800 |      1.00 |\n\
             | 1f1b, 2 workers         |         4000 |      1.20 |\n\
             | torch 1F1B, 2 processes |         3200 |      1.50 |\n\
             | 1 worker, 1 thread      |         2000 |      1.00 |\n"
        );
    }

    #[test]
    fn precisions_stand_beside_each_other() {
        let all = [
            measured("1 worker, 2 threads", &[4000.0, 6000.0]),
            measured("candle, 2 threads", &[1000.0, 500.0]),
        ];
        assert_eq!(
            table(&all, &[Precision::F32, Precision::Bf16], false),
            "run                   f32 tokens/s   ours / it   bf16 tokens/s   ours / it   bf16 / f32\n\
             1 worker, 2 threads           4000        1.00            6000        1.00         1.50\n\
             candle, 2 threads             1000        4.00             500       12.00         0.50\n"
        );
    }
}

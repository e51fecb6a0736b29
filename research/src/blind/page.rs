//! The text of docs/blind.md.

use std::fmt::Write as _;

use super::megatron::{Megatron, Pair};
use super::primus::Primus;

/// The page, with places for its tables.
const TEXT: &str = include_str!("../../blind/page.md");
/// A prediction counts as close within this.
const CLOSE: f64 = 0.05;

pub(super) fn page(megatron_table: &Megatron, primus_table: &Primus) -> String {
    TEXT.replace("{summary}", &summary(megatron_table, primus_table))
        .replace("{megatron}", &megatron(megatron_table))
        .replace("{primus}", &primus(primus_table))
}

/// The rows of a table of Megatron's runs, and those that are left out.
pub(super) fn megatron(table: &Megatron) -> String {
    let mut text = String::from(
        "| case | peak | published | error | at the end | published | error | step | published | error |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in &table.predicted {
        let [peak, end, step] = row.figures;
        let giga =
            |pair: Pair| format!("{:.3} | {:.3}", pair.predicted / 1e9, pair.published / 1e9);
        let fitted = if row.is_fitted { " (fitted)" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} | {:.1} | {}{fitted} |",
            short(&row.case),
            giga(peak),
            percent(peak.error()),
            giga(end),
            percent(end.error()),
            step.predicted * 1e3,
            step.published * 1e3,
            percent(step.error()),
        );
    }
    let _ = write!(
        text,
        "\nGB, and milliseconds. The host launches a pass of a layer in {:.2} ms: that is fitted.\n",
        table.launch_s * 1e3
    );
    if !table.left_out.is_empty() {
        text.push_str("\n| left out | why |\n|---|---|\n");
    }
    for (case, reason) in &table.left_out {
        let _ = writeln!(text, "| {} | {reason} |", short(case));
    }
    text.trim_end().to_string()
}

/// The errors of each figure of each table, without those that are fitted.
fn summary(megatron: &Megatron, primus: &Primus) -> String {
    let page = &mut String::from(
        "| table | figure | rows | within 5 % | median of errors | largest |\n\
         |---|---|--:|--:|--:|--:|\n",
    );
    let of_rows = |at: usize| {
        let rows = megatron.predicted.iter().filter(move |row| at < 2 || !row.is_fitted);
        rows.map(move |row| row.figures[at].error()).collect()
    };
    let schedules = primus.predicted.iter().skip(1).filter(|row| !row.is_fitted);
    line(page, "Megatron-LM, 8 H100", "peak bytes", of_rows(0));
    line(page, "", "bytes at the end of a step", of_rows(1));
    line(page, "", "seconds", of_rows(2));
    let throughput = schedules.clone().map(|row| row.throughput.error()).collect();
    line(page, "Primus, 8 MI300", "throughput over 1F1B", throughput);
    line(page, "", "memory over 1F1B", schedules.clone().map(|row| row.memory.error()).collect());
    let both = schedules.flat_map(|row| [row.throughput.error(), row.memory.error()]).collect();
    line(page, "", "both", both);
    page.trim_end().to_string()
}

fn line(page: &mut String, table: &str, figure: &str, mut errors: Vec<f64>) {
    errors.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let n_close = errors.iter().filter(|error| error.abs() <= CLOSE).count();
    let middle = errors.len() / 2;
    let median = match errors.len() {
        0 => 0.0,
        n if n % 2 == 1 => errors[middle].abs(),
        _ => f64::midpoint(errors[middle - 1].abs(), errors[middle].abs()),
    };
    let largest = errors.last().copied().unwrap_or_default();
    let _ = writeln!(
        page,
        "| {table} | {figure} | {} | {n_close} | {:.1} % | {} |",
        errors.len(),
        median * 100.0,
        percent(largest)
    );
}

fn primus(table: &Primus) -> String {
    let [forward, input, weight] = table.passes;
    let mut page = format!(
        "The fitted row gives **N = {}** and {:.1} bytes for a weight with its gradient and state. A layer's\n\
         forward, input half and weight half take {forward:.2}, {input:.2} and {weight:.2} times the products of its forward, and\n\
         a message {:.2}.\n\n\
         | schedule | throughput | published | error | memory | published | error | even passes |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
        table.micro_batches, table.weight_bytes, table.message,
    );
    for row in &table.predicted {
        let ratio = |pair: Pair| {
            format!("{:.3} | {:.3} | {}", pair.predicted, pair.published, percent(pair.error()))
        };
        let fitted = if row.is_fitted { " (fitted)" } else { "" };
        let _ = writeln!(
            page,
            "| {}{fitted} | {} | {} | {:.3} |",
            row.schedule,
            ratio(row.throughput),
            ratio(row.memory),
            row.even_passes
        );
    }
    let _ = write!(
        page,
        "\nBoth are relative to 1F1B. The last column has the throughput if all passes took as long and\n\
         messages nothing. If the published memory of 1F1B is all that a rank holds, a micro-batch has {:.0} tokens.\n",
        table.implied_tokens
    );
    page.trim_end().to_string()
}

/// The name of a case, without what all cases share.
fn short(case: &str) -> String {
    let (_, name) = case.split_once('/').unwrap_or(("", case));
    name.replace("_mcore", "").replace("_resume_torch_dist", "_resume")
}

/// A signed percentage.
fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

//! The table of configurations.

use std::fmt::Write;

use chimera_core::notation::significant;

use crate::plan::Candidate;

/// The column headings. Columns without cells are left out, such as a range if there is none.
pub(super) const HEADS: [&str; 13] = [
    "s a step",
    "range",
    "tokens/s",
    "bubble",
    "GiB",
    "W",
    "D",
    "schedule",
    "B",
    "N",
    "recompute",
    "shard",
    "layout",
];
/// Digits of numbers that are predictions.
const DIGITS: i32 = 4;
/// Digits of the largest memory.
const MEMORY_DIGITS: i32 = 3;

/// The cells of a line.
pub(super) type Cells = [String; HEADS.len()];

/// Formats configurations as a table, each with the range of its step, if it has one.
pub(super) fn table(heads: [&str; HEADS.len()], ways: &[(&Candidate, Option<[f64; 2]>)]) -> String {
    laid_out(heads, &lines(ways, |way| way.tokens_per_s()))
}

/// Returns the lines of a table, whose third column has the numbers of `per_s`.
pub(super) fn lines(
    ways: &[(&Candidate, Option<[f64; 2]>)],
    per_s: impl Fn(&Candidate) -> f64,
) -> Vec<Cells> {
    let step = ways.first().map_or(1.0, |(way, _)| way.step_s);
    let bytes = ways.iter().map(|(way, _)| gib(way)).fold(0.0, f64::max);
    let (seconds, memory) = (decimals(step, DIGITS), decimals(bytes, MEMORY_DIGITS));
    let cells = |(way, range): &(&Candidate, Option<[f64; 2]>)| {
        let config = &way.config;
        let mark = if way.is_simulated { "" } else { "~" };
        let rate = per_s(way);
        [
            format!("{mark}{}", fixed(way.step_s, seconds)),
            range.map_or(String::new(), |range| {
                range.map(|end| fixed(end, seconds.map(|n| n.saturating_sub(1)))).join(" to ")
            }),
            rate_text(rate),
            format!("{:.3}", way.bubble_ratio),
            fixed(gib(way), memory),
            config.schedule.width.to_string(),
            config.schedule.depth.to_string(),
            schedule(way),
            config.schedule.micro_batch_size.to_string(),
            config.schedule.micro_batches.to_string(),
            way.recomputed(),
            if config.replicas.shard_optimizer { "yes" } else { "no" }.to_string(),
            way.layout().unwrap_or_default(),
        ]
    };
    ways.iter().map(cells).collect()
}

/// Names the schedule of a configuration, with what is unusual about it.
pub(super) fn schedule(way: &Candidate) -> String {
    let config = &way.config;
    let mut schedule = match way.scaling() {
        _ if config.schedule.depth == 1 && config.schedule.width == 1 => "one rank".to_string(),
        _ if config.schedule.depth == 1 => "data parallel".to_string(),
        _ if !way.reads_scaling() => config.schedule.name.to_string(),
        "direct" => config.schedule.name.to_string(),
        scaling => format!("{} {scaling}", config.schedule.name),
    };
    for (name, value) in way.parameters() {
        let _ = write!(schedule, ", {name} {value}");
    }
    if way.has_unusual_sync() {
        let _ = write!(schedule, ", sync {}", way.sync());
    }
    schedule
}

/// Formats columns as wide as their longest cell, below their headings. Numbers are aligned right,
/// words left.
pub(super) fn laid_out(heads: [&str; HEADS.len()], lines: &[Cells]) -> String {
    let longest = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; HEADS.len()] = std::array::from_fn(longest);
    let mut text = String::new();
    for line in [heads.map(String::from)].iter().chain(lines) {
        let columns = line.iter().zip(widths).zip(heads);
        let columns = columns.filter(|((_, width), _)| *width > 0).map(|((cell, width), head)| {
            let width = width.max(head.len());
            match head {
                "schedule" | "recompute" | "shard" | "layout" => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            }
        });
        text.push_str(columns.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Formats a step's time with the digits of an answer.
pub(super) fn seconds(step_s: f64) -> String {
    fixed(step_s, decimals(step_s, 3))
}

/// Returns the decimals that give a number these digits; `None` if it is too small or too large
/// for decimals.
fn decimals(x: f64, digits: i32) -> Option<usize> {
    let magnitude = if x > 0.0 { x.log10().floor() as i32 } else { 0 };
    (-3..=6).contains(&magnitude).then(|| (digits - 1 - magnitude).max(0) as usize)
}

fn fixed(x: f64, decimals: Option<usize>) -> String {
    decimals.map_or_else(|| format!("{x:.2e}"), |decimals| format!("{x:.decimals$}"))
}

/// Formats a rate with as many digits as a prediction has.
fn rate_text(rate: f64) -> String {
    let unit = 10f64.powi((rate.max(1.0).log10().floor() as i32 - DIGITS + 1).max(0));
    if rate < 100.0 {
        significant(rate, DIGITS as usize)
    } else {
        format!("{:.0}", (rate / unit).round() * unit)
    }
}

fn gib(way: &Candidate) -> f64 {
    way.need.total() / f64::from(1u32 << 30)
}

//! The table of configurations.

use std::fmt::Write;

use chimera_core::notation::significant;

use crate::cli::parts::terminal::console::figure;
use crate::plan::Candidate;

/// The column headings. Columns without cells are left out, such as a range if there is none.
pub(super) const HEADS: [&str; 13] = [
    "s a step",
    "60 % .. 30 %",
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

/// The cells of a line of the table.
pub(super) fn cells(way: &Candidate, range: Option<[f64; 2]>) -> [String; HEADS.len()] {
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
    [
        format!("{}{}", if way.is_simulated { "" } else { "~" }, figure(way.step_s)),
        range.map_or(String::new(), |[fast, slow]| {
            format!("{} .. {}", significant(fast, 4), significant(slow, 4))
        }),
        format!("{:.0}", way.tokens_per_s()),
        format!("{:.3}", way.bubble_ratio),
        gib(way.need.total()),
        config.schedule.width.to_string(),
        config.schedule.depth.to_string(),
        schedule,
        config.schedule.micro_batch_size.to_string(),
        config.schedule.micro_batches.to_string(),
        way.recomputed(),
        if config.replicas.shard_optimizer { "yes" } else { "no" }.to_string(),
        way.layout().unwrap_or_default(),
    ]
}

/// Formats columns as wide as their longest cell, below their headings. Numbers are aligned right,
/// words left.
pub(super) fn table(
    heads: [&str; HEADS.len()],
    lines: impl Iterator<Item = [String; HEADS.len()]>,
) -> String {
    let lines: Vec<_> = lines.collect();
    let longest = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; HEADS.len()] = std::array::from_fn(longest);
    let mut text = String::new();
    for line in [heads.map(String::from)].iter().chain(&lines) {
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

fn gib(bytes: f64) -> String {
    significant(bytes / f64::from(1u32 << 30), 3)
}

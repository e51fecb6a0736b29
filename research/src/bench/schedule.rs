//! Time to generate, prove and simulate every schedule at one shape, and Chimera by number of ops;
//! and time to search for an order.

use std::time::Instant;

use anyhow::{Context, Result};
use chimera_core::analyze::simulate;
use chimera_core::costs::UniformCosts;
use chimera_core::lower::{Lowering, lower};
use chimera_core::placement::Placement;
use chimera_core::schedule::{SCHEDULES, Schedule, Shape, find};
use chimera_core::search::{Allowed, Search, shortest};

/// Workers and micro-batches of every schedule.
const ALL: (usize, u32) = (16, 64);
/// Workers and micro-batches of each row: from the largest published pipelines to ten million ops.
const SHAPES: [(usize, u32); 6] =
    [(8, 64), (32, 512), (64, 1024), (64, 8192), (64, 32_768), (64, 78_125)];

/// Measures and prints.
pub(crate) fn run() -> Result<()> {
    println!(
        "| schedule | D | N | ops | generate s | prove s | simulate s | µs per op | peak memory MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for schedule in SCHEDULES {
        measure(*schedule, ALL)?;
    }
    let chimera = find("chimera")?;
    SHAPES.into_iter().try_for_each(|shape| measure(chimera, shape))?;
    println!("\n| search | D | N | memory cap | makespan | bound | 1F1B | orders | s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let (d, _) = ALL;
    let placements = [
        ("line", Placement::line(d)),
        ("line, split", Placement::line(d)),
        ("v, split", Placement::wave(d, 2)),
        ("mirrored", Placement::mirrored(d, 1)),
        ("mirrored, 4 pipes", Placement::mirrored(d, 2)),
    ];
    for (name, placement) in &placements {
        for cap in [1.0, 1.25, 1.5] {
            look(name, placement, cap * d as f64)?;
        }
    }
    Ok(())
}

/// Searches for an order on a placement and prints the result.
fn look(name: &str, placement: &Placement, max_peak: f64) -> Result<()> {
    let (d, n) = ALL;
    let allowed = Allowed { split_backwards: name.ends_with("split"), ..Allowed::default() };
    // For the same model: a chunk is a part of a stage.
    let share = d as f64 / placement.n_stages() as f64;
    let costs = UniformCosts::new(1.0, 2.0, 0.0).share(share);
    let start = Instant::now();
    let how = Search { max_peak: Some(max_peak), ..Search::default() };
    let found = shortest(placement, n, allowed, &how, &|_| anyhow::Ok(costs), &mut |_| ())?;
    let found = found.context("no order keeps to the memory cap")?;
    let (progress, one_f1b) = (found.progress, 3 * (n as usize + d - 1));
    println!(
        "| {name} | {d} | {n} | {max_peak} | {} | {} | {one_f1b} | {} | {:.2} |",
        progress.makespan,
        progress.lower_bound,
        progress.n_orders,
        start.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// Prints a row of the table.
fn measure(schedule: &dyn Schedule, (depth, n): (usize, u32)) -> Result<()> {
    let start = Instant::now();
    let timetable = schedule.timetable(&Shape::new(depth, n))?;
    let generated = start.elapsed().as_secs_f64();
    let program = lower(&timetable, &Lowering::default()).context(schedule.name())?;
    let proven = start.elapsed().as_secs_f64();
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(program.units_per_micro());
    let timeline = simulate(&program, &costs);
    let simulated = start.elapsed().as_secs_f64();
    let n_ops = timetable.n_ops();
    assert_eq!(timeline.events.len(), timetable.rows.iter().map(Vec::len).sum::<usize>());
    println!(
        "| {} | {depth} | {n} | {n_ops} | {generated:.4} | {:.4} | {:.4} | {:.3} | {:.0} |",
        schedule.name(),
        proven - generated,
        simulated - proven,
        simulated / n_ops as f64 * 1e6,
        peak_mib(),
    );
    Ok(())
}

/// The peak memory of this process so far, if the system reports it.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

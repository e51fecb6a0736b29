//! Time to generate, prove and simulate Chimera, by number of ops.

use std::time::Instant;

use anyhow::Result;
use chimera_core::analyze::{UniformCosts, simulate};
use chimera_core::lower::{Lowering, lower};
use chimera_core::schedule::{Shape, find};

/// Workers and micro-batches of each row: from the largest published pipelines to ten million ops.
const SHAPES: [(usize, u32); 6] =
    [(8, 64), (32, 512), (64, 1024), (64, 8192), (64, 32_768), (64, 78_125)];

/// Measures and prints.
pub(crate) fn run() -> Result<()> {
    println!("| D | N | ops | generate s | prove s | simulate s | µs per op | peak memory MiB |");
    println!("|---|---|---|---|---|---|---|---|");
    for (depth, n_micro_batches) in SHAPES {
        let start = Instant::now();
        let timetable = find("chimera")?.timetable(&Shape::new(depth, n_micro_batches))?;
        let generated = start.elapsed().as_secs_f64();
        let program = lower(&timetable, &Lowering::default())?;
        let proven = start.elapsed().as_secs_f64();
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
        let simulated = start.elapsed().as_secs_f64();
        let n_ops = timetable.n_ops();
        assert_eq!(timeline.events.len(), n_ops);
        println!(
            "| {depth} | {n_micro_batches} | {n_ops} | {generated:.4} | {:.4} | {:.4} | {:.3} | {:.0} |",
            proven - generated,
            simulated - proven,
            simulated / n_ops as f64 * 1e6,
            peak_mib(),
        );
    }
    Ok(())
}

/// The most memory this process has held so far, where the system tells.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
